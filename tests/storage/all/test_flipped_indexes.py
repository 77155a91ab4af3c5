"""Flips of every byte of the indexes of small segments, and of a broker's own; tests/storage/long does all flips."""

from collections import Counter
from contextlib import closing, suppress

import pytest
import trio

from storage.errors import RemoteResourceNotFoundError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment
from tests.storage.reading.test_flipped_indexes import small_segments
from tests.support.flipped_indexes import FlippedIndexes, Outcome
from tests.support.frozen_tier import Recorded, storage_config
from tests.support.segments import metadata_of
from tests.support.tier import PARTITION

LED_BY = (IndexType.TRANSACTION, IndexType.TIMESTAMP, IndexType.OFFSET)


def objects_of(opened: OpenedSegment, metadata: RemoteLogSegmentMetadata) -> dict[str, bytes]:
    """By the suffix of LocalTieredStorage."""
    with closing(opened.open_stream(0, metadata.segment_size_bytes)) as stream:
        objects = {"log": bytes(stream.read(metadata.segment_size_bytes))}
    for kind in LED_BY:
        with suppress(RemoteResourceNotFoundError):
            objects[kind.value] = opened.fetch_index(kind)
    return objects


@pytest.fixture
def every() -> int:
    """Return of how many flips one is made: two or three of each byte are."""
    return 3


async def test_flips_of_small_segments(nursery: trio.Nursery, every: int) -> None:
    segments = small_segments()
    flips = FlippedIndexes(nursery, [(metadata_of(PARTITION, each), each.objects()) for each in segments])
    for number, segment in enumerate(segments):
        for index_type in LED_BY:
            bits = range(number % every, 8 * len(segment.objects()[index_type.value]), every)
            counts = await flips.outcomes(number, index_type, bits)
            assert counts[Outcome.CHANGED] == 0, (number, index_type, counts)
            assert counts[Outcome.LATER] <= (64 if (number, index_type) == (1, IndexType.TRANSACTION) else 0), counts


@pytest.mark.needs("vectors")
async def test_flips_of_a_brokers_transaction_indexes(nursery: trio.Nursery, every: int) -> None:
    """Failed before: 2,560 of 5,440 flips changed what a consumer saw, and nothing told of it."""
    manager, recorded = AivenRemoteStorageManager(storage_config()), Recorded("txn-0")
    segments = [(each, objects_of(manager.open_log_segment(each), each)) for each in recorded.segments]
    flips, total = FlippedIndexes(nursery, segments), Counter[Outcome]()
    for number, (_, objects) in enumerate(segments):
        index = objects.get(IndexType.TRANSACTION.value, b"")
        if index:
            total += await flips.outcomes(number, IndexType.TRANSACTION, range(number % every, 8 * len(index), every))
    assert total[Outcome.CHANGED] == 0, total
    assert total[Outcome.FOUND] > total[Outcome.LATER], total
