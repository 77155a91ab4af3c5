"""What leaves a tier of our own by DeleteRecords, and in which order; by retention: tests/broker/test_standalone.py.

Objects are looked for in the tier's folder, states in the metadata topic, and when a log start was committed in the
broker's `__consumer_offsets`.
"""

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.wire.errors import ErrorCode
from standalone.serving.log_starts import LOG_START_GROUP
from tests.support.differential_steps import delete_records
from tests.support.digests import fields_of, read_with_confluent
from tests.support.kafka import Record, fresh_name, produce
from tests.support.plain_kafka import serving_copies
from tests.support.raw_client import RawClient
from tests.support.serving import Serving
from tests.support.tier_proofs import (
    TierSegment,
    check_whole,
    copied_offsets,
    files_of,
    metadata_events,
    read_topic,
    segments_of,
)
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

RECORDS, BATCH_RECORDS, VALUE_BYTES = 1500, 50, 400
STEP_MS = 10
EARLIEST, LATEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -2, -1, -4, -5, -6
FOUR_STATES = ["COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"]
HOUR_MS = 3_600_000


def fill(kafka: KafkaCluster, topic: str, count: int, first_ms: int) -> int:
    """Records of partition 0 in batches of BATCH_RECORDS; their timestamps go up by STEP_MS."""
    value = b"v" * VALUE_BYTES
    records = (Record(0, b"key", b"%d " % n + value, (), first_ms + STEP_MS * n) for n in range(count))
    return produce(kafka, topic, records, batch_num_messages=BATCH_RECORDS, batch_size=1_000_000)


@contextmanager
def raw(served: Serving) -> Iterator[RawClient]:
    """A connection to Tidegate's own address for the broker."""
    with served.client() as bootstrap:
        [broker] = bootstrap.metadata([]).brokers
    with RawClient(broker.host, broker.port) as client:
        yield client


def listed(client: RawClient, topic: str, *timestamps: int) -> list[int]:
    """The offsets that ListOffsets gives, one request each."""
    answers = [answer for each in timestamps for answer in client.list_offsets(11, [(topic, 0, each)])]
    assert [answer.error_code for answer in answers] == [0] * len(timestamps), answers
    return [answer.offset for answer in answers]


def delete_through(served: Serving, topic: str, before: int) -> int:
    """DeleteRecords; the low watermark."""
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})
    [deleted] = admin.delete_records([TopicPartition(topic, 0, before)]).values()
    return int(deleted.result(60).low_watermark)


def log_start_commits(kafka: KafkaCluster, topic: str) -> list[tuple[int, int]]:
    """(time of the broker, offset) of each commit of the topic's log start."""
    # OffsetCommitKey v1: a version, group, topic, partition; OffsetCommitValue begins with a version and the offset.
    wanted = b"".join(struct.pack(">h", len(name)) + name for name in map(str.encode, (LOG_START_GROUP, topic)))
    found = []
    for message in read_topic(kafka, "__consumer_offsets"):
        _, _, timestamp_ms, key, value, _ = fields_of(message)
        if key is not None and value is not None and key[2:-4] == wanted:
            found.append((timestamp_ms, int.from_bytes(value[2:10], "big")))
    return found


def check_gone(kafka: KafkaCluster, topic: str, gone: list[TierSegment], log_start: int) -> None:
    """Assert that these segments lived to their end, and that the log start was committed before the first one's."""
    wait_until(lambda: not {each.segment_id for each in gone} & files_of(kafka, topic).keys(), "objects to go")

    def have_ended() -> bool:
        events.update(metadata_events(kafka, topic))
        return all([state for state, _ in events[each.segment_id]] == FOUR_STATES for each in gone)

    events: dict[str, list[tuple[str, int]]] = {}
    wait_until(have_ended, "their last states")
    begun_ms = min(events[each.segment_id][2][1] for each in gone)
    committed = [time_ms for time_ms, offset in log_start_commits(kafka, topic) if offset == log_start]
    assert committed
    assert min(committed) <= begun_ms


def test_delete_records_moves_the_tiers_log_start(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given a topic whose broker begins at 1000 and whose tier at 0, when a client of Tidegate deletes what is before
    an offset inside the tier, then the tier's log begins there: for DeleteRecords itself, ListOffsets and Fetch, also
    after a restart; segments before it go from the tier, state by state, and the others stay."""
    topic, local, cut = fresh_name("cut"), 1000, 630
    first_ms = int(time.time() * 1000) - HOUR_MS
    plain_kafka.create_topic(topic, 1, {"retention.ms": "-1"})
    end = fill(plain_kafka, topic, RECORDS, first_ms)
    with serving_copies(plain_kafka, tmp_path, topic) as served:
        wait_until(lambda: copied_offsets(served) == {(topic, 0): end - 1}, "everything is copied")
        delete_records(plain_kafka, topic, 0, local)  # as retention would
        segments = segments_of(plain_kafka, topic)[0]
        with raw(served) as client:
            assert listed(client, topic, EARLIEST) == [0]
            assert delete_through(served, topic, cut) == cut
            _check_log_start(client, topic, cut, local, end, first_ms)
            with pytest.raises(KafkaException, match="out of range"):
                delete_through(served, topic, end + 1)
            assert delete_through(served, topic, cut - 100) == cut
            gone = [each for each in segments if each.end_offset < cut]
            assert 0 < len(gone) < len(segments)
            check_gone(plain_kafka, topic, gone, cut)
            _check_log_start(client, topic, cut, local, end, first_ms)
    assert segments_of(plain_kafka, topic)[0] == segments[len(gone) :]
    with serving_copies(plain_kafka, tmp_path, topic) as served:
        with raw(served) as client:
            # A client that comes before the coordinator has answered gets the first segment's.
            wait_until(lambda: listed(client, topic, EARLIEST) == [cut], "the log start to be heard")
            _check_log_start(client, topic, cut, local, end, first_ms)
        [digest] = read_with_confluent(served.bootstrap, topic, {0: end}, "read_uncommitted").values()
        assert (digest.first, digest.last, digest.records) == (cut, end - 1, end - cut)
    kept = segments[len(gone) :]
    check_whole(plain_kafka, tmp_path, topic, {0: kept[0].start_offset}, {0: end})


def _check_log_start(client: RawClient, topic: str, cut: int, local: int, end: int, first_ms: int) -> None:
    specials = (EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
    assert listed(client, topic, *specials) == [cut, local, end, end - 1, -1]
    times = [first_ms + STEP_MS * offset for offset in (0, cut - 1, cut, cut + 100, local, end - 1, end)]
    assert listed(client, topic, *times) == [cut, cut, cut, cut + 100, local, end - 1, -1]
    topic_id = client.topic_id(topic)
    [below] = client.fetch(13, [(topic, topic_id, 0, cut - 1, 1 << 20)]).partitions
    assert (below.error_code, below.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
    [at] = client.patient_fetch(13, [(topic, topic_id, 0, cut, 1 << 20)]).partitions
    assert (at.error_code, at.log_start_offset) == (ErrorCode.NONE, cut)
    base_offset = int.from_bytes(at.records[:8], "big")
    assert base_offset == cut // BATCH_RECORDS * BATCH_RECORDS
