"""A read that ends at a time: which part of the log is planned, and that no wanted row is outside of it."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.model import IndexType
from table.planning.partition_view import PartitionView, ServedSegment, WantedOffsets
from table.planning.time_bounds import ended_by_time
from tests.support.for_each import for_each
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import (
    SyntheticSegment,
    build_segment,
    control_batch,
    data_batch,
    object_path,
    publish,
    topic_partition,
)

PARTITION = topic_partition()
HOUR_MS = 3_600_000
A_DAY = [hour * HOUR_MS for hour in range(24)]
BATCHES = 10
HALF_PAST_TEN_MS = 10 * HOUR_MS + HOUR_MS // 2
"""Offset 105."""


def segment_of(
    first_offset: int, times: Sequence[int], *, is_append_time: bool = False, interval_bytes: int = 0
) -> SyntheticSegment:
    """A batch of one record for each time; the indexes have them all."""
    return build_segment(
        [
            data_batch(first_offset + at, first_timestamp_ms=time_ms, value_bytes=3000, is_append_time=is_append_time)
            for at, time_ms in enumerate(times)
        ],
        interval_bytes=interval_bytes,
    )


def a_day(*, append_time_from: int = 24) -> list[SyntheticSegment]:
    """A segment an hour, of ten records that are six minutes apart; from an hour on, the times are of brokers."""
    return [
        segment_of(
            hour * BATCHES,
            [begun_ms + at * HOUR_MS // BATCHES for at in range(BATCHES)],
            is_append_time=hour >= append_time_from,
        )
        for hour, begun_ms in enumerate(A_DAY)
    ]


class Tier:
    """These segments, and ten offsets behind them that are not in the tier."""

    def __init__(self, folder: Path, segments: Sequence[SyntheticSegment]) -> None:
        self.folder = folder
        self.store = ScriptedStore(LocalTieredStorage({"dir": str(folder)}))
        self.served = tuple(
            ServedSegment(publish(folder, PARTITION, each), each.base_offset, each.end_offset + 1) for each in segments
        )
        self.end = self.served[-1].end_offset + 10
        self.view = PartitionView(partition=PARTITION, log_start_offset=0, end_offset=self.end, segments=self.served)

    def ends(self, timestamp_max_ms: int | None, disorder_ms: int | None, first_offset: int = 0) -> tuple[int, int]:
        """Return where the tier's part of the read ends, and all of it."""
        whole = WantedOffsets(
            view=self.view, first_offset=first_offset, tier_end_offset=self.view.tier_end_offset, end_offset=self.end
        )
        (want,) = ended_by_time([whole], self.store, timestamp_max_ms=timestamp_max_ms, disorder_ms=disorder_ms)
        assert want.first_offset == first_offset
        return want.tier_end_offset, want.end_offset


@for_each(
    "timestamp_max_ms, disorder_ms, expected",
    [
        # Behind the first record that is newer.
        (HALF_PAST_TEN_MS - 1, 0, (106, 106)),
        (HALF_PAST_TEN_MS, 0, (107, 107)),
        (HALF_PAST_TEN_MS - 1, HOUR_MS, (116, 116)),
        (0, 0, (2, 2)),
        (24 * HOUR_MS, 0, (240, 250)),
        (24 * HOUR_MS - 1, HOUR_MS, (240, 250)),
        (None, 0, (240, 250)),
        # Nobody has said that producers' times are in order.
        (10 * HOUR_MS, None, (240, 250)),
    ],
)
def test_a_declared_disorder_ends_the_read_behind_the_first_newer_record(
    tmp_path: Path, timestamp_max_ms: int | None, disorder_ms: int | None, expected: tuple[int, int]
) -> None:
    """The first hour of a day cost the day."""
    tier = Tier(tmp_path, a_day())
    assert tier.ends(timestamp_max_ms, disorder_ms) == expected
    assert all(call.index_type in (None, IndexType.OFFSET, IndexType.TIMESTAMP) for call in tier.store.calls)
    assert len({call.segment_id for call in tier.store.calls}) <= 1, "one segment is asked"


def test_times_of_brokers_alone_end_nothing(tmp_path: Path) -> None:
    """Failed before: an old record was lost. A topic can leave LogAppendTime at any time and come back to it, so that
    batches of brokers' times say nothing of those between and behind them."""
    segments = a_day(append_time_from=0)
    segments[15] = segment_of(150, [2 * HOUR_MS] * (BATCHES - 1) + [15 * HOUR_MS])
    tier = Tier(tmp_path, segments)
    assert tier.ends(HALF_PAST_TEN_MS, None) == (240, 250)
    assert not tier.store.calls


def test_segments_that_deny_the_declared_order_end_nothing_and_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segments = a_day()
    segments[20] = segment_of(200, [2 * HOUR_MS] * BATCHES)
    tier = Tier(tmp_path, segments)
    assert tier.ends(10 * HOUR_MS, HOUR_MS) == (240, 250)
    assert "timestamps_not_in_order" in capsys.readouterr().out
    assert tier.ends(10 * HOUR_MS, 18 * HOUR_MS)[0] == 240
    assert "timestamps_not_in_order" not in capsys.readouterr().out


def test_markers_have_the_brokers_clock_and_end_no_read_of_producers_times(tmp_path: Path) -> None:
    """Given records an hour behind the clock in transactions, when a read ends at a time, then what comes behind a
    marker that is newer is still read."""
    marked = [
        data_batch(0, first_timestamp_ms=0),
        control_batch(1, producer_id=7, commit=True, timestamp_ms=HOUR_MS),
        data_batch(2, first_timestamp_ms=1000),
        data_batch(3, first_timestamp_ms=20_000),
        data_batch(4, first_timestamp_ms=2000),
    ]
    tier = Tier(tmp_path / "a", [build_segment(marked)])
    assert tier.ends(1000, 5000) == (4, 4)
    assert tier.ends(1000, 50_000) == (5, 15)


def test_ranges_of_a_partition_have_one_end_which_is_looked_up_once(tmp_path: Path) -> None:
    tier = Tier(tmp_path, a_day())
    ranges = [
        WantedOffsets(view=tier.view, first_offset=first, tier_end_offset=first + 20, end_offset=first + 20)
        for first in (0, 95, 120, 200)
    ]
    ended = ended_by_time(ranges, tier.store, timestamp_max_ms=HALF_PAST_TEN_MS, disorder_ms=0)
    assert [(want.first_offset, want.tier_end_offset, want.end_offset) for want in ended] == [
        (0, 20, 20),
        (95, 107, 107),
    ]
    assert len([call for call in tier.store.calls if call.index_type is IndexType.TIMESTAMP]) == 1


@for_each("suffix", ["index", "timeindex", "log"])
def test_objects_that_are_missing_or_corrupt_end_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    for spoil in (Path.unlink, lambda path: path.write_bytes(b"\xff" * 41)):
        tier = Tier(tmp_path / f"{suffix}-{spoil.__name__}", a_day())
        spoil(object_path(tier.folder, tier.served[10].segment, suffix))
        assert tier.ends(10 * HOUR_MS, 0) == (240, 250)
        assert "time_range_not_ended" in capsys.readouterr().out


def test_only_what_is_served_and_wanted_counts(tmp_path: Path) -> None:
    tier = Tier(tmp_path, a_day())
    assert tier.ends(10 * HOUR_MS - 1, 0, first_offset=155) == (156, 156)
    assert tier.ends(10 * HOUR_MS - 1, 0, first_offset=240) == (240, 250)


@given(st.integers(0, 2**32), st.integers(0, 3000), st.integers(0, 2_000), st.sampled_from([0, 10_000]))
def test_no_wanted_row_is_behind_the_end(
    tmp_path_factory: pytest.TempPathFactory, seed: int, timestamp_max_ms: int, disorder_ms: int, interval: int
) -> None:
    """Given times that go back by the disorder at most, in segments of any length, then what is cut off is newer."""
    chance = random.Random(seed)
    newest_ms, times = 0, []
    for _ in range(40):
        newest_ms += chance.randrange(150)
        times.append(max(0, newest_ms - chance.randrange(disorder_ms + 1)))
        newest_ms = max(times)
    cuts = sorted({0, 40, *chance.sample(range(40), 3)})
    segments = [segment_of(low, times[low:high], interval_bytes=interval) for low, high in pairwise(cuts)]
    tier = Tier(tmp_path_factory.mktemp("tier"), segments)
    end, _ = tier.ends(timestamp_max_ms, disorder_ms)
    assert all(time_ms > timestamp_max_ms for time_ms in times[end:])
    newer = [at for at, time_ms in enumerate(times) if time_ms > timestamp_max_ms + disorder_ms]
    first = newer[0] + 1 if newer else 40
    assert first <= end <= first + interval // 3000 + 1
