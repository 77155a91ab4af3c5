"""Keys in the environment: `TIDEGATE_` + the key in capitals, `.` → `_`, `_` → `__`, `-` → `___`.

Capitals lose a key's own case, so a variable is first matched against the keys that are known (our table, and what
the files hold) and only else spelled back, in small letters.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "TIDEGATE_"

# Switches of our own test suite and tools; they configure no process, and no one should be warned of them.
NOT_CONFIGURATION: Final = frozenset(
    {
        "TIDEGATE_DIFFERENTIAL_QUESTIONS",
        "TIDEGATE_HYPOTHESIS_PROFILE",
        "TIDEGATE_OFFLINE",
        "TIDEGATE_REQUIRE_ALL",
        "TIDEGATE_VECTORS",
    }
)

_TO_VARIABLE: Final = {".": "_", "_": "__", "-": "___"}
_FROM_VARIABLE: Final = {"_": ".", "__": "_", "___": "-"}


def variable_name(key: str) -> str:
    """The variable that sets a key: `cache.disk.bytes` → `TIDEGATE_CACHE_DISK_BYTES`."""
    return PREFIX + re.sub(r"[._-]", lambda match: _TO_VARIABLE[match[0]], key).upper()


def key_name(variable: str) -> str:
    """The key that a variable spells, in small letters.

    Exact for every key without capitals and without two of `.`, `_`, `-` in a row. A longer run of underscores is
    read in threes from its left.
    """
    spelled = variable.removeprefix(PREFIX).lower()
    return re.sub(r"_{1,3}", lambda match: _FROM_VARIABLE[match[0]], spelled)


def unknown_variable(variable: str, known_keys: Iterable[str]) -> str:
    """The warning about a variable that sets nothing. A warning only: Kubernetes injects some of our prefix."""
    nearest = difflib.get_close_matches(variable, [variable_name(key) for key in known_keys], n=1, cutoff=0.85)
    hint = f"; the nearest is {nearest[0]}" if nearest else ""
    return f"environment variable {variable} names no key and is ignored{hint}"
