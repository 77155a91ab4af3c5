"""Following the metadata topic pass by pass, over a client in memory."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from pipeline.brokers import metadata_topic
from pipeline.brokers.client import BrokerClient
from pipeline.brokers.metadata_topic import METADATA_TOPIC, MetadataFollower, MetadataTopicError
from protocol.client.connection import ClientSettings
from protocol.client.errors import OffsetOutOfRangeError, TopicReplacedError
from protocol.client.leaders import FetchedRecords, PartitionLeader, TopicMetadata
from protocol.client.messages import OffsetAnswer
from storage.metadata.catalog import Catalog
from storage.metadata.record_batches import build_batch
from storage.metadata.serde import MetadataRecord, encode
from storage.model import ZERO_UUID, RemoteLogSegmentMetadata
from tests.support.metadata_records import COPY_FINISHED, PARTITION, moved, started

TOPIC = TopicMetadata(b"metadata-topic-1", METADATA_TOPIC, 0, dict.fromkeys(range(3), PartitionLeader(1, 0)))
FIRST, SECOND, THIRD = (started(name, at, at + 99) for name, at in (("a", 0), ("b", 100), ("c", 200)))


class TopicInMemory(BrokerClient):
    """A batch a record. `fetch_batches` batches in one answer, at most."""

    def __init__(self) -> None:
        super().__init__(ClientSettings(bootstrap_servers=()))
        self.description: TopicMetadata | None = TOPIC
        self.logs: dict[int, list[bytes | None]] = {partition: [] for partition in TOPIC.partitions}
        self.log_starts: dict[int, int] = dict.fromkeys(TOPIC.partitions, 0)
        self.fetch_batches = 100
        self.fetches: list[tuple[int, int]] = []
        self.questions = 0
        self.on_fetch: list[Callable[[], object]] = []
        self.tail = b""

    def append(self, partition: int, *records: MetadataRecord | bytes | None) -> None:
        self.logs[partition] += [
            record if record is None or isinstance(record, bytes) else encode(record) for record in records
        ]

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, TopicMetadata]:
        assert names == [METADATA_TOPIC]
        return {} if self.description is None else {METADATA_TOPIC: self.description}

    def list_offsets(
        self, timestamps: Mapping[tuple[str, int], int], *, read_committed: bool = False
    ) -> Mapping[tuple[str, int], OffsetAnswer]:
        self.questions += 1
        return {
            (topic, partition): OffsetAnswer(
                0, self.log_starts[partition] if timestamp == -2 else len(self.logs[partition]), 0, -1
            )
            for (topic, partition), timestamp in timestamps.items()
        }

    def fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, read_committed: bool, max_wait_ms: int
    ) -> FetchedRecords:
        self.fetches.append((partition, offset))
        if self.on_fetch:
            self.on_fetch.pop()()
        log = self.logs[partition]
        if not self.log_starts[partition] <= offset <= len(log):
            raise OffsetOutOfRangeError("out of range", 1)
        offsets = range(offset, min(len(log), offset + self.fetch_batches))
        data = b"".join(_batch(at, log[at]) for at in offsets)
        return FetchedRecords(data + self.tail, len(log), len(log), self.log_starts[partition], ())


def _batch(offset: int, value: bytes | None) -> bytes:
    """A tombstone stands for a control batch: no record, but an offset."""
    batch = build_batch(value or b"", 0)
    if value is None:
        from crc32c import crc32c

        covered = struct.pack(">h", 0x20) + batch[23:]
        batch = batch[:17] + struct.pack(">I", crc32c(covered)) + covered
    return struct.pack(">q", offset) + batch[8:]


@pytest.fixture
def topic() -> TopicInMemory:
    return TopicInMemory()


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
def follower(topic: TopicInMemory, catalog: Catalog) -> MetadataFollower:
    return MetadataFollower(topic, catalog)


def finished(*segments: RemoteLogSegmentMetadata) -> list[MetadataRecord]:
    return [record for metadata in segments for record in (metadata, moved(metadata, COPY_FINISHED))]


def start_offsets(catalog: Catalog) -> list[int]:
    return sorted(found.start_offset for found in catalog.list_segments(PARTITION.topic_id, PARTITION.partition))


def test_a_pass_reads_every_partition_to_its_end(
    topic: TopicInMemory, catalog: Catalog, follower: MetadataFollower
) -> None:
    topic.append(0, *finished(FIRST))
    topic.append(2, *finished(SECOND), THIRD)
    assert follower.catch_up() == 5
    assert start_offsets(catalog) == [0, 100, 200]
    assert follower.positions == {0: 2, 1: 0, 2: 3}


def test_the_next_pass_goes_on_from_there(topic: TopicInMemory, catalog: Catalog, follower: MetadataFollower) -> None:
    topic.append(1, *finished(FIRST))
    follower.catch_up()
    assert follower.catch_up() == 0
    topic.append(1, *finished(SECOND))
    assert follower.catch_up() == 2
    assert start_offsets(catalog) == [0, 100]
    assert topic.fetches == [(1, 0), (1, 2)]


def test_fifty_idle_partitions_cost_two_questions(topic: TopicInMemory, follower: MetadataFollower) -> None:
    topic.description = replace(TOPIC, partitions=dict.fromkeys(range(50), PartitionLeader(1, 0)))
    topic.logs = {partition: [] for partition in range(50)}
    topic.log_starts = dict.fromkeys(range(50), 0)
    assert follower.catch_up() == 0
    assert (topic.questions, topic.fetches) == (2, [])


def test_many_answers_make_one_pass_and_progress_is_told(topic: TopicInMemory, catalog: Catalog) -> None:
    topic.append(0, *finished(FIRST, SECOND))
    topic.fetch_batches = 3
    told: list[tuple[int, int]] = []
    assert MetadataFollower(topic, catalog, progress=lambda *at: told.append(at)).catch_up() == 4
    assert told == [(3, 4), (4, 4)]


def test_control_batches_move_on_without_a_record(topic: TopicInMemory, follower: MetadataFollower) -> None:
    topic.append(0, *finished(FIRST), None)
    assert follower.catch_up() == 2
    assert follower.positions[0] == 3


def test_an_old_update_whose_beginning_has_expired_is_dropped_and_a_new_one_is_counted(
    topic: TopicInMemory, follower: MetadataFollower
) -> None:
    topic.append(0, moved(FIRST, COPY_FINISHED))
    follower.catch_up()
    assert follower.rejected_records == 0
    topic.append(0, moved(FIRST, COPY_FINISHED))
    follower.catch_up()
    assert follower.rejected_records == 1


def test_records_that_cannot_be_decoded_are_counted_and_logged_once(
    topic: TopicInMemory, catalog: Catalog, follower: MetadataFollower, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.append(0, b"\x09what", *finished(FIRST), b"", b"\x01\x07")
    assert follower.catch_up() == 5
    assert follower.undecodable_records == 3
    assert start_offsets(catalog) == [0]
    assert capsys.readouterr().out.count("metadata_record_skipped") == 1


def test_reading_begins_at_the_logs_start_and_moves_up_to_it(
    topic: TopicInMemory, catalog: Catalog, follower: MetadataFollower
) -> None:
    topic.append(0, *finished(FIRST))
    topic.log_starts[0] = 2
    assert follower.catch_up() == 0
    topic.append(0, *finished(SECOND), *finished(THIRD))
    topic.log_starts[0] = 4
    assert follower.catch_up() == 2
    assert start_offsets(catalog) == [200]


def test_retention_between_the_question_and_the_fetch_is_moved_over(
    topic: TopicInMemory, catalog: Catalog, follower: MetadataFollower
) -> None:
    topic.append(0, *finished(FIRST), *finished(SECOND))
    topic.on_fetch.append(lambda: topic.log_starts.update({0: 2}))
    assert follower.catch_up() == 2
    assert start_offsets(catalog) == [100]
    assert topic.fetches == [(0, 0), (0, 2)]


def test_a_log_that_ends_before_what_was_read_was_truncated(topic: TopicInMemory, follower: MetadataFollower) -> None:
    topic.append(0, *finished(FIRST))
    follower.catch_up()
    topic.logs[0].pop()
    with pytest.raises(
        MetadataTopicError, match="0: read up to 2, but the log ends at 1: it was truncated or made anew"
    ):
        follower.catch_up()


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (None, "topic __remote_log_metadata does not exist"),
        (replace(TOPIC, topic_id=ZERO_UUID), "has lost its topic id"),
        (replace(TOPIC, topic_id=b"metadata-topic-2"), "was deleted and made anew"),
        (replace(TOPIC, partitions=dict.fromkeys(range(4), PartitionLeader(1, 0))), "went from 3 to 4 partitions"),
    ],
    ids=["gone", "no-id", "new-id", "grown"],
)
def test_a_topic_that_is_not_what_it_was_is_not_read(
    topic: TopicInMemory, follower: MetadataFollower, now: TopicMetadata | None, says: str
) -> None:
    follower.catch_up()
    topic.description = now
    with pytest.raises(MetadataTopicError, match=says):
        follower.catch_up()


def test_a_topic_made_anew_between_two_fetches_is_said(topic: TopicInMemory, follower: MetadataFollower) -> None:
    topic.append(0, FIRST)

    def replaced() -> None:
        raise TopicReplacedError("topic t was deleted and made anew")

    topic.on_fetch.append(replaced)
    with pytest.raises(MetadataTopicError, match="made anew"):
        follower.catch_up()


def test_a_corrupt_batch_is_named_with_its_partition_and_the_next_pass_reads_it_again(
    topic: TopicInMemory, catalog: Catalog, follower: MetadataFollower
) -> None:
    topic.append(0, *finished(FIRST))
    topic.tail = struct.pack(">qi", 2, 3)
    with pytest.raises(MetadataTopicError, match="__remote_log_metadata-0: batch at offset 2: length 3"):
        follower.catch_up()
    topic.tail = b""
    assert follower.catch_up() == 2
    assert start_offsets(catalog) == [0]


def test_an_end_that_is_never_reached_is_given_up(
    topic: TopicInMemory, follower: MetadataFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_topic, "EMPTY_ANSWERS_MAX", 3)
    topic.append(0, FIRST)
    topic.fetch_batches = 0
    with pytest.raises(MetadataTopicError, match="ends at 1, but gives no records from 0 on"):
        follower.catch_up()
    assert len(topic.fetches) == 3
