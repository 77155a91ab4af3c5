"""What is read through Kafka: whole batches between fixed offsets, aborted ones dropped as a consumer drops them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from protocol.client.errors import OffsetOutOfRangeError
from protocol.client.messages import FETCH
from storage.errors import CorruptObjectError
from storage.model import TopicIdPartition, Uuid
from table.planning.offset_bounds import OffsetBoundsError
from table.reading.read_task import EMPTY_ANSWERS_MAX, FETCH_BYTES_MAX, TailUnreadableError, read_tail_task
from table.schema import DEFAULT_COLUMNS
from table.tasks import MIB, ReadOptions, TailTask
from tests.support.fake_kafka import FakeKafka
from tests.support.for_each import for_each
from tests.support.segments import ProducerFields, control_batch, data_batch

PRODUCER, OTHER = 7, 8
OPTIONS = ReadOptions(columns=DEFAULT_COLUMNS)
COMMITTED = replace(OPTIONS, read_committed=True)


def tail_of(batches: Sequence[tuple[int, bytes]], aborted: Sequence[tuple[int, int, int]] = ()) -> FakeKafka:
    """A broker that has these batches of orders-3, by their last offsets; `aborted` as in FakeLog."""
    kafka = FakeKafka()
    kafka.add(1, "a")
    log = kafka.add_log(TopicIdPartition(Uuid(b"orders orders id"), 3, "orders"))
    for last_offset, batch in batches:
        log.append(batch, last_offset)
    log.aborted = aborted
    return kafka


def log_of(*batches: tuple[int, int, bytes]) -> list[tuple[int, bytes]]:
    """From (base offset, count, bytes): by last offset."""
    return [(base + count - 1, data) for base, count, data in batches]


def plain(base: int, count: int = 5) -> tuple[int, int, bytes]:
    return base, count, data_batch(base, record_count=count)


def transactional(base: int, producer_id: int = PRODUCER, count: int = 5) -> tuple[int, int, bytes]:
    return base, count, data_batch(base, record_count=count, producer=ProducerFields(producer_id, transactional=True))


def marker(base: int, producer_id: int = PRODUCER, *, commit: bool = False) -> tuple[int, int, bytes]:
    return base, 1, control_batch(base, producer_id=producer_id, commit=commit)


def offsets_of(kafka: FakeKafka, first: int, end: int, options: ReadOptions = OPTIONS) -> list[int]:
    task = TailTask(topic="orders", partition=3, first_offset=first, end_offset=end)
    return [row["offset"] for batch in read_tail_task(kafka.client(), task, options) for row in batch.to_pylist()]


def fetches(kafka: FakeKafka) -> list[Any]:
    return kafka.brokers[1].asked(FETCH)


def test_what_retention_took_of_the_tail_is_left_out_or_told() -> None:
    """Given a log whose start has passed a task's first offset, when the task runs, then it goes on at the start and
    says what it leaves out; or the sentence is that of planning. An offset beyond the log's end is no such thing."""
    kafka = tail_of(log_of(*(plain(base) for base in range(0, 50, 5))))
    kafka.log("orders", 3).log_start_offset = 22
    with kafka.blocking():
        with capture_logs() as told:
            assert offsets_of(kafka, 7, 33, replace(OPTIONS, fails_on_data_loss=False)) == list(range(22, 33))
        assert [(each["event"], each["partitions"], each["offsets"]) for each in told] == [
            ("offsets_lost", "orders-3: offsets 7 to 21 are below the log start 22", 15)
        ]
        said = "^orders-3: offsets 7 to 21 are below the log start 22; failOnDataLoss=false goes on without$"
        with pytest.raises(OffsetBoundsError, match=said):
            offsets_of(kafka, 7, 33)
        for options in (OPTIONS, replace(OPTIONS, fails_on_data_loss=False)):
            with pytest.raises(OffsetOutOfRangeError):
                offsets_of(kafka, 60, 70, options)


def test_rows_are_those_between_the_offsets_and_batches_may_reach_beyond() -> None:
    kafka = tail_of(log_of(*(plain(base) for base in range(0, 50, 5))))
    kafka.log("orders", 3).fetch_batches = 3
    kafka.log("orders", 3).cut_bytes = plain(50)[2][:40]

    assert offsets_of(kafka, 7, 33) == list(range(7, 33))

    asked = [request.topics[0].partitions[0] for request in fetches(kafka)]
    assert [(each.partition, each.fetch_offset) for each in asked] == [(3, 7), (3, 20)]
    assert {request.max_bytes for request in fetches(kafka)} == {FETCH_BYTES_MAX}

    # An answer is an eighth of the task's memory at most.
    kafka = tail_of(log_of(plain(0)))
    assert offsets_of(kafka, 0, 5, replace(OPTIONS, task_bytes_max=16 * MIB)) == list(range(5))
    assert fetches(kafka)[0].max_bytes == 2 * MIB


@for_each("batches_max", [1, 2, 100])
def test_of_an_aborted_transaction_nothing_is_left_up_to_its_marker(batches_max: int) -> None:
    """Whichever answer its batches come in; others' records and its producer's later ones stay."""
    log = log_of(
        transactional(0),
        plain(5),
        transactional(10, OTHER),
        transactional(15),
        marker(20),
        transactional(21),
        marker(26, commit=True),
        marker(27, OTHER, commit=True),
    )
    kafka = tail_of(log, aborted=[(PRODUCER, 0, 20)])
    kafka.log("orders", 3).fetch_batches = batches_max
    kept = [*range(5, 15), *range(21, 26)]

    assert offsets_of(kafka, 0, 28, COMMITTED) == kept
    assert offsets_of(kafka, 0, 28, OPTIONS) == [*range(20), *range(21, 26)]


def test_markers_are_never_rows_and_a_commit_does_not_end_another_producers_abort() -> None:
    log = log_of(transactional(0), marker(5, commit=True), plain(6))
    for options in (OPTIONS, COMMITTED):
        assert offsets_of(tail_of(log), 0, 11, options) == [*range(5), *range(6, 11)]
    log = log_of(transactional(0), marker(5, OTHER, commit=True), transactional(6), marker(11), plain(12))
    assert offsets_of(tail_of(log, [(PRODUCER, 0, 11)]), 0, 17, COMMITTED) == list(range(12, 17))


@for_each("log", [[], log_of(plain(0)), [(100, data_batch(0, record_count=5))]])
def test_a_broker_that_gives_nothing_or_repeats_itself_is_given_up(log: list[tuple[int, bytes]]) -> None:
    kafka = tail_of(log)
    kafka.log("orders", 3).end_offset = 10
    with pytest.raises(TailUnreadableError, match=r"orders-3 through Kafka: no records from offset 5 on, up to 9"):
        offsets_of(kafka, 5, 10)
    assert len(fetches(kafka)) == EMPTY_ANSWERS_MAX


@for_each("at", [30, -1])
def test_a_flipped_bit_fails_the_task_with_partition_and_position(at: int) -> None:
    damaged = bytearray(data_batch(5, record_count=5))
    damaged[at] ^= 1
    position = len(data_batch(0, record_count=5))
    kafka = tail_of([*log_of(plain(0)), (9, bytes(damaged))])
    with pytest.raises(CorruptObjectError, match=rf"orders-3 through Kafka: batch at {position}"):
        offsets_of(kafka, 0, 10)
