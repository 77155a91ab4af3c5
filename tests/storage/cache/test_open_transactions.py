"""Transactions that are open at a segment's end, as its producer snapshot names them."""

import pytest
import trio

from storage.cache.segment_parts import LOST_S_MAX
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.producer_snapshot import ProducerState
from storage.model import IndexType
from tests.support.segments import FIRST_TIMESTAMP_MS, build_segment, data_batch
from tests.support.tier import Tier, open_tier

pytestmark = pytest.mark.autojump

SNAPSHOT = IndexType.PRODUCER_SNAPSHOT


def producer(producer_id: int, first_offset: int) -> ProducerState:
    return ProducerState(producer_id, 0, 0, 5, 0, FIRST_TIMESTAMP_MS, 0, first_offset)


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [build_segment([data_batch(0)], producers=[producer(7, 3), producer(8, -1)])])


async def test_only_open_ones_are_told(tier: Tier) -> None:
    ((metadata, _),) = tier.logs
    for _ in range(2):
        assert await tier.storage.parts.open_transactions.get(metadata) == ((7, 3),)
    assert tier.store.index_fetches(SNAPSHOT) == 1


async def test_a_snapshot_that_stays_lost_is_done_without_after_a_minute(nursery: trio.Nursery) -> None:
    for error in (RemoteResourceNotFoundError("gone"), CorruptObjectError("cut")):
        tier = open_tier(nursery, [build_segment([data_batch(0)], producers=[producer(7, 3)])])
        ((metadata, _),) = tier.logs
        opened = tier.storage.parts.open_transactions
        tier.store.fail(error, index_type=SNAPSHOT, times=100)
        for _ in range(2):
            with pytest.raises(type(error)):
                await opened.get(metadata)
            await trio.sleep(LOST_S_MAX / 2)
        assert await opened.get(metadata) == ()
        assert tier.sample("tidegate_index_rebuilds_total", {"index": "producer"}) == 1


async def test_a_snapshot_that_comes_back_counts(tier: Tier) -> None:
    ((metadata, _),) = tier.logs
    tier.store.fail(RemoteResourceNotFoundError("gone"), index_type=SNAPSHOT)
    with pytest.raises(RemoteResourceNotFoundError):
        await tier.storage.parts.open_transactions.get(metadata)
    await trio.sleep(LOST_S_MAX)
    assert await tier.storage.parts.open_transactions.get(metadata) == ((7, 3),)
