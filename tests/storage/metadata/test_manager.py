"""What is particular to the topic-based manager: following, readiness, bad records, several managers on one log.

The rest is tests/contract/remote_log_metadata_manager.py.
"""

import struct
import threading
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from storage.errors import MetadataNotReadyError, RetriableRemoteStorageError
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.metadata.manager import TopicBasedRemoteLogMetadataManager as Manager
from storage.metadata.serde import MetadataRecord
from storage.model import CustomMetadata, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tests.support.for_each import for_each
from tests.support.metadata_event_log import HeldBackEventLog, InProcessMetadataEventLog
from tests.support.metadata_records import (
    COPY_FINISHED,
    DELETE_FINISHED,
    DELETE_STARTED,
    PARTITION,
    finish,
    moved,
    named_partition,
    started,
)

COUNT = 5
LATE_S = 100.0
"""What another thread does soon may be this late on a busy machine; nothing waits for it to pass."""
HOME = metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT)
NEIGHBOUR = next(
    partition
    for partition in (named_partition("orders", number) for number in range(1, 100))
    if metadata_partition(partition.topic_id, partition.partition, COUNT) == HOME
)
STRANGER = next(
    partition
    for partition in (named_partition("orders", number) for number in range(1, 100))
    if metadata_partition(partition.topic_id, partition.partition, COUNT) != HOME
)
SEGMENT = started("s", 0, 9)


@pytest.fixture
def event_log() -> HeldBackEventLog:
    return HeldBackEventLog(InProcessMetadataEventLog(COUNT))


@pytest.fixture
def manager(event_log: HeldBackEventLog) -> Manager:
    return Manager(event_log, publish_timeout_s=LATE_S)


def publish(event_log: HeldBackEventLog, *records: MetadataRecord) -> None:
    for record in records:
        event_log.publish(HOME, encode(record))


def copied(segment: RemoteLogSegmentMetadata) -> tuple[MetadataRecord, MetadataRecord]:
    return segment, moved(segment, COPY_FINISHED)


def test_following_all_goes_on_where_a_catalog_ended(event_log: HeldBackEventLog) -> None:
    publish(event_log, *copied(SEGMENT))
    catalog = Catalog()
    finish(catalog, SEGMENT)
    manager = Manager(event_log, catalog)
    changes = catalog.changes
    manager.follow_all({HOME: 2})
    assert catalog.changes == changes
    assert manager.position(HOME) == 2
    assert all(manager.is_caught_up(number) for number in range(COUNT))

    publish(event_log, moved(SEGMENT, DELETE_STARTED))
    assert not catalog.has_segments(PARTITION.topic_id, PARTITION.partition)


def test_a_lookup_fails_only_while_its_own_partition_is_behind(event_log: HeldBackEventLog, manager: Manager) -> None:
    publish(event_log, *copied(SEGMENT))
    event_log.hold()
    manager.follow_all()
    assert not manager.is_ready(PARTITION)
    assert not manager.is_ready(STRANGER)

    event_log.release_except(HOME)
    assert manager.is_ready(STRANGER)
    assert not manager.is_ready(PARTITION)
    with pytest.raises(MetadataNotReadyError):
        manager.remote_log_segment_metadata(PARTITION, 0, 5)

    event_log.release()
    assert manager.remote_log_segment_metadata(PARTITION, 0, 5) is not None


def test_progress_is_told_after_the_records_were_applied(event_log: HeldBackEventLog, manager: Manager) -> None:
    told: list[tuple[int, int, bool]] = []
    manager.on_progress(
        lambda number, position: told.append((number, position, manager.catalog.has_segments(*key(PARTITION))))
    )
    manager.follow_all()
    told.clear()
    publish(event_log, *copied(SEGMENT))

    assert told == [(HOME, 1, False), (HOME, 2, True)]


def test_records_of_partitions_not_followed_are_skipped(event_log: HeldBackEventLog, manager: Manager) -> None:
    publish(event_log, *copied(SEGMENT), *copied(started("n", 0, 9, partition=NEIGHBOUR)))
    manager.on_partition_leadership_changes([PARTITION], [])

    assert manager.catalog.has_segments(*key(PARTITION))
    assert not manager.catalog.has_segments(*key(NEIGHBOUR))
    assert not manager.is_ready(NEIGHBOUR)


def test_a_neighbour_that_comes_later_has_the_log_read_again(event_log: HeldBackEventLog, manager: Manager) -> None:
    publish(event_log, *copied(SEGMENT), *copied(started("n", 0, 9, partition=NEIGHBOUR)))
    manager.on_partition_leadership_changes([PARTITION], [])
    generation = manager.catalog.generation(*key(PARTITION))
    event_log.hold()

    with capture_logs() as logs:
        manager.on_partition_leadership_changes([], [NEIGHBOUR, PARTITION])
        assert manager.is_ready(PARTITION), "what was loaded stays ready meanwhile"
        assert not manager.is_ready(NEIGHBOUR)
        event_log.release()

    assert manager.is_ready(NEIGHBOUR)
    assert manager.remote_log_segment_metadata(NEIGHBOUR, 0, 5) is not None
    assert manager.catalog.generation(*key(PARTITION)) == generation, "seen records are skipped"
    assert not [entry for entry in logs if entry["log_level"] != "debug"]


def test_a_stopped_partition_goes_and_its_neighbour_stays(event_log: HeldBackEventLog, manager: Manager) -> None:
    publish(event_log, *copied(SEGMENT), *copied(started("n", 0, 9, partition=NEIGHBOUR)))
    manager.on_partition_leadership_changes([PARTITION, NEIGHBOUR], [])

    manager.on_stop_partitions([PARTITION, STRANGER])
    publish(event_log, *copied(started("s2", 10, 19)), *copied(started("n2", 10, 19, partition=NEIGHBOUR)))

    assert not manager.catalog.has_segments(*key(PARTITION))
    assert len(list(manager.list_remote_log_segments(NEIGHBOUR))) == 2


def test_following_all_takes_over_from_following_some(event_log: HeldBackEventLog, manager: Manager) -> None:
    publish(event_log, *copied(SEGMENT), *copied(started("n", 0, 9, partition=NEIGHBOUR)))
    manager.on_partition_leadership_changes([PARTITION], [])
    manager.follow_all()
    manager.on_partition_leadership_changes([PARTITION], [])
    manager.on_stop_partitions([PARTITION])

    assert [manager.is_ready(partition) for partition in (PARTITION, NEIGHBOUR, STRANGER)] == [True] * 3
    assert manager.catalog.segment_count == 2


def test_a_caller_waits_until_its_own_record_came_back(event_log: HeldBackEventLog, manager: Manager) -> None:
    manager.follow_all()
    event_log.hold()
    adding = threading.Thread(target=lambda: manager.add_remote_log_segment_metadata(SEGMENT))
    adding.start()
    assert event_log.something_waits.wait(LATE_S)
    assert adding.is_alive()
    assert list(manager.list_remote_log_segments(PARTITION)) == []

    event_log.release()
    adding.join(LATE_S)

    assert not adding.is_alive()
    assert list(manager.list_remote_log_segments(PARTITION)) == [SEGMENT]


def test_a_record_that_does_not_come_back_in_time_is_retriable(event_log: HeldBackEventLog) -> None:
    manager = Manager(event_log, publish_timeout_s=0.01)
    manager.follow_all()
    event_log.hold()

    with pytest.raises(RetriableRemoteStorageError, match=r"not read back within 0\.01 s"):
        manager.add_remote_log_segment_metadata(SEGMENT)


def test_closing_frees_those_who_wait(event_log: HeldBackEventLog, manager: Manager) -> None:
    manager.follow_all()
    event_log.hold()
    errors: list[Exception] = []

    def add() -> None:
        try:
            manager.add_remote_log_segment_metadata(SEGMENT)
        except MetadataNotReadyError as error:
            errors.append(error)

    adding = threading.Thread(target=add)
    adding.start()
    assert event_log.something_waits.wait(LATE_S)
    manager.close()
    adding.join(LATE_S)

    assert [str(error) for error in errors] == ["the metadata manager was closed while a record was under way"]


BAD_RECORDS: list[tuple[bytes, str]] = [
    (b"", "ends at byte 0"),
    (b"\x07garbage", "frame version 7"),
    (b"\1\3\0", "snapshot record"),
]


@for_each("value, reason", BAD_RECORDS)
def test_a_record_that_cannot_be_decoded_is_logged_counted_and_skipped(value: bytes, reason: str) -> None:
    event_log = HeldBackEventLog(InProcessMetadataEventLog(COUNT))
    manager = Manager(event_log, publish_timeout_s=LATE_S)
    manager.follow_all()
    with capture_logs() as logs:
        event_log.publish(HOME, value)
    publish(event_log, *copied(SEGMENT))

    assert manager.undecodable_records == 1
    assert manager.remote_log_segment_metadata(PARTITION, 0, 5) is not None
    (entry,) = logs
    assert entry["event"] == "metadata_record_skipped"
    assert reason in entry["reason"]
    assert (entry["metadata_partition"], entry["offset"]) == (HOME, 0)


@for_each("record", [moved(SEGMENT, DELETE_STARTED), started("s", 0, 9, state=COPY_FINISHED)])
def test_an_illegal_record_is_skipped(record: MetadataRecord) -> None:
    event_log = HeldBackEventLog(InProcessMetadataEventLog(COUNT))
    manager = Manager(event_log, publish_timeout_s=LATE_S)
    manager.follow_all()
    with capture_logs() as logs:
        publish(event_log, record)

    assert manager.rejected_records == 1
    assert [entry["event"] for entry in logs] == ["metadata_record_rejected"]


def test_while_loading_an_end_without_a_beginning_is_dropped(event_log: HeldBackEventLog, manager: Manager) -> None:
    publish(event_log, moved(started("old", 0, 9), DELETE_STARTED), *copied(SEGMENT))
    manager.follow_all()

    assert manager.rejected_records == 0
    assert manager.remote_log_segment_metadata(PARTITION, 0, 5) is not None


def test_an_unexpected_error_costs_one_record(event_log: HeldBackEventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog()
    apply = catalog.apply

    def fail_once(record: MetadataRecord, *, initialized: bool, is_keyed: bool = False) -> bool:
        if record == SEGMENT:
            raise ZeroDivisionError("a bug")
        return apply(record, initialized=initialized, is_keyed=is_keyed)

    monkeypatch.setattr(catalog, "apply", fail_once)
    manager = Manager(event_log, catalog)
    manager.follow_all()
    with capture_logs() as logs:
        publish(event_log, SEGMENT, *copied(started("next", 10, 19)))

    assert manager.remote_log_segment_metadata(PARTITION, 0, 15) is not None
    assert manager.rejected_records == 1
    assert [entry["reason"] for entry in logs] == ["ZeroDivisionError('a bug')"]


def test_a_null_value_carries_no_information(event_log: HeldBackEventLog) -> None:
    manager = Manager(event_log)
    manager.follow_all()
    event_log.deliver(HOME, b"key", None)
    event_log.deliver(HOME, None, None)

    assert manager.undecodable_records == manager.rejected_records == 0


def segment_key(segment: RemoteLogSegmentMetadata, state: int) -> bytes:
    """As one draft of KIP-1266 has it: topic id, partition, segment id, state."""
    partition = segment.topic_id_partition
    return struct.pack(">16si16sb", partition.topic_id, partition.partition, segment.segment_id.id, state)


def test_of_a_compacted_log_what_is_left_of_a_segment_is_enough(event_log: HeldBackEventLog, manager: Manager) -> None:
    """The latest record of each key is left: of `s0` its completion with all fields, of `s1` its beginning and its
    end, of `s2` its end alone."""
    manager.follow_all()
    whole, over, unknown = started("s0", 0, 9), started("s1", 10, 19), started("s2", 20, 29)
    for record in (
        replace(whole, state=COPY_FINISHED, custom_metadata=CustomMetadata(b"key")),
        over,
        moved(over, DELETE_FINISHED),
        replace(unknown, state=DELETE_FINISHED),
    ):
        event_log.deliver(HOME, b"a key", encode(record))
    found = manager.remote_log_segment_metadata(PARTITION, 0, 5)
    assert found == replace(whole, state=COPY_FINISHED, custom_metadata=CustomMetadata(b"key"))
    assert [segment.segment_id for segment in manager.list_remote_log_segments(PARTITION)] == [whole.segment_id]
    assert manager.rejected_records == manager.undecodable_records == 0


def test_without_keys_nothing_can_have_been_compacted_away(event_log: HeldBackEventLog, manager: Manager) -> None:
    manager.follow_all()
    publish(event_log, replace(SEGMENT, state=COPY_FINISHED), *copied(started("t", 10, 19)))
    publish(event_log, moved(started("t", 10, 19), DELETE_FINISHED))
    assert manager.rejected_records == 1
    assert manager.remote_log_segment_metadata(PARTITION, 0, 5) is None
    assert manager.remote_log_segment_metadata(PARTITION, 0, 15) is not None


@for_each(
    "key, is_gone",
    [
        (segment_key(SEGMENT, 3), True),
        (segment_key(SEGMENT, 0), False),
        (segment_key(SEGMENT, 4), False),
        (segment_key(started("other", 0, 9), 3), False),
        (segment_key(started("s", 0, 9, partition=STRANGER), 3), False),
        (b"99Ua091BQDeyDAqtDCo4bQ:orders:0:9:0:UPDATE", False),
    ],
)
def test_a_tombstone_ends_a_segment(key: bytes, is_gone: bool) -> None:
    """Only somebody who was away while its other records were compacted away learns it from that."""
    event_log = HeldBackEventLog(InProcessMetadataEventLog(COUNT))
    manager = Manager(event_log, publish_timeout_s=LATE_S)
    manager.follow_all()
    publish(event_log, *copied(SEGMENT))
    removed: list[RemoteLogSegmentId] = []
    manager.catalog.on_segment_removed(removed.append)
    event_log.deliver(HOME, key, None)
    assert (manager.remote_log_segment_metadata(PARTITION, 0, 5) is None) is is_gone
    assert removed == [SEGMENT.segment_id] * is_gone
    assert manager.catalog.segment_count == 1 - is_gone
    assert manager.rejected_records == manager.undecodable_records == 0


def test_a_log_that_cannot_be_trusted_leaves_nothing_ready(event_log: HeldBackEventLog, manager: Manager) -> None:
    manager.follow_all()
    event_log.failure_reason = "the topic grew"

    assert not manager.is_ready(PARTITION)
    with pytest.raises(MetadataNotReadyError):
        manager.highest_offset_for_epoch(PARTITION, 0)


def key(partition: TopicIdPartition) -> tuple[bytes, int]:
    return partition.topic_id, partition.partition
