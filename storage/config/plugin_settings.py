"""What was given to plug-ins and to the metadata topic's clients, held against the tables of their keys."""

from collections.abc import Iterator
from typing import Final

from storage.config.sources import CLIENT_PREFIXES, Setting, Settings
from storage.object_store.nearest import nearest
from storage.plugin_keys import ACTS, CLIENT, METADATA, STORAGE_TABLES, Table, acting, instead_of

BROKER_FILE_MARK: Final = "broker.config "
"""What the origin of a value from the broker's file begins with."""


def plugin_keys(settings: Settings, storage_class: str | None) -> Iterator[tuple[str, Setting, str, Table]]:
    """Each key that was given to a plug-in or a metadata client: by its whole name, what was given, its name in its
    table, and that table. Those of a storage plug-in that is not known are left out."""
    table = STORAGE_TABLES.get((storage_class or "").strip())
    if table is not None:
        for name, setting in settings.storage.items():
            yield settings.storage_prefix + name, setting, name, table
    for name, setting in settings.metadata.items():
        prefix = next((prefix for prefix in CLIENT_PREFIXES if name.startswith(prefix)), "")
        yield settings.metadata_prefix + name, setting, name.removeprefix(prefix), CLIENT if prefix else METADATA


def plugin_warnings(settings: Settings, storage_class: str | None) -> list[str]:
    """A sentence for each key that is not known, and one for all those in our own file that have no effect."""
    warnings, idle = [], []
    for whole, setting, name, table in plugin_keys(settings, storage_class):
        instead = instead_of(name, table)
        if instead is None:
            near = nearest(name, acting(table))
            hint = "" if near is None else f"; the nearest is {whole.removesuffix(name)}{near}"
            warnings.append(f"{setting.origin}: {whole} is no key that is known, and has no effect{hint}")
        elif instead != ACTS and not setting.origin.startswith(BROKER_FILE_MARK):
            idle.append(f"{whole} ({instead})")
    return warnings + ([f"these keys have no effect here: {', '.join(idle)}"] if idle else [])
