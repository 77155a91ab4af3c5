"""The reader with blocks of any size, and with any byte of a log damaged."""

import re

import pytest
import trio

from storage.errors import CorruptObjectError
from tests.support.cases import case
from tests.support.segments import filled_segment
from tests.support.tier import Tier, expected_bytes, open_tier

SMALL = filled_segment(100, batch_count=4, records_per_batch=2, value_bytes=10, interval_bytes=0)
CHECKED_POSITIONS = sorted(
    set(range(len(SMALL.log))) - {start + at for start in SMALL.batch_positions for at in range(12, 16)}
)
"""Not the leader epoch: nothing covers it, in Kafka neither."""

EACH_BYTE = [*((61, at) for at in CHECKED_POSITIONS[::2]), *((4096, at) for at in CHECKED_POSITIONS[1::2])]
"""With one size of blocks each."""


async def test_blocks_may_cut_headers_and_batches_anywhere(nursery: trio.Nursery) -> None:
    for block_bytes in (1, 2, 3, 7, *range(11, 140)):
        tier = open_tier(nursery, [SMALL], block_bytes=block_bytes)
        for offset in range(100, 108):
            for max_bytes in (1, len(SMALL.batches[0]) + 5, len(SMALL.log)):
                expected = expected_bytes(tier.logs, offset, max_bytes=max_bytes)
                assert await tier.read_bytes(offset, max_bytes=max_bytes) == expected, block_bytes


def damaged(nursery: trio.Nursery, block_bytes: int, position: int, *, times: int | None = None) -> Tier:
    tier = open_tier(nursery, [SMALL], block_bytes=block_bytes)
    tier.store.flip_bit(tier.logs[0][0], position, times=times)
    return tier


async def test_a_bad_byte_is_never_seen_whether_it_goes_away_or_stays(nursery: trio.Nursery) -> None:
    for block_bytes, position in EACH_BYTE:
        tier = damaged(nursery, block_bytes, position, times=1)
        assert await tier.read_bytes(106) == SMALL.batches[3]
        assert await tier.read_bytes(100) == SMALL.log, (block_bytes, position)
        tier = damaged(nursery, block_bytes, position)
        named = f"segment {re.escape(str(tier.logs[0][0].segment_id))}"
        with case(block_bytes, position), pytest.raises(CorruptObjectError, match=named):
            await tier.read(100)
