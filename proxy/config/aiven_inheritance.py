"""Aiven's chunk cache keys (`rsm.config.fetch.chunk.cache.*`) give our cache's values unless ours are set.

An operator who sized the plugin's cache has said what a reader of this tier needs. Sizes of −1 and 0 mean "unlimited"
and "none" there and are not taken; nor is the path: the plugin wipes its folder at every start, so sharing it would
cost us ours. What comes out of memory is taken up to our own budget only, because that heap was the broker's.
"""

import re
from dataclasses import replace
from typing import Final

from proxy.config.memory_shares import CACHE_MEMORY_SHARE, READAHEAD_TOTAL_SHARE, memory_share
from storage.config import tier_keys as tier
from storage.config.sources import Setting, Settings

PLUGIN_CLASS: Final = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
CACHE_PREFIX: Final = "fetch.chunk.cache."


def inherit(settings: Settings, memory_bytes_max: int) -> None:
    """Add the plugin's values to the table's settings where those are unset and the plugin is Aiven's."""
    manager = settings.table.get(tier.STORAGE_MANAGER_CLASS.name)
    if manager is None or manager.text is None or manager.text.strip() != PLUGIN_CLASS:
        return
    cache_class = _text(settings, "class")
    in_memory = cache_class.endswith("MemoryChunkCache")
    if cache_class:
        size_key = tier.CACHE_MEMORY_BYTES.name if in_memory else tier.CACHE_DISK_BYTES.name
        _take(settings, "size", size_key, memory_share(memory_bytes_max, CACHE_MEMORY_SHARE) if in_memory else None)
    _take(settings, "retention.ms", tier.CACHE_RETENTION_MS.name, None)
    readahead_bytes = memory_share(memory_bytes_max, READAHEAD_TOTAL_SHARE)
    _take(settings, "prefetch.max.size", tier.READAHEAD_STREAM_MAX_BYTES.name, readahead_bytes)


def _take(settings: Settings, name: str, key: str, maximum: int | None) -> None:
    text = _text(settings, name)
    if key in settings.table or re.fullmatch(r"\d{1,18}", text) is None or int(text) == 0:
        return
    theirs: Setting = settings.storage[CACHE_PREFIX + name]
    ours = text if maximum is None else str(min(int(text), maximum))
    origin = f"{theirs.origin} {settings.prefixes.storage}{CACHE_PREFIX}{name}"
    settings.table[key] = replace(theirs, text=ours, raw=ours, origin=origin)


def _text(settings: Settings, name: str) -> str:
    setting = settings.storage.get(CACHE_PREFIX + name)
    return "" if setting is None or setting.text is None else setting.text.strip()
