"""The shares of one memory limit."""

from proxy.config.memory_shares import (
    CACHE_MEMORY_SHARE,
    INDEXES_SHARE,
    READAHEAD_TOTAL_SHARE,
    SESSIONS_SHARE,
    TIER_INFLIGHT_SHARE,
    memory_share,
)
from storage.config.sizes import MIB, parse_size


def test_the_default_memory_gives_the_tables_budgets() -> None:
    memory = parse_size("1.5 GiB")
    shares = [memory_share(memory, share) for share in (CACHE_MEMORY_SHARE, READAHEAD_TOTAL_SHARE, TIER_INFLIGHT_SHARE)]
    assert shares == [256 * MIB, 512 * MIB, 512 * MIB]
    assert memory_share(memory, INDEXES_SHARE) == 96 * MIB
    assert memory_share(memory, SESSIONS_SHARE) == memory // 24
