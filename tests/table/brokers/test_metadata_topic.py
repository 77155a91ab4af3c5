"""Following the metadata topic pass by pass, over a client in memory."""

import struct
from collections.abc import Callable
from functools import partial

import pytest

from protocol.client.messages import FETCH, LIST_OFFSETS
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode
from storage.metadata.serde import MetadataRecord
from storage.model import ZERO_UUID, RemoteLogSegmentMetadata
from table.brokers import metadata_topic
from table.brokers.metadata_topic import METADATA_TOPIC, MetadataFollower, MetadataTopicError
from tests.support.fake_kafka import FakeKafka, FakeLog, FakeTopic
from tests.support.for_each import for_each
from tests.support.metadata_records import COPY_FINISHED, PARTITION, moved, started
from tests.support.segments import control_batch

TOPIC_ID = b"metadata-topic-1"
FIRST, SECOND, THIRD = (started(name, at, at + 99) for name, at in (("a", 0), ("b", 100), ("c", 200)))


class TopicInMemory:
    """A batch a record; None is a control batch, which has an offset and no record."""

    def __init__(self) -> None:
        self.kafka = FakeKafka()
        self.broker = self.kafka.add(1, "a")
        self.describe(3)
        self.client = self.kafka.client()
        self.catalog = Catalog()
        self.follower = MetadataFollower(self.client, self.catalog)

    def describe(self, partitions: int, topic_id: bytes = TOPIC_ID) -> None:
        """Set what Metadata says of it; logs stay as they are."""
        logs = self.kafka.topics[METADATA_TOPIC].logs if METADATA_TOPIC in self.kafka.topics else {}
        self.kafka.topics[METADATA_TOPIC] = FakeTopic(topic_id, [1] * partitions, logs=logs)

    def log(self, partition: int = 0) -> FakeLog:
        return self.kafka.log(METADATA_TOPIC, partition)

    def append(self, partition: int, *records: MetadataRecord | bytes | None) -> None:
        log = self.log(partition)
        for record in records:
            if record is None:
                log.append(control_batch(log.end_offset, producer_id=1), log.end_offset)
            else:
                log.put(record if isinstance(record, bytes) else encode(record))

    @property
    def start_offsets(self) -> list[int]:
        """Return the start offsets of the segments that the catalog knows."""
        return sorted(each.start_offset for each in self.catalog.list_segments(PARTITION.topic_id, PARTITION.partition))

    @property
    def fetches(self) -> list[tuple[int, int]]:
        """Partition and offset of each Fetch."""
        asked = [request.topics[0].partitions[0] for request in self.broker.asked(FETCH)]
        return [(each.partition, each.fetch_offset) for each in asked]


@pytest.fixture
def topic() -> TopicInMemory:
    return TopicInMemory()


def finished(*segments: RemoteLogSegmentMetadata) -> list[MetadataRecord]:
    return [record for metadata in segments for record in (metadata, moved(metadata, COPY_FINISHED))]


def test_a_pass_reads_every_partition_to_its_end(topic: TopicInMemory) -> None:
    topic.append(0, *finished(FIRST))
    topic.append(2, *finished(SECOND), THIRD, None)
    assert topic.follower.catch_up() == 5
    assert topic.start_offsets == [0, 100, 200]
    # A control batch is no record, and is passed over.
    assert topic.follower.positions == {0: 2, 1: 0, 2: 4}


def test_the_next_pass_goes_on_from_there(topic: TopicInMemory) -> None:
    topic.append(1, *finished(FIRST))
    topic.follower.catch_up()
    assert topic.follower.catch_up() == 0
    topic.append(1, *finished(SECOND))
    assert topic.follower.catch_up() == 2
    assert topic.start_offsets == [0, 100]
    assert topic.fetches == [(1, 0), (1, 2)]


def test_fifty_idle_partitions_cost_two_questions(topic: TopicInMemory) -> None:
    topic.describe(50)
    assert topic.follower.catch_up() == 0
    assert (len(topic.broker.asked(LIST_OFFSETS)), topic.fetches) == (2, [])


def test_many_answers_make_one_pass_and_progress_is_told(topic: TopicInMemory) -> None:
    topic.append(0, *finished(FIRST, SECOND))
    topic.log().fetch_batches = 3
    told: list[tuple[int, int]] = []
    assert MetadataFollower(topic.client, topic.catalog, progress=lambda *at: told.append(at)).catch_up() == 4
    assert told == [(3, 4), (4, 4)]


def test_an_old_update_without_its_beginning_is_dropped_a_new_one_counted(topic: TopicInMemory) -> None:
    topic.append(0, moved(FIRST, COPY_FINISHED))
    topic.follower.catch_up()
    assert topic.follower.rejected_records == 0
    topic.append(0, moved(FIRST, COPY_FINISHED))
    topic.follower.catch_up()
    assert topic.follower.rejected_records == 1


def test_records_that_cannot_be_decoded_are_counted_and_logged_once(
    topic: TopicInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.append(0, b"\x09what", *finished(FIRST), b"", b"\x01\x07")
    assert topic.follower.catch_up() == 5
    assert topic.follower.undecodable_records == 3
    assert topic.start_offsets == [0]
    assert capsys.readouterr().out.count("metadata_record_skipped") == 1


def test_reading_begins_at_the_logs_start_and_moves_up_to_it(topic: TopicInMemory) -> None:
    topic.append(0, *finished(FIRST))
    topic.log().log_start_offset = 2
    assert topic.follower.catch_up() == 0
    topic.append(0, *finished(SECOND), *finished(THIRD))
    topic.log().log_start_offset = 4
    assert topic.follower.catch_up() == 2
    assert topic.start_offsets == [200]


def test_retention_between_the_question_and_the_fetch_is_moved_over(topic: TopicInMemory) -> None:
    topic.append(0, *finished(FIRST), *finished(SECOND))
    topic.kafka.hooks["metadata fetch"] = lambda: setattr(topic.log(), "log_start_offset", 2)
    assert topic.follower.catch_up() == 2
    assert topic.start_offsets == [100]
    assert topic.fetches == [(0, 0), (0, 2)]


@for_each(
    "change, says",
    [
        (lambda topic: topic.kafka.topics.clear(), "topic __remote_log_metadata does not exist"),
        (lambda topic: topic.describe(3, ZERO_UUID), "has lost its topic id"),
        (lambda topic: topic.describe(3, b"metadata-topic-2"), "was deleted and created again"),
        (lambda topic: topic.describe(4), "went from 3 to 4 partitions"),
        (
            lambda topic: setattr(topic.log(), "end_offset", 1),
            "0: read up to 2, but the log ends at 1: it was truncated or created again",
        ),
    ],
)
def test_a_topic_that_is_not_what_it_was_is_not_read(change: Callable[[TopicInMemory], None], says: str) -> None:
    topic = TopicInMemory()
    topic.append(0, *finished(FIRST))
    topic.follower.catch_up()
    change(topic)
    with pytest.raises(MetadataTopicError, match=says):
        topic.follower.catch_up()


def test_a_topic_made_anew_between_two_fetches_is_said(topic: TopicInMemory) -> None:
    topic.append(0, FIRST, SECOND)
    topic.log().fetch_batches = 1
    again = partial(topic.describe, 3, b"metadata-topic-2")
    topic.kafka.hooks["metadata fetch"] = lambda: topic.kafka.hooks.update({"metadata fetch": again})
    with pytest.raises(MetadataTopicError, match="created again"):
        topic.follower.catch_up()


def test_a_corrupt_batch_is_named_and_the_next_pass_reads_it_again(topic: TopicInMemory) -> None:
    topic.append(0, *finished(FIRST))
    topic.log().cut_bytes = struct.pack(">qi", 2, 3)
    with pytest.raises(MetadataTopicError, match=r"__remote_log_metadata-0: batch at offset 2: .*length 3"):
        topic.follower.catch_up()
    topic.log().cut_bytes = b""
    assert topic.follower.catch_up() == 2
    assert topic.start_offsets == [0]


def test_an_end_that_is_never_reached_is_given_up(topic: TopicInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_topic, "EMPTY_ANSWERS_MAX", 3)
    topic.append(0, FIRST)
    topic.log().fetch_batches = 0
    with pytest.raises(MetadataTopicError, match="ends at 1, but gives no records from 0 on"):
        topic.follower.catch_up()
    assert len(topic.fetches) == 3
