"""Which tests `make test`, `make test-all` and `make test-long` run: a test's directory says it, and nothing else.

- `quick` (`make test`): the folders of QUICK_FOLDERS, but for folders named `all` or `long` below them.
- `all` (`make test-all`): everything else that is not long, and the property tests of `quick` once more, with all of
  their examples.
- `long` (`make test-long`): folders named `long`, wherever they are.

Without `--suite`, pytest runs what its arguments name; of a folder, all but what is long.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
QUICK_FOLDERS: Final = frozenset(
    {"broker", "contract", "metrics", "protocol", "proxy", "simulation", "standalone", "storage", "tidegate"}
)
QUICK_NEEDS: Final = frozenset({"java", "kafka", "shared-openssl"})
"""What `make demo` brings, and how the machine's Python was built: the most that a quick test may need."""


class Suite(StrEnum):
    QUICK = "quick"
    ALL = "all"
    LONG = "long"


def suite_of(path: Path) -> Suite:
    """The suite that a file's tests are in. `path`: below tests/."""
    parts = path.relative_to(TESTS).parts
    if "long" in parts[:-1]:
        return Suite.LONG
    if parts[0] in QUICK_FOLDERS and "all" not in parts[:-1]:
        return Suite.QUICK
    return Suite.ALL


def is_left_out(path: Path, suite: Suite | None, arguments: Sequence[str]) -> bool:
    """Return whether no test of the file, or of the folder, may run, so that it need not be imported: what a folder's
    conftest needs, other suites need not have. `arguments`: pytest's own."""
    if not path.is_relative_to(TESTS) or path == TESTS:
        return False
    if path.is_dir():
        its_own = suite_of(path / "any.py")
        return its_own is not suite if suite is Suite.QUICK else suite is Suite.ALL and its_own is Suite.LONG
    if path.suffix != ".py":
        return False
    its_own = suite_of(path)
    if suite is None:
        return its_own is Suite.LONG and not any("long" in Path(argument).parts for argument in arguments)
    if suite is Suite.ALL and its_own is Suite.QUICK:
        return "hypothesis" not in path.read_text(encoding="utf-8")
    return its_own is not suite


def is_out_of_place(item: pytest.Item, suite: Suite | None) -> bool:
    """Return whether a file that `all` shares with `quick` has the test for `quick` alone: nothing is drawn in it."""
    if suite is not Suite.ALL or suite_of(item.path) is not Suite.QUICK:
        return False
    return not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
