"""A catalog that follows the metadata log: readiness, bad records, logs that were compacted."""

import struct
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.metadata.follower import CatalogFollower as Follower
from storage.metadata.serde import MetadataRecord
from storage.model import CustomMetadata, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tests.support.for_each import for_each
from tests.support.metadata_event_log import HeldBackEventLog as HeldLog
from tests.support.metadata_event_log import InProcessMetadataEventLog
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
HOME = metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT)
STRANGER = next(
    partition
    for partition in (named_partition("orders", number) for number in range(1, 100))
    if metadata_partition(partition.topic_id, partition.partition, COUNT) != HOME
)
SEGMENT = started("s", 0, 9)


@pytest.fixture
def event_log() -> HeldLog:
    return HeldLog(InProcessMetadataEventLog(COUNT))


@pytest.fixture
def follower(event_log: HeldLog) -> Follower:
    return Follower(event_log, Catalog())


def publish(event_log: HeldLog, *records: MetadataRecord) -> None:
    for record in records:
        event_log.publish(HOME, encode(record))


def copied(segment: RemoteLogSegmentMetadata) -> tuple[MetadataRecord, MetadataRecord]:
    return segment, moved(segment, COPY_FINISHED)


def test_following_all_goes_on_where_a_catalog_ended(event_log: HeldLog) -> None:
    publish(event_log, *copied(SEGMENT))
    catalog = Catalog()
    finish(catalog, SEGMENT)
    follower = Follower(event_log, catalog)
    changes = catalog.changes
    follower.follow({HOME: 2})
    assert catalog.changes == changes
    assert follower.position(HOME) == 2
    assert all(follower.is_caught_up(number) for number in range(COUNT))

    publish(event_log, moved(SEGMENT, DELETE_STARTED))
    assert not catalog.has_segments(PARTITION.topic_id, PARTITION.partition)


def test_a_lookup_fails_only_while_its_own_partition_is_behind(event_log: HeldLog, follower: Follower) -> None:
    publish(event_log, *copied(SEGMENT))
    event_log.hold()
    follower.follow({})
    assert not follower.is_ready(PARTITION)
    assert not follower.is_ready(STRANGER)

    event_log.release_except(HOME)
    assert follower.is_ready(STRANGER)
    assert not follower.is_ready(PARTITION)
    event_log.release()
    assert follower.catalog.lookup(*key(PARTITION), 0, 5) is not None


def test_progress_is_told_after_the_records_were_applied(event_log: HeldLog, follower: Follower) -> None:
    told: list[tuple[int, bool]] = []
    follower.on_progress(lambda: told.append((follower.position(HOME), follower.catalog.has_segments(*key(PARTITION)))))
    follower.follow({})
    told.clear()
    publish(event_log, *copied(SEGMENT))

    assert told == [(1, False), (2, True)]


def test_a_partition_that_the_catalog_refused_is_not_ready(event_log: HeldLog) -> None:
    catalog = Catalog(segments_max=1)
    finish(catalog, SEGMENT, started("o", 0, 9, partition=STRANGER))
    follower = Follower(event_log, catalog)
    assert not follower.is_ready(PARTITION)
    follower.follow({})

    assert follower.is_ready(PARTITION)
    assert not follower.is_ready(STRANGER)


def test_a_record_in_another_partition_than_its_own_counts_as_misplaced(event_log: HeldLog, follower: Follower) -> None:
    follower.follow({})
    event_log.publish(HOME, encode(started("o", 0, 9, partition=STRANGER)))

    assert (follower.misplaced_records, follower.catalog.segment_count) == (1, 1)
    last = follower.last_applied
    assert last is not None
    assert (last.metadata_partition, last.offset) == (HOME, 0)


BAD_RECORDS: list[tuple[bytes, str]] = [
    (b"", "ends at byte 0"),
    (b"\x07garbage", "frame version 7"),
    (b"\1\3\0", "snapshot record"),
]


@for_each("value, reason", BAD_RECORDS)
def test_a_record_that_cannot_be_decoded_is_logged_counted_and_skipped(value: bytes, reason: str) -> None:
    event_log = HeldLog(InProcessMetadataEventLog(COUNT))
    follower = Follower(event_log, Catalog())
    follower.follow({})
    with capture_logs() as logs:
        event_log.publish(HOME, value)
    publish(event_log, *copied(SEGMENT))

    assert follower.undecodable_records == 1
    assert follower.catalog.lookup(*key(PARTITION), 0, 5) is not None
    (entry,) = logs
    assert entry["event"] == "metadata_record_skipped"
    assert reason in entry["reason"]
    assert (entry["metadata_partition"], entry["offset"]) == (HOME, 0)


@for_each("record", [moved(SEGMENT, DELETE_STARTED), started("s", 0, 9, state=COPY_FINISHED)])
def test_an_illegal_record_is_skipped(record: MetadataRecord) -> None:
    event_log = HeldLog(InProcessMetadataEventLog(COUNT))
    follower = Follower(event_log, Catalog())
    follower.follow({})
    with capture_logs() as logs:
        publish(event_log, record)

    assert follower.rejected_records == 1
    assert [entry["event"] for entry in logs] == ["metadata_record_rejected"]


def test_while_loading_an_end_without_a_beginning_is_dropped(event_log: HeldLog, follower: Follower) -> None:
    publish(event_log, moved(started("old", 0, 9), DELETE_STARTED), *copied(SEGMENT))
    follower.follow({})

    assert follower.rejected_records == 0
    assert follower.catalog.lookup(*key(PARTITION), 0, 5) is not None


def test_an_unexpected_error_costs_one_record(event_log: HeldLog, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog()
    apply = catalog.apply

    def fail_once(record: MetadataRecord, *, initialized: bool, is_keyed: bool = False) -> bool:
        if record == SEGMENT:
            raise ZeroDivisionError("a bug")
        return apply(record, initialized=initialized, is_keyed=is_keyed)

    monkeypatch.setattr(catalog, "apply", fail_once)
    follower = Follower(event_log, catalog)
    follower.follow({})
    with capture_logs() as logs:
        publish(event_log, SEGMENT, *copied(started("next", 10, 19)))

    assert follower.catalog.lookup(*key(PARTITION), 0, 15) is not None
    assert follower.rejected_records == 1
    assert [entry["reason"] for entry in logs] == ["ZeroDivisionError('a bug')"]


def test_a_null_value_carries_no_information(event_log: HeldLog) -> None:
    follower = Follower(event_log, Catalog())
    follower.follow({})
    event_log.deliver(HOME, b"key", None)
    event_log.deliver(HOME, None, None)

    assert follower.undecodable_records == follower.rejected_records == 0


def segment_key(segment: RemoteLogSegmentMetadata, state: int) -> bytes:
    """As one draft of KIP-1266 has it: topic id, partition, segment id, state."""
    partition = segment.topic_id_partition
    return struct.pack(">16si16sb", partition.topic_id, partition.partition, segment.segment_id.id, state)


def test_of_a_compacted_log_what_is_left_of_a_segment_is_enough(event_log: HeldLog, follower: Follower) -> None:
    """The latest record of each key is left: of `s0` its completion with all fields, of `s1` its beginning and its
    end, of `s2` its end alone."""
    follower.follow({})
    whole, over, unknown = started("s0", 0, 9), started("s1", 10, 19), started("s2", 20, 29)
    for record in (
        replace(whole, state=COPY_FINISHED, custom_metadata=CustomMetadata(b"key")),
        over,
        moved(over, DELETE_FINISHED),
        replace(unknown, state=DELETE_FINISHED),
    ):
        event_log.deliver(HOME, b"a key", encode(record))
    found = follower.catalog.lookup(*key(PARTITION), 0, 5)
    assert found == replace(whole, state=COPY_FINISHED, custom_metadata=CustomMetadata(b"key"))
    assert [segment.segment_id for segment in follower.catalog.list_segments(*key(PARTITION))] == [whole.segment_id]
    assert follower.rejected_records == follower.undecodable_records == 0


def test_without_keys_nothing_can_have_been_compacted_away(event_log: HeldLog, follower: Follower) -> None:
    follower.follow({})
    publish(event_log, replace(SEGMENT, state=COPY_FINISHED), *copied(started("t", 10, 19)))
    publish(event_log, moved(started("t", 10, 19), DELETE_FINISHED))
    assert follower.rejected_records == 1
    assert follower.catalog.lookup(*key(PARTITION), 0, 5) is None
    assert follower.catalog.lookup(*key(PARTITION), 0, 15) is not None


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
    event_log = HeldLog(InProcessMetadataEventLog(COUNT))
    follower = Follower(event_log, Catalog())
    follower.follow({})
    publish(event_log, *copied(SEGMENT))
    removed: list[RemoteLogSegmentId] = []
    follower.catalog.on_segment_removed(removed.append)
    event_log.deliver(HOME, key, None)
    assert (follower.catalog.lookup(PARTITION.topic_id, PARTITION.partition, 0, 5) is None) is is_gone
    assert removed == [SEGMENT.segment_id] * is_gone
    assert follower.catalog.segment_count == 1 - is_gone
    assert follower.rejected_records == follower.undecodable_records == 0


def test_a_log_that_cannot_be_trusted_leaves_nothing_ready(event_log: HeldLog, follower: Follower) -> None:
    follower.follow({})
    assert follower.is_ready(PARTITION)
    event_log.failure_reason = "the topic grew"

    assert not follower.is_ready(PARTITION)


def key(partition: TopicIdPartition) -> tuple[bytes, int]:
    return partition.topic_id, partition.partition
