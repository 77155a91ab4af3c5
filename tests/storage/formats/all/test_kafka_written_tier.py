"""A LocalTieredStorage directory that a Kafka 4.3 broker wrote: read through the format, checked by the indexes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.indexes.leader_epochs import encode_leader_epochs, parse_leader_epochs
from storage.indexes.offset_index import OffsetIndex, build_offset_index
from storage.indexes.producer_snapshot import encode_producer_snapshot, parse_producer_snapshot
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex, encode_transaction_index
from storage.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, uuid_from_text
from tests.support.for_each import for_each
from tests.support.index_writer import build_time_index
from tests.support.segments import BatchHeader, read_batch_header
from tests.support.vectors import vector

PARTITION = TopicIdPartition(topic="tiered", partition=0, topic_id=uuid_from_text("99Ua091BQDeyDAqtDCo4bQ"))
INDEX_ENTRIES = {3968: 15, 5952: 0, 6000: 5, 6820: 15, 8805: 11}
"""Start offsets of the vectors' segments, with the number of their offset index entries."""
START_OFFSETS = sorted(INDEX_ENTRIES)
START_OFFSETS_WITH_LOG = [5952, 6000]


@pytest.fixture
def tier(tmp_path: Path) -> LocalTieredStorage:
    """A tier with the broker's files in it: the vectors hold the partition's folder without Kafka's root folder."""
    shutil.copytree(vector("kafka", "local-tiered-storage"), tmp_path / "kafka-tiered-storage")
    return LocalTieredStorage({"dir": str(tmp_path)})


def metadata_at(start_offset: int) -> RemoteLogSegmentMetadata:
    """Enough of the metadata to find the objects; the segment's id stands in the last 22 characters of the name."""
    (index_path,) = vector("kafka", "local-tiered-storage").glob(f"*/{start_offset:020d}-*.index")
    segment_id = RemoteLogSegmentId(PARTITION, uuid_from_text(index_path.stem[-22:]))
    return RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start_offset,
        end_offset=start_offset + 10_000,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=0,
        segment_leader_epochs={0: start_offset},
    )


def batches_of(log: bytes) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    while position < len(log):
        end = position + 12 + int.from_bytes(log[position + 8 : position + 12], "big")
        yield position, read_batch_header(log[position:end])
        position = end


@pytest.mark.needs("vectors")
@for_each("start_offset", START_OFFSETS_WITH_LOG)
def test_index_entries_point_at_batches_with_their_last_offsets(tier: LocalTieredStorage, start_offset: int) -> None:
    metadata = metadata_at(start_offset)
    index = OffsetIndex(tier.fetch_index(metadata, IndexType.OFFSET), start_offset)
    batches = list(batches_of(tier.fetch_log_segment(metadata, 0)))
    assert len(index) == INDEX_ENTRIES[start_offset]
    assert batches[0][1].base_offset == start_offset
    for position, header in batches[1:]:
        assert index.lookup(header.last_offset) == (header.last_offset, position)
        assert index.fetch_upper_bound_offset(position - 1) == header.last_offset
    assert index.lookup(batches[0][1].last_offset) == (start_offset, 0)


@pytest.mark.needs("vectors")
@for_each("start_offset", START_OFFSETS_WITH_LOG)
def test_rebuilt_indexes_are_the_brokers(tier: LocalTieredStorage, start_offset: int) -> None:
    metadata = metadata_at(start_offset)
    batches = list(batches_of(tier.fetch_log_segment(metadata, 0)))
    offsets = [(position, header.last_offset) for position, header in batches]
    timestamps = [(position, header.last_offset, header.max_timestamp_ms) for position, header in batches]
    assert build_offset_index(start_offset, offsets) == tier.fetch_index(metadata, IndexType.OFFSET)
    assert build_time_index(start_offset, timestamps) == tier.fetch_index(metadata, IndexType.TIMESTAMP)


@pytest.mark.needs("vectors")
@for_each("start_offset", START_OFFSETS)
def test_every_index_of_the_broker_is_read_and_written_again(tier: LocalTieredStorage, start_offset: int) -> None:
    metadata = metadata_at(start_offset)
    assert len(OffsetIndex(tier.fetch_index(metadata, IndexType.OFFSET), start_offset)) == INDEX_ENTRIES[start_offset]
    assert len(TimeIndex(tier.fetch_index(metadata, IndexType.TIMESTAMP), start_offset)) >= 1
    checkpoint = tier.fetch_index(metadata, IndexType.LEADER_EPOCH)
    assert encode_leader_epochs(parse_leader_epochs(checkpoint)) == checkpoint
    snapshot = tier.fetch_index(metadata, IndexType.PRODUCER_SNAPSHOT)
    assert encode_producer_snapshot(parse_producer_snapshot(snapshot)) == snapshot


@pytest.mark.needs("vectors")
def test_the_brokers_abort_stands_in_the_segment_of_its_marker(tier: LocalTieredStorage) -> None:
    data = tier.fetch_index(metadata_at(6820), IndexType.TRANSACTION)
    abort = AbortedTransaction(producer_id=1, first_offset=6000, last_offset=6820, last_stable_offset=6821)
    index = TransactionIndex(data)
    assert list(index) == [abort]
    assert index.collect_aborted(6000, 6324) == ([abort], True)
    assert encode_transaction_index(index) == data
