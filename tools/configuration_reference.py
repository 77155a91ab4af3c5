"""Writes the tables of docs/configuration.md out of the keys: `python -m tools.configuration_reference`.

What stands above the first table is written by hand. A test holds the document to the keys, so that it cannot fall
behind the code.
"""

import re
import sys
from pathlib import Path

from storage.config.keys import Key, Reload
from storage.config.tier_client import LATER
from storage.plugin_keys import ACTS, AIVEN, CLIENT, LOCAL, METADATA, PLAIN, STORE_KEYS, Table
from tidegate.config.model import SERVE_KEYS

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
FIRST_SECTION = "\n## General\n"
CLIENT_KEYS_SHOWN_MAX = 20

_MARKS = {Reload.RESTART: "", Reload.AT_ONCE: " ↻", Reload.NEW_CONNECTIONS: " ⇄"}

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
_STORE = "the keys of the store, as above"


def reference(document: str) -> str:
    """The document with tables that say what the keys say now."""
    text = document.partition(FIRST_SECTION)[0]
    for key in SERVE_KEYS.keys:
        if key.section is not None:
            text += f"\n## {key.section}\n\n| key | default | meaning |\n|---|---|---|\n"
        text += _row(key)
    text += _PLUGINS
    for heading, keys in _PLUGIN_TABLES.items():
        text += f"\n### {heading}\n\n"
        for instead in dict.fromkeys(keys.values()):
            names = [name for name, each in keys.items() if each == instead]
            see = "see " if instead.startswith("`") else ""
            text += f"- {_named(names, keys)}: {'acts' if instead == ACTS else f'no effect; {see}{instead}'}\n"
    text += "\n## Not in this version\n\nThese are read and checked, and refused until what they turn on is there:\n\n"
    return text + "".join(f"- `{name}`: {feature}\n" for name, feature in LATER.items())


def _row(key: Key) -> str:
    name = " or ".join(f"`{name}`" for name in (key.name, *key.aliases))
    default = f"`{key.default}`" if key.default is not None else key.default_words
    kind = key.kind.words
    choice = f" One of {kind.removeprefix('one of ')}." if kind.startswith("one of ") else ""
    if default is None:
        shape = "" if choice or kind == "text" else f" ({kind.partition(', ')[0]})"
        default = f"**required**{shape}" if key.required else f"none{shape}"
    if all(option in key.doc for option in re.findall("`.+?`", choice)):
        choice = ""
    secret = " Shown masked." if key.secret else ""
    return f"| {name}{_MARKS[key.reload]} | {default} | {key.doc}{choice}{secret} |\n"


def _named(names: list[str], table: Table) -> str:
    """Names that act or not alike; the store's, and all that Kafka's clients have besides, in words."""
    shown = [f"`{name}`" for name in names if table is not PLAIN or name not in STORE_KEYS]
    if table is CLIENT and len(names) > CLIENT_KEYS_SHOWN_MAX:
        return "all others of Kafka's clients"
    return ", ".join([*([_STORE] if len(shown) < len(names) else []), *shown])


if __name__ == "__main__":
    DOCUMENT.write_text(reference(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT}\n")
