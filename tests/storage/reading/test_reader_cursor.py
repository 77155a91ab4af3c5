"""A reader that reads on stays in its segment, without a look into the catalog, for as long as that is right."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from storage.log.block import NOTHING_VERIFIED
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from storage.reading.reader import OffsetNotInTierError
from storage.reading.segment_finder import ReachesLocalLogError, SegmentFinder
from storage.steps import finish
from tests.support.segments import filled_segment, metadata_of, topic_partition
from tests.support.tier import PARTITION, MemoryStore, Tier, expected_bytes, open_tier

KIB = 1024
SEGMENT = filled_segment(0, batch_count=100, records_per_batch=1, value_bytes=8 * KIB)
FOLLOWING = filled_segment(100, batch_count=100, records_per_batch=1, value_bytes=8 * KIB)
READ_BYTES = 5 * len(SEGMENT.log) // 100
"""Five batches."""


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT, FOLLOWING], block_bytes=64 * KIB, readahead_bytes_max=512 * KIB)


@contextmanager
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The offsets that the catalog is asked for meanwhile, but for those at which segments begin: the read-ahead asks
    what comes next."""
    offsets: list[int] = []
    lookup = Catalog.lookup

    def noted(self: Catalog, topic_id: bytes, partition: int, epoch: int, offset: int) -> Any:
        if offset % len(SEGMENT.batches):
            offsets.append(offset)
        return lookup(self, topic_id, partition, epoch, offset)

    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "lookup", noted)
        yield offsets


async def read(tier: Tier, offset: int, reader: str = "one") -> None:
    """An answer, which is as it must be."""
    expected = expected_bytes(tier.logs, offset, max_bytes=READ_BYTES)
    assert await tier.read_bytes(offset, max_bytes=READ_BYTES, reader=reader) == expected


async def test_reading_on_asks_the_catalog_where_segments_begin(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: it was asked with each read."""
    await read(tier, 0)
    await tier.settled()
    with looked_up(monkeypatch) as offsets:
        for offset in range(5, 200, 5):
            await read(tier, offset)
        await read(tier, 77)
        assert offsets == [77]


async def test_each_reader_has_its_own_place(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    await read(tier, 50)
    with looked_up(monkeypatch) as offsets:
        await read(tier, 55, reader="another")
        await read(tier, 20, reader="one")  # it goes back
        await read(tier, 55)
        await read(tier, 25)
        tier.reader.forget_reader("one")
        await read(tier, 60)
    assert offsets == [55, 20, 60]


def update(tier: Tier, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
    """One more record of a segment."""
    if state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
        tier.catalog.apply(replace(metadata, state=state), initialized=True)
    else:
        record = RemoteLogSegmentMetadataUpdate(metadata.segment_id, metadata.event_timestamp_ms, state, 1)
        tier.catalog.apply(record, initialized=True)


async def test_after_a_change_of_the_partition_it_is_asked_again(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: a segment more, one that takes this one's place, one that goes."""
    await read(tier, 50)
    copied = metadata_of(PARTITION, filled_segment(200))
    other_partition = metadata_of(topic_partition("other"), SEGMENT)
    with looked_up(monkeypatch) as offsets:
        for state in (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED):
            update(tier, other_partition, state)
            await read(tier, 55)
            assert offsets == []
        for state in (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED):
            update(tier, copied, state)
            await read(tier, 60)
            assert offsets == [60]
            await read(tier, 65)
            assert offsets == [60]
            offsets.clear()


async def test_a_segment_in_another_ones_place_is_read(tier: Tier) -> None:
    """With other batches, so that one is not taken for the other."""
    await read(tier, 50)
    other = filled_segment(0, batch_count=100, records_per_batch=1, value_bytes=9 * KIB)
    metadata = metadata_of(PARTITION, other, copy_attempt=1)
    assert isinstance(tier.store.inner, MemoryStore)
    tier.store.inner.objects[metadata.segment_id.id] = other.objects()
    for state in (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED):
        update(tier, metadata, state)
    tier.logs = [(metadata, other.log)]
    await read(tier, 55)


async def test_what_is_deleted_is_not_read(tier: Tier) -> None:
    """Also where the caches have not heard of it yet."""
    await read(tier, 50)
    update(tier, tier.logs[0][0], RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    with pytest.raises(OffsetNotInTierError):
        await read(tier, 55)
    await read(tier, 150)
    tier.catalog.apply(
        RemotePartitionDeleteMetadata(PARTITION, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED, 0, 1),
        initialized=True,
    )
    with pytest.raises(OffsetNotInTierError):
        await read(tier, 155)


async def test_another_lineage_is_looked_up_by(tier: Tier) -> None:
    """On it the segment is dead from offset 60 on: an epoch began there that it does not have."""
    await read(tier, 50)
    tier.lineage = LeaderEpochLineage(1, {0: (0, 60)})
    with pytest.raises(OffsetNotInTierError):
        await read(tier, 55)


async def test_a_committed_read_is_held_off_the_local_log_all_the_same(tier: Tier) -> None:
    await read(tier, 50)
    for local_start, is_far in ((100, True), (99, False)):
        finder = SegmentFinder(tier.catalog, local_start)
        reading = tier.reader.read(
            PARTITION,
            55,
            max_bytes=READ_BYTES,
            minimum_one_batch=True,
            lineage=tier.lineage,
            reader="one",
            committed=True,
            finder=finder,
        )
        if is_far:
            (await finish(reading)).release()
        else:
            with pytest.raises(ReachesLocalLogError):
                await finish(reading)


async def test_what_turns_out_bad_is_fetched_again(tier: Tier) -> None:
    """Failed reads and those that are cut begin at the same place once more."""
    await read(tier, 0)
    await tier.settled()
    block = tier.cache.memory.peek(tier.source().key(3))
    assert block is not None
    block.data = memoryview(bytes(len(block.data)))
    block.verified = NOTHING_VERIFIED
    fetched = len(tier.store.log_fetches())
    for offset in range(5, 50, 5):
        await read(tier, offset)
        await read(tier, offset)
    assert len(tier.store.log_fetches()) == fetched + 1
