"""Writes the lists of docs/configuration.md out of the keys: `python -m tools.configuration_reference`.

What stands above the first table is written by hand. A test holds the document to the keys, so that it cannot fall
behind the code.
"""

import re
import sys
from pathlib import Path

from storage.config.keys import Key, Reload
from storage.config.tier_client import LATER
from storage.plugin_keys import AIVEN, CLIENT, LOCAL, METADATA, PLAIN, STORE_KEYS, acting
from tidegate.config.model import SERVE_KEYS

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
FIRST_SECTION = "\n## General\n"

_MARKS = {Reload.RESTART: "", Reload.AT_ONCE: "↻", Reload.NEW_CONNECTIONS: "⇄"}

_PLUGINS = """
## Keys of plug-ins and of the metadata clients

These act; they stand here without their prefix. For any other key `check` says what to set instead. One
that nobody knows is a warning with the nearest one that acts.
"""
_PLUGIN_TABLES = {
    "Aiven's RemoteStorageManager": AIVEN,
    "Kafka's LocalTieredStorage": LOCAL,
    "tidegate.PlainObjects": PLAIN,
    "Kafka's TopicBasedRemoteLogMetadataManager": METADATA,
    "The metadata topic's clients": CLIENT,
}
_STORE = "The keys of the store as above"


def reference(document: str) -> str:
    """The document with lists that say what the keys say now."""
    text = document.partition(FIRST_SECTION)[0]
    for key in SERVE_KEYS.keys:
        if key.section is not None:
            text += f"\n## {key.section}\n\n"
        text += _row(key)
    text += _PLUGINS
    for heading, keys in _PLUGIN_TABLES.items():
        text += f"\n### {heading}\n\n"
        shown = [f"`{name}`" for name in acting(keys) if keys is not PLAIN or name not in STORE_KEYS]
        text += f"{', '.join([*([_STORE] if keys is PLAIN else []), *shown])}\n"
    text += "\n## Not in this version\n\nThese are read and checked, and refused until what they turn on is there:\n\n"
    return text + "".join(f"- `{name}`: {feature}\n" for name, feature in LATER.items())


def _row(key: Key) -> str:
    name = " or ".join(f"`{name}`" for name in (key.name, *key.aliases))
    default = f"`{key.default}`" if key.default is not None else key.default_words
    if default is None and key.required:
        default = "**required**"
    marks = ", ".join(mark for mark in (default, _MARKS[key.reload]) if mark)
    kind = key.kind.words
    choice = f" One of {kind.removeprefix('one of ')}." if kind.startswith("one of ") else ""
    if all(option in key.doc for option in re.findall("`.+?`", choice)):
        choice = ""
    secret = " Shown masked." if key.secret else ""
    return f"- {name}{f' ({marks})' if marks else ''}: {key.doc}{choice}{secret}\n"


if __name__ == "__main__":
    DOCUMENT.write_text(reference(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT}\n")
