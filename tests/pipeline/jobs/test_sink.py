"""A run of a backfill and its steps: each offset is in just one, and a file gives the same back."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs.sink import OffsetRange, Run, RunState, in_order, steps

RANGES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10**9), st.integers(0, 500)), max_size=6).map(
    lambda found: in_order(
        [OffsetRange(topic, number, start, start + count) for number, (topic, start, count) in enumerate(found)]
    )
)


def run_of(*ranges: OffsetRange, steps_count: int = 3) -> Run:
    topics = {each.topic: f"id-{each.topic}" for each in ranges}
    return Run(number=2, topics=topics, ranges=ranges, steps_count=steps_count, options={"source": "tidegate"})


@given(RANGES, st.integers(1, 700))
def test_every_offset_is_in_one_step(ranges: tuple[OffsetRange, ...], steps_count: int) -> None:
    run = run_of(*ranges, steps_count=steps_count)
    made = steps(run)
    for whole in ranges:
        parts = [part for step in made for part in step.ranges if part.partition == whole.partition]
        offsets = [offset for part in parts for offset in range(part.start, part.end)]
        assert offsets == list(range(whole.start, whole.end))
    assert all(step.offsets for step in made)
    assert len({step.number for step in made}) == len(made) <= steps_count
    assert sum(step.offsets for step in made) == run.offsets
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_a_state_knows_what_is_left_and_where_partitions_ended() -> None:
    state = RunState(run_of(OffsetRange("a", 0, 100, 400), OffsetRange("a", 1, 7, 7)), {1: {}})
    assert [step.number for step in state.left] == [0, 2]
    assert state.ends == {"a": {0: 400, 1: 7}}
