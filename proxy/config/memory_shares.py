"""How the memory budgets derive from one number, `memory.max.bytes`."""

from typing import Final

from storage.config.sizes import KIB

# design §6: 1.5 GiB gives 256, 512 and 512 MiB. Of what is left manifests and indexes have 96 MiB, what else is held
# for clients 64 MiB, and Fetch sessions 64 MiB; the rest is the process itself: interpreter, catalog and connections.
MEMORY_SHARES_TOTAL: Final = 1536
CACHE_MEMORY_SHARE: Final = 256
READAHEAD_TOTAL_SHARE: Final = 512
TIER_INFLIGHT_SHARE: Final = 512
INDEXES_SHARE: Final = 96
HELD_SHARE: Final = 64
SESSIONS_SHARE: Final = 64


def memory_share(memory_bytes_max: int, share: int) -> int:
    """One budget's part of `memory.max.bytes`, rounded down to a whole KiB so that it reads well."""
    return memory_bytes_max * share // MEMORY_SHARES_TOTAL // KIB * KIB
