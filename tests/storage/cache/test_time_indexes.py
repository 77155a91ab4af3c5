"""Time indexes in memory: an empty one in place of one that is wrong. For the rest see `test_segment_parts`."""

import pytest
import trio

from storage.indexes.time_index import encode_time_index
from storage.model import IndexType
from storage.model import RemoteLogSegmentMetadata as Metadata
from tests.support.segments import filled_segment
from tests.support.tier import Tier, open_tier

SEGMENT = filled_segment(0, batch_count=60)
REBUILDS = ("tidegate_index_rebuilds_total", {"index": "time"})


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT, filled_segment(600, batch_count=60)])


@pytest.fixture
def metadata(tier: Tier) -> Metadata:
    return tier.logs[0][0]


@pytest.mark.parametrize("content", [b"x", b"\xff" * 12, SEGMENT.time_index * 2, encode_time_index(0, [(5, 600)])])
async def test_an_empty_index_stands_in_for_a_wrong_one(tier: Tier, metadata: Metadata, content: bytes) -> None:
    tier.store.replace(content, index_type=IndexType.TIMESTAMP)
    index = await tier.storage.parts.time_indexes.get(metadata)
    assert (len(index), index.lookup(2**62)) == (0, (-1, 0))
    assert tier.sample(*REBUILDS) == 1
    assert await tier.storage.parts.time_indexes.get(metadata) is index
    assert tier.sample(*REBUILDS) == 1
    assert tier.store.log_fetches() == []
