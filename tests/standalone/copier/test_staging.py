"""Staged segments: where they end, and what they begin with. That they are Kafka's own, byte for byte: see all."""

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from protocol.record_batches import BatchHeader, CorruptBatchError, read_header
from standalone.copier.kept_logs import KeptLogs
from standalone.copier.producers import ProducerStates
from standalone.copier.staging import PartitionStaging, PartitionState, RollLimits, StagedSegment, UncopyableBatchError
from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex
from storage.log.transaction_marker import read_transaction_marker
from tests.support.for_each import for_each
from tests.support.rebuilt_segments import producer_states, transaction_index
from tests.support.segments import FIRST_TIMESTAMP_MS, ProducerFields, control_batch, data_batch

NOW_MS = FIRST_TIMESTAMP_MS + 1_000_000
Stage = Callable[[Path, RollLimits, PartitionState], PartitionStaging]


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Makes stagings and discards them."""
    with ExitStack() as stack:

        def make(folder: Path, limits: RollLimits, state: PartitionState) -> PartitionStaging:
            staging = PartitionStaging(folder, limits, state)
            stack.callback(staging.discard)
            return staging

        yield make


class RandomLog:
    """A log as brokers write one: plain, idempotent and transactional producers, and now and then a new epoch."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._offset = self._random.choice([0, 7, 2**40])
        self.start_offset = self._offset
        self._leader_epoch = 0
        self._sequences: dict[int, int] = {}
        self._producer_epochs: dict[int, int] = {}
        self._transactions: set[int] = set()

    def batches(self, count: int) -> bytes:
        return b"".join(self.each(count))

    def each(self, count: int) -> list[bytes]:
        return [self._batch() for _ in range(count)]

    def _batch(self) -> bytes:
        if self._random.random() < 0.02:
            self._leader_epoch += self._random.choice([1, 2])
        producer_id = self._random.choice([-1, -1, 1, 2, 3, 4])
        at, epoch = self._offset, self._producer_epochs.setdefault(producer_id, 0)
        is_transactional = producer_id >= 3
        if is_transactional and self._random.random() < 0.3:
            self._offset += 1
            if producer_id not in self._transactions and self._random.random() < 0.5:
                epoch = self._producer_epochs[producer_id] = epoch + 1  # a marker of a new epoch, with nothing to end
                self._sequences.pop(producer_id, None)
            self._transactions.discard(producer_id)
            return control_batch(
                at,
                producer_id=producer_id,
                producer_epoch=epoch,
                commit=self._random.random() < 0.5,
                leader_epoch=self._leader_epoch,
            )
        if is_transactional:
            self._transactions.add(producer_id)
        count = self._random.choice([1, 1, 3, 20])
        sequence = self._sequences.get(producer_id, self._random.choice([0, 2**31 - 5]))
        self._sequences[producer_id] = (sequence + count) % 2**31
        self._offset += count
        return data_batch(
            at,
            record_count=count,
            value_bytes=self._random.choice([0, 50, 700]),
            leader_epoch=self._leader_epoch,
            first_timestamp_ms=FIRST_TIMESTAMP_MS + at % 10**6 + self._random.choice([0, 0, -60_000, 60_000]),
            producer=ProducerFields()
            if producer_id < 0
            else ProducerFields(producer_id, epoch, sequence, transactional=is_transactional),
        )


def test_copying_goes_on_from_the_last_snapshot_as_if_it_had_never_stopped(stage: Stage, tmp_path: Path) -> None:
    log = RandomLog(1)
    limits = RollLimits(segment_bytes=60_000)
    data = log.batches(800)
    whole = stage(tmp_path / "whole", limits, PartitionState(next_offset=log.start_offset))
    expected = whole.take(data, now_ms=NOW_MS)
    resumed = PartitionState(
        next_offset=expected[2].end_offset + 1,
        lineage=list(parse_leader_epochs(expected[2].files.leader_epoch_index)),
        producers=ProducerStates(producer_states(expected[2])),
    )
    again = stage(tmp_path / "again", limits, resumed)
    assert [_contents(each) for each in again.take(data, now_ms=NOW_MS)] == [_contents(each) for each in expected[3:]]


def test_batches_arrive_in_any_pieces(stage: Stage, tmp_path: Path) -> None:
    log = RandomLog(2)
    data = log.batches(300)
    limits = RollLimits(segment_bytes=60_000)
    whole = stage(tmp_path / "whole", limits, PartitionState(next_offset=log.start_offset))
    expected = [_contents(each) for each in whole.take(data, now_ms=NOW_MS)]
    pieces = stage(tmp_path / "pieces", limits, PartitionState(next_offset=log.start_offset))
    got = []
    position = 0
    while position < len(data):
        before = pieces.staged_bytes
        finished = pieces.take(data[position : position + 17_000], now_ms=NOW_MS)
        got += [_contents(each) for each in finished]
        position += pieces.staged_bytes - before + sum(each.size_bytes for each in finished)
    assert got == expected
    assert pieces.next_offset == whole.next_offset


SECOND_BATCHES = {
    "fits": (100, 0, False),
    "too large": (5_000, 0, True),
    "as new as allowed": (100, 60_000, False),
    "too new": (100, 60_001, True),
    "older": (100, -60_001, False),
}


@for_each("name", SECOND_BATCHES)
def test_a_segment_ends_where_kafka_would_end_it(stage: Stage, tmp_path: Path, name: str) -> None:
    value_bytes, later_ms, rolls = SECOND_BATCHES[name]
    limits = RollLimits(segment_bytes=4_000, segment_ms=60_000)
    staging = stage(tmp_path / name, limits, PartitionState(next_offset=0))
    staging.take(data_batch(0, first_timestamp_ms=FIRST_TIMESTAMP_MS), now_ms=NOW_MS)
    second = data_batch(1, value_bytes=value_bytes, first_timestamp_ms=FIRST_TIMESTAMP_MS + later_ms)
    assert bool(staging.take(second, now_ms=FIRST_TIMESTAMP_MS + 60_001)) is rolls


def test_old_records_are_caught_up_with_by_the_day(stage: Stage, tmp_path: Path) -> None:
    """Failed before: a year of a quiet topic became thousands of segments, each with a few records."""
    day_ms, hour_ms = 86_400_000, 3_600_000
    staging = stage(tmp_path, RollLimits(segment_ms=hour_ms), PartitionState(next_offset=0))
    now_ms = FIRST_TIMESTAMP_MS + 10 * day_ms
    ended = []
    for number in range(10 * 24 + 1):
        at_ms = FIRST_TIMESTAMP_MS + number * hour_ms
        ended += staging.take(data_batch(number, first_timestamp_ms=at_ms), now_ms=now_ms)
    spans = [each.end_offset - each.start_offset for each in ended]
    # The last hour's are waited for: what is old ends with them, and from there on an hour is a segment again.
    assert spans == [24] * 9 + [13]
    (last,) = staging.take(data_batch(10 * 24 + 1, first_timestamp_ms=now_ms + 1), now_ms=now_ms + 1)
    assert (last.start_offset, last.end_offset) == (10 * 24 - 1, 10 * 24)


def test_a_segment_ends_before_an_offset_that_its_index_cannot_hold(stage: Stage, tmp_path: Path) -> None:
    far = partial(data_batch, first_timestamp_ms=FIRST_TIMESTAMP_MS)
    staging = stage(tmp_path, RollLimits(), PartitionState(next_offset=5))
    assert staging.take(data_batch(5) + far(5 + 2**31 - 1), now_ms=NOW_MS) == []
    (first,) = staging.take(far(5 + 2**31), now_ms=NOW_MS)
    assert (first.start_offset, first.end_offset) == (5, 5 + 2**31 - 1)


def test_a_quiet_partition_is_rolled_by_the_clock(stage: Stage, tmp_path: Path) -> None:
    staging = stage(tmp_path, RollLimits(segment_ms=60_000), PartitionState(next_offset=0))
    assert staging.roll_if_due(now_ms=NOW_MS) == []
    staging.take(data_batch(0), now_ms=NOW_MS)
    assert staging.roll_if_due(now_ms=NOW_MS + 59_999) == []
    (only,) = staging.roll_if_due(now_ms=NOW_MS + 60_000)
    assert (only.start_offset, only.end_offset, only.max_timestamp_ms) == (0, 0, FIRST_TIMESTAMP_MS)
    assert staging.roll_if_due(now_ms=NOW_MS + 10**9) == []


def test_the_epochs_of_a_segment_begin_with_the_one_that_holds_its_start(stage: Stage, tmp_path: Path) -> None:
    staging = stage(tmp_path, RollLimits(segment_bytes=1), PartitionState(next_offset=10, lineage=[(0, 0), (3, 8)]))
    batches = [data_batch(10, record_count=2, leader_epoch=3), data_batch(12, leader_epoch=5), data_batch(13)]
    first, second = staging.take(b"".join(batches), now_ms=NOW_MS)
    assert first.segment_leader_epochs == {3: 10}
    assert second.segment_leader_epochs == {5: 12}
    assert second.files.leader_epoch_index == b"0\n3\n0 0\n3 8\n5 12\n"


SECOND = data_batch(1)


@for_each(
    "damaged, error, message",
    [
        (SECOND[:16] + b"\x01" + SECOND[17:], UncopyableBatchError, "format version 1"),
        (SECOND[:16] + b"\x07" + SECOND[17:], UncopyableBatchError, "magic 7"),
        (SECOND[:8] + struct.pack(">i", 3) + SECOND[12:], UncopyableBatchError, "3"),
        (SECOND[:-1] + b"!", CorruptBatchError, "offset 1: its CRC is wrong"),
    ],
)
def test_what_is_before_a_bad_batch_is_kept(
    stage: Stage, tmp_path: Path, damaged: bytes, error: type[Exception], message: str
) -> None:
    staging = stage(tmp_path / message[:5], RollLimits(), PartitionState(next_offset=0))
    with pytest.raises(error, match=message):
        staging.take(data_batch(0) + damaged, now_ms=NOW_MS)
    assert staging.next_offset == 1
    staging.take(data_batch(1), now_ms=NOW_MS)
    assert staging.next_offset == 2


def test_logs_that_an_earlier_process_left_are_kept_and_all_else_is_removed(stage: Stage, tmp_path: Path) -> None:
    for name in ("00000000000000000000.index", "00000000000000000009.snapshot", "00000000000000000002.log"):
        (tmp_path / name).write_bytes(b"left")
    batches = [data_batch(offset, value_bytes=100) for offset in range(3, 9)]
    (tmp_path / "00000000000000000003.log").write_bytes(b"".join(batches) + batches[0][:70])
    (tmp_path / "00000000000000000003.kept").write_bytes(b"".join(batches[:2]))
    staging = stage(tmp_path, RollLimits(segment_bytes=1), PartitionState(next_offset=1))
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000003.kept"]
    kept = staging.kept
    assert [kept.first_from(offset) for offset in (0, 3, 5, 8, 9)] == [3, 3, 5, 8, None]
    assert kept.read(5, 1) == batches[2]
    assert kept.read(3, 10**6).startswith(b"".join(batches))
    kept.drop_below(8)
    assert kept.first_from(0) == 3
    kept.drop_below(9)
    assert (kept.first_from(0), list(tmp_path.iterdir())) == (None, [])


def test_what_is_staged_is_discarded_as_a_whole(stage: Stage, tmp_path: Path) -> None:
    staging = stage(tmp_path, RollLimits(segment_bytes=1), PartitionState(next_offset=0))
    (first,) = staging.take(data_batch(0) + data_batch(1), now_ms=NOW_MS)
    first.check()
    first.discard()
    first.discard()
    with pytest.raises(FileNotFoundError):
        first.check()
    staging.discard()
    assert list(tmp_path.iterdir()) == []


@for_each("damage", ["removed", "cut"])
def test_a_file_that_is_not_as_it_was_written_is_an_error_of_the_folder(
    stage: Stage, tmp_path: Path, damage: str
) -> None:
    """Failed before: the file was made again without its first batches, and the partition stood still."""
    folder = tmp_path / damage
    staging = stage(folder, RollLimits(), PartitionState(next_offset=0))
    staging.take(data_batch(0), now_ms=NOW_MS)
    (path,) = folder.iterdir()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(b"short")
    with pytest.raises(OSError, match=r"No such file|not as it was written"):
        staging.take(data_batch(1), now_ms=NOW_MS)


def test_a_silent_producer_is_forgotten_unless_its_transaction_is_open(stage: Stage, tmp_path: Path) -> None:
    staging = stage(tmp_path, RollLimits(segment_bytes=1), PartitionState(next_offset=0))
    idle = data_batch(0, producer=ProducerFields(1, 0, 0))
    open_one = data_batch(1, producer=ProducerFields(2, 0, 0, transactional=True))
    staged = staging.take(idle + open_one + data_batch(2), now_ms=FIRST_TIMESTAMP_MS + 86_400_000)
    assert [state.producer_id for state in producer_states(staged[-1])] == [2]


def test_an_abort_names_the_oldest_transaction_that_is_still_open(stage: Stage, tmp_path: Path) -> None:
    staging = stage(tmp_path, RollLimits(segment_bytes=1000), PartitionState(next_offset=0))
    batches = [
        data_batch(0, producer=ProducerFields(1, 0, 0, transactional=True)),
        data_batch(1, producer=ProducerFields(2, 0, 0, transactional=True)),
        control_batch(2, producer_id=2),
        control_batch(3, producer_id=1),
        control_batch(4, producer_id=1),
        data_batch(5, value_bytes=2000),
    ]
    (first,) = staging.take(b"".join(batches), now_ms=NOW_MS)
    assert list(TransactionIndex(transaction_index(first))) == [
        AbortedTransaction(2, 1, 2, 0),
        AbortedTransaction(1, 0, 3, 4),
    ]


@for_each("seed", range(20))
def test_a_snapshot_has_those_as_open_that_were_aborted_later(stage: Stage, tmp_path: Path, seed: int) -> None:
    """Upstream lists with its batches which transactions were aborted, also those whose marker comes later. Copying
    begins at the log's start, or within transactions."""
    chance, batches = random.Random(seed), RandomLog(seed).each(300)
    ended, stable_end = _transactions(batches)
    headers = [header for header in map(_header, batches) if header.base_offset < stable_end]
    at = chance.choice([0, len(headers) // 3])
    start = headers[at].base_offset
    limits = RollLimits(segment_bytes=chance.choice([500, 5000, 60_000]))
    staging = stage(tmp_path / str(seed), limits, PartitionState(next_offset=start))
    segments: list[StagedSegment] = []
    while at < len(headers):
        until = min(at + chance.randrange(1, 40), len(headers))
        first, end = headers[at].base_offset, headers[until - 1].last_offset + 1
        listed = [(each.producer_id, each.first_offset) for each in ended if each.touches(first, end) and each.is_abort]
        segments += staging.take(b"".join(batches[at:until]), now_ms=NOW_MS, aborted=listed)
        at = until
    for segment in [*segments, *staging.roll(now_ms=NOW_MS)]:
        end = segment.end_offset + 1
        wrote = {each.producer_id: each.base_offset for each in headers if start <= each.base_offset < end}
        expected = {
            each.producer_id
            for each in ended
            if each.is_abort and each.first_offset < end <= each.marker_offset
            if wrote.get(each.producer_id, -1) >= each.first_offset
        }
        opened = [each for each in producer_states(segment) if each.current_transaction_first_offset >= 0]
        assert {each.producer_id for each in opened} == expected


@dataclass(frozen=True)
class Ended:
    """A transaction that has ended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    is_abort: bool

    def touches(self, start: int, end: int) -> bool:
        return self.first_offset < end and self.marker_offset >= start


def _transactions(batches: Sequence[bytes]) -> tuple[list[Ended], int]:
    """Those of a log that have ended, and the last stable offset."""
    opened: dict[int, int] = {}
    ended = []
    for batch in batches:
        header = _header(batch)
        marker = read_transaction_marker(header, memoryview(batch))
        if marker is not None and header.producer_id in opened:
            first_offset = opened.pop(header.producer_id)
            ended.append(Ended(header.producer_id, first_offset, header.base_offset, marker.is_abort))
        elif marker is None and header.is_transactional:
            opened.setdefault(header.producer_id, header.base_offset)
    return ended, min(opened.values(), default=_header(batches[-1]).last_offset + 1)


def _header(batch: bytes) -> BatchHeader:
    return read_header(batch, 0)


def test_an_index_that_is_full_ends_its_segment(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.indexes.sparse_indexes.INDEX_BYTES_MAX", 24)
    staging = stage(tmp_path, RollLimits(index_interval_bytes=0), PartitionState(next_offset=0))
    first, *_ = staging.take(b"".join(data_batch(offset) for offset in range(5)), now_ms=NOW_MS)
    assert (first.start_offset, first.end_offset) == (0, 1)
    assert len(OffsetIndex(first.files.offset_index.read_bytes(), 0)) == 1


def _contents(segment: StagedSegment) -> tuple[object, ...]:
    files = segment.files
    paths = (files.log_segment, files.offset_index, files.time_index)
    return (
        *((path.name, path.read_bytes()) for path in paths),
        files.leader_epoch_index,
        transaction_index(segment),
        producer_states(segment),
        segment.segment_leader_epochs,
        segment.max_timestamp_ms,
    )


def test_how_transactions_ended_is_known_of_kept_logs_too(stage: Stage, tmp_path: Path) -> None:
    first = stage(tmp_path, RollLimits(), PartitionState(next_offset=0))
    open_ones = [data_batch(at, producer=ProducerFields(at + 1, 0, 0, transactional=True)) for at in range(2)]
    first.take(b"".join(open_ones), now_ms=NOW_MS, aborted=[(2, 1)])
    (tmp_path / f"{1:020}.aborted").write_bytes(b"[[2,")  # another process was killed while it wrote
    again = stage(tmp_path, RollLimits(), PartitionState(next_offset=0))
    assert again.kept.aborted == [(2, 1)]
    (tmp_path / f"{0:020}.aborted").write_bytes(b"")
    assert KeptLogs(tmp_path).aborted == []
    again.take(again.kept.read(0, 10**6), now_ms=NOW_MS, aborted=again.kept.aborted)
    (segment,) = again.roll(now_ms=NOW_MS)
    assert segment.files.producer_snapshot_index is not None
    states = parse_producer_snapshot(segment.files.producer_snapshot_index.read_bytes())
    assert [(each.producer_id, each.current_transaction_first_offset) for each in states] == [(1, -1), (2, 1)]
