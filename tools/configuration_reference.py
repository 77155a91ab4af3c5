"""Writes the tables of docs/configuration.md out of the keys: `python -m tools.configuration_reference`.

What stands above the first table is written by hand. A test holds the document to the keys, so that it cannot fall
behind the code.
"""

import sys
from pathlib import Path

from storage.config.keys import Key
from storage.config.tier_client import LATER
from storage.plugin_keys import ACTS, AIVEN, CLIENT, LOCAL, METADATA, PLAIN
from tidegate.config.model import SERVE_KEYS

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
FIRST_SECTION = "\n## General\n"


_PLUGINS = """
## Keys of plug-ins and of the metadata clients

Keys stand here without their prefix. One without effect is named in `check`'s table of keys, with what to set instead;
in FILE it is a warning, too. A key that is not here is a warning with the nearest one that acts.
"""
_PLUGIN_TABLES = {
    "Aiven's RemoteStorageManager": AIVEN,
    "Kafka's LocalTieredStorage": LOCAL,
    "tidegate.PlainObjects": PLAIN,
    "Kafka's TopicBasedRemoteLogMetadataManager": METADATA,
    "The metadata topic's clients": CLIENT,
}


def reference(document: str) -> str:
    """The document with tables that say what the keys say now."""
    text = document.partition(FIRST_SECTION)[0]
    for key in SERVE_KEYS.keys:
        if key.section is not None:
            text += f"\n## {key.section}\n\n| key | kind | default | reload | |\n|---|---|---|---|---|\n"
        text += _row(key)
    text += _PLUGINS
    for heading, keys in _PLUGIN_TABLES.items():
        text += f"\n### {heading}\n\n| keys | effect |\n|---|---|\n"
        for instead in dict.fromkeys(keys.values()):
            names = ", ".join(f"`{name}`" for name, each in keys.items() if each == instead)
            text += f"| {names} | {'acts' if instead == ACTS else f'none: {instead}'} |\n"
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
