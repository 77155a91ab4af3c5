"""Steps of a backfill: each offset is in just one, all partitions go on side by side, and files give the same back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs.backfill_plan import OffsetRange, from_json, offsets_json, steps, to_json

RANGES = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 500)), max_size=6).map(
    lambda found: [OffsetRange(number, start, start + count) for number, (start, count) in enumerate(found)]
)


@given(RANGES, st.integers(0, 10**6), st.integers(1, 10**6))
def test_every_offset_is_in_one_step(ranges: list[OffsetRange], bytes_estimated: int, bytes_per_step: int) -> None:
    made = steps(ranges, bytes_estimated=bytes_estimated, bytes_per_step=bytes_per_step)
    for whole in ranges:
        parts = [part for step in made for part in step.ranges if part.partition == whole.partition]
        assert [offset for part in parts for offset in range(part.start, part.end)] == list(
            range(whole.start, whole.end)
        )
    assert all(step.offsets for step in made)
    assert [step.number for step in made] == list(range(len(made)))
    assert from_json(json.loads(json.dumps(to_json(made)))) == made


def test_steps_are_of_the_size_asked_for_and_hold_a_share_of_each_partition() -> None:
    made = steps([OffsetRange(0, 100, 400), OffsetRange(3, 0, 30)], bytes_estimated=2500, bytes_per_step=1000)
    assert [(step.name, step.ranges) for step in made] == [
        ("step-000000", (OffsetRange(0, 100, 200), OffsetRange(3, 0, 10))),
        ("step-000001", (OffsetRange(0, 200, 300), OffsetRange(3, 10, 20))),
        ("step-000002", (OffsetRange(0, 300, 400), OffsetRange(3, 20, 30))),
    ]


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="100000 at most"):
        steps([OffsetRange(0, 0, 10**9)], bytes_estimated=10**9, bytes_per_step=1)


def test_a_plan_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a plan of steps"):
        from_json([[["a", "b"]]] and [[1]])


def test_offsets_are_as_both_sources_take_them() -> None:
    assert offsets_json("orders", {1: 7, 0: 5}) == {"orders": {"0": 5, "1": 7}}
