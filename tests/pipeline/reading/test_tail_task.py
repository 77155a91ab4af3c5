"""What is read through Kafka: whole batches between fixed offsets, aborted ones dropped as a consumer drops them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.brokers.client import BrokerClient
from pipeline.reading.read_task import EMPTY_ANSWERS_MAX, FETCH_BYTES_MAX, TailUnreadableError, read_tail_task
from pipeline.schema import DEFAULT_COLUMNS
from pipeline.tasks import MIB, ReadOptions, TailTask
from protocol.client.connection import ClientSettings
from protocol.client.leaders import FetchedRecords
from storage.errors import CorruptObjectError
from tests.support.segments import ProducerFields, control_batch, data_batch

PRODUCER, OTHER = 7, 8
OPTIONS = ReadOptions(columns=DEFAULT_COLUMNS)
COMMITTED = replace(OPTIONS, read_committed=True)


class ScriptedClient(BrokerClient):
    """A log of batches, `batches_max` in one answer, each with the aborts that touch it."""

    def __init__(self, batches: Sequence[tuple[int, bytes]], aborted: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(ClientSettings(bootstrap_servers=()))
        self.batches = list(batches)
        self.aborted = tuple(aborted)
        self.batches_max = 100
        self.cut_bytes = b""
        self.asked: list[dict[str, Any]] = []

    def fetch(self, topic: str, partition: int, offset: int, **wanted: Any) -> FetchedRecords:
        self.asked.append({"partition": f"{topic}-{partition}", "offset": offset, **wanted})
        found = [data for last_offset, data in self.batches if last_offset >= offset][: self.batches_max]
        end = 1 + max((last_offset for last_offset, _ in self.batches), default=-1)
        aborted = self.aborted if wanted["read_committed"] else ()
        return FetchedRecords(b"".join(found) + self.cut_bytes, end, end, 0, aborted)


def log_of(*batches: tuple[int, int, bytes]) -> list[tuple[int, bytes]]:
    """From (base offset, count, bytes): by last offset."""
    return [(base + count - 1, data) for base, count, data in batches]


def plain(base: int, count: int = 5) -> tuple[int, int, bytes]:
    return base, count, data_batch(base, record_count=count)


def transactional(base: int, producer_id: int = PRODUCER, count: int = 5) -> tuple[int, int, bytes]:
    return base, count, data_batch(base, record_count=count, producer=ProducerFields(producer_id, transactional=True))


def marker(base: int, producer_id: int = PRODUCER, *, commit: bool = False) -> tuple[int, int, bytes]:
    return base, 1, control_batch(base, producer_id=producer_id, commit=commit)


def offsets_of(client: BrokerClient, first: int, end: int, options: ReadOptions = OPTIONS) -> list[int]:
    task = TailTask(topic="orders", partition=3, first_offset=first, end_offset=end)
    return [row["offset"] for batch in read_tail_task(client, task, options) for row in batch.to_pylist()]


def test_rows_are_those_between_the_offsets_and_batches_may_reach_beyond() -> None:
    client = ScriptedClient(log_of(*(plain(base) for base in range(0, 50, 5))))
    client.batches_max = 3
    client.cut_bytes = plain(50)[2][:40]

    assert offsets_of(client, 7, 33) == list(range(7, 33))

    assert [asked["offset"] for asked in client.asked] == [7, 20]
    assert {asked["partition"] for asked in client.asked} == {"orders-3"}
    assert {asked["max_bytes"] for asked in client.asked} == {FETCH_BYTES_MAX}


def test_an_answer_is_an_eighth_of_the_tasks_memory_at_most() -> None:
    client = ScriptedClient(log_of(plain(0)))
    assert offsets_of(client, 0, 5, replace(OPTIONS, task_bytes_max=16 * MIB)) == list(range(5))
    assert client.asked[0]["max_bytes"] == 2 * MIB


def test_markers_are_never_rows() -> None:
    log = log_of(transactional(0), marker(5, commit=True), plain(6))
    for options in (OPTIONS, COMMITTED):
        assert offsets_of(ScriptedClient(log), 0, 11, options) == [*range(5), *range(6, 11)]


@pytest.mark.parametrize("batches_max", [1, 2, 100])
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
    client = ScriptedClient(log, aborted=[(PRODUCER, 0)])
    client.batches_max = batches_max
    kept = [*range(5, 15), *range(21, 26)]

    assert offsets_of(AbortsByAnswer(client), 0, 28, COMMITTED) == kept
    assert offsets_of(client, 0, 28, OPTIONS) == [*range(20), *range(21, 26)]


class AbortsByAnswer(ScriptedClient):
    """As a broker: an answer names the aborts that touch it, and no others. PRODUCER's first one ends at offset 20."""

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__(client.batches, client.aborted)
        self.batches_max = client.batches_max

    def fetch(self, topic: str, partition: int, offset: int, **wanted: Any) -> FetchedRecords:
        answer = super().fetch(topic, partition, offset, **wanted)
        return replace(answer, aborted=answer.aborted if offset <= 20 else ())


def test_a_commit_does_not_end_another_producers_abort() -> None:
    log = log_of(transactional(0), marker(5, OTHER, commit=True), transactional(6), marker(11), plain(12))
    assert offsets_of(ScriptedClient(log, [(PRODUCER, 0)]), 0, 17, COMMITTED) == list(range(12, 17))


@pytest.mark.parametrize("log", [[], log_of(plain(0))], ids=["nothing", "older records"])
def test_a_broker_that_gives_nothing_is_given_up(log: list[tuple[int, bytes]]) -> None:
    client = ScriptedClient(log)
    with pytest.raises(TailUnreadableError, match=r"orders-3 through Kafka: no records from offset 5 on, up to 9"):
        offsets_of(client, 5, 10)
    assert len(client.asked) == EMPTY_ANSWERS_MAX


def test_a_broker_that_repeats_itself_is_given_up() -> None:
    client = ScriptedClient([(100, data_batch(0, record_count=5))])
    with pytest.raises(TailUnreadableError):
        offsets_of(client, 5, 10)


@pytest.mark.parametrize("at", [30, -1])
def test_a_flipped_bit_fails_the_task_with_partition_and_position(at: int) -> None:
    damaged = bytearray(data_batch(5, record_count=5))
    damaged[at] ^= 1
    position = len(data_batch(0, record_count=5))
    client = ScriptedClient([*log_of(plain(0)), (9, bytes(damaged))])
    with pytest.raises(CorruptObjectError, match=rf"orders-3 through Kafka: batch at {position}"):
        offsets_of(client, 0, 10)
