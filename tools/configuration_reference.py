"""Writes the tables of docs/configuration.md out of the keys: `python -m tools.configuration_reference`.

What stands above the first table is written by hand. A test holds the document to the keys, so that it cannot fall
behind the code.
"""

import sys
from pathlib import Path

from storage.config.keys import Key
from storage.config.tier_client import LATER
from tidegate.config.model import SERVE_KEYS

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
FIRST_SECTION = "\n## General\n"


def reference(document: str) -> str:
    """The document with tables that say what the keys say now."""
    text = document.partition(FIRST_SECTION)[0]
    for key in SERVE_KEYS.keys:
        if key.section is not None:
            text += f"\n## {key.section}\n\n| key | kind | default | reload | |\n|---|---|---|---|---|\n"
        text += _row(key)
    text += "\n## Not in this version\n\nThese are read and checked, and refused until what they turn on is there:\n\n"
    return text + "".join(f"- `{name}`: {feature}\n" for name, feature in LATER.items())


def _row(key: Key) -> str:
    name = " or ".join(f"`{name}`" for name in (key.name, *key.aliases))
    default = f"`{key.default}`" if key.default is not None else key.default_words
    if default is None:
        default = "**required**" if key.required else "none"
    secret = " Shown masked." if key.secret else ""
    return f"| {name} | {key.kind.words} | {default} | {key.reload.value} | {key.doc}{secret} |\n"


if __name__ == "__main__":
    DOCUMENT.write_text(reference(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT}\n")
