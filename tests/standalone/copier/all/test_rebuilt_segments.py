"""Batches, usual and of every odd kind, staged: the files are those that Kafka's own recovery makes of the same log.

Logs of a real broker are in tests/integration/test_copied_bytes.py.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from standalone.copier.staging import PartitionStaging, PartitionState, RollLimits, StagedSegment
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import NO_TIMESTAMP_MS
from tests.standalone.copier.test_staging import RandomLog
from tests.support.cases import case
from tests.support.for_each import for_each
from tests.support.oracle import Oracle
from tests.support.rebuilt_segments import KafkaRebuild, transaction_index
from tests.support.segments import FIRST_TIMESTAMP_MS, ProducerFields, Record, control_batch, data_batch

NOW_MS = FIRST_TIMESTAMP_MS + 1_000_000
COUNT = 120
SEGMENT_BYTES = 12_000
LAST = data_batch(COUNT, value_bytes=SEGMENT_BYTES)
"""Ends the segment before it."""

_batch = partial(data_batch, value_bytes=600)


def _batches(make: Callable[[int], bytes]) -> list[bytes]:
    return [make(number) for number in range(COUNT)]


def _with_timestamps(timestamp_ms: Callable[[int], int], *, is_append_time: bool = False) -> list[bytes]:
    return _batches(
        lambda offset: _batch(offset, first_timestamp_ms=timestamp_ms(offset), is_append_time=is_append_time)
    )


def _transactions() -> list[bytes]:
    """Three producers whose transactions overlap and end segments later, in turn by an abort and by a commit."""
    found: list[bytes] = []
    for round_number in range(12):
        offset = len(found)
        found += [
            _batch(offset + number, producer=ProducerFields(1 + number % 3, 0, 4 * round_number + number // 3, True))
            for number in range(12)
        ]
        found += [
            control_batch(offset + 12 + number, producer_id=1 + number, commit=(round_number + number) % 3 == 0)
            for number in range(3)
            if (round_number + number) % 4
        ]
    return found


LOGS: dict[str, Sequence[bytes]] = {
    "no timestamps": _with_timestamps(lambda _: NO_TIMESTAMP_MS),
    "timestamps here and there": _with_timestamps(lambda at: NO_TIMESTAMP_MS if at % 3 else FIRST_TIMESTAMP_MS + at),
    "none at first": _with_timestamps(lambda at: FIRST_TIMESTAMP_MS + at if at > COUNT // 2 else NO_TIMESTAMP_MS),
    "LogAppendTime": _with_timestamps(lambda at: FIRST_TIMESTAMP_MS + at // 9, is_append_time=True),
    "one timestamp": _with_timestamps(lambda _: FIRST_TIMESTAMP_MS),
    "older and older": _with_timestamps(lambda at: FIRST_TIMESTAMP_MS - at),
    "zero": _with_timestamps(lambda _: 0),
    "batches larger than the index interval": _batches(lambda at: data_batch(at, value_bytes=5000)),
    "batches larger than a segment": _batches(lambda at: data_batch(at, value_bytes=SEGMENT_BYTES)),
    "holes": _batches(lambda at: _batch(at * 1000, last_offset_delta=at % 7)),
    "batches without records": _batches(
        lambda at: _batch(at * 3, records=[] if at % 2 else None, last_offset_delta=2, first_timestamp_ms=at)
    ),
    "offsets as far apart as an index can tell": _batches(lambda at: _batch(at * (2**31 - 1))),
    "an epoch a batch": _batches(lambda at: _batch(at, leader_epoch=2 * at)),
    "epochs not told": _batches(lambda at: _batch(at, leader_epoch=-1 if at % 2 else at // 10)),
    "older epochs later": _batches(lambda at: _batch(at, leader_epoch=[5, 3, 5, 7][at * 4 // COUNT])),
    "transactions over segments": _transactions(),
}


def test_odd_batches_are_indexed_as_kafka_does(oracle: Oracle, tmp_path: Path) -> None:
    for name, log in LOGS.items():
        staged = _staged(tmp_path / name, log, RollLimits(segment_bytes=SEGMENT_BYTES))
        assert len(staged) > 2, name
        rebuild = KafkaRebuild(oracle, tmp_path / name / "kafkas")
        assert [rebuild.differences(segment) for segment in staged] == [{}] * len(staged), name


def test_random_logs_are_byte_for_byte_what_kafka_rebuilds(oracle: Oracle, tmp_path: Path) -> None:
    for seed in range(4):
        folder, log = tmp_path / str(seed), RandomLog(seed)
        limits, data = RollLimits(segment_bytes=60_000), log.batches(800)
        state = PartitionState(next_offset=log.start_offset)
        with case(seed):
            staging = PartitionStaging(folder / "ours", limits, state)
            staged = staging.take(data, now_ms=NOW_MS)
            assert len(staged) > 4
            rebuild = KafkaRebuild(oracle, folder / "kafkas")
            assert [rebuild.differences(segment) for segment in staged] == [{}] * len(staged)
            assert any(transaction_index(segment) for segment in staged)
            whole = b"".join(segment.files.log_segment.read_bytes() for segment in staged)
            assert whole == data[: -staging.staged_bytes]


def test_aborts_are_in_the_segment_of_their_marker(tmp_path: Path) -> None:
    staged = _staged(tmp_path, LOGS["transactions over segments"], RollLimits(segment_bytes=SEGMENT_BYTES))
    assert sum(bool(transaction_index(segment)) for segment in staged) > 3


@for_each("number, batches, short_by_bytes", [(at, *each) for at, each in enumerate(product((1, 5), (-1, 0, 1)))])
def test_an_entry_is_due_behind_the_interval_to_the_byte(
    oracle: Oracle, tmp_path: Path, number: int, batches: int, short_by_bytes: int
) -> None:
    folder = tmp_path / str(number)
    log = [data_batch(offset, records=[Record(value=b"of one size")]) for offset in range(COUNT)]
    interval_bytes = batches * len(log[0]) - short_by_bytes
    staged = _staged(folder, [*log, LAST], RollLimits(segment_bytes=SEGMENT_BYTES, index_interval_bytes=interval_bytes))
    rebuild = KafkaRebuild(oracle, folder / "kafkas", index_interval_bytes=interval_bytes)
    assert [rebuild.differences(segment) for segment in staged] == [{}]
    every = batches if short_by_bytes == 1 else batches + 1
    assert len(OffsetIndex(staged[0].files.offset_index.read_bytes(), 0)) == (COUNT - 1) // every


def _staged(folder: Path, log: Sequence[bytes], limits: RollLimits) -> list[StagedSegment]:
    staging = PartitionStaging(folder / "ours", limits, PartitionState(next_offset=0))
    return staging.take(b"".join(log), now_ms=NOW_MS)
