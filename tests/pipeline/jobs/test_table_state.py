"""What a table's commits and its property say of a backfill, and which of them is to be believed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.jobs.job_context import UsageError
from pipeline.jobs.sink import OffsetRange, Run, steps
from pipeline.jobs.table_state import (
    PROPERTY,
    Commit,
    KeptState,
    StateLostError,
    TableState,
    kept_state,
    newest_state,
    offsets_text,
)
from tests.support.for_each import for_each

TABLE = "4f0a"


def run_of(number: int) -> Run:
    ranges = (OffsetRange("orders", 0, 10 * number, 10 * number + 10),)
    return Run(number=number, topics={"orders": "id"}, ranges=ranges, steps_count=5, options={"it": "is'\\\"so"})


def state_of(number: int, done: Sequence[int], sequence: int) -> TableState:
    return TableState(run=run_of(number), done=frozenset(done), sequence=sequence, writer="w")


def commit(position: int, state: TableState | None = None, *, is_undone: bool = False) -> Commit:
    text = None if state is None else state.to_text(step=1)
    return Commit(position=str(position), state=text, is_first=position == 0, is_undone=is_undone)


def kept(state: TableState, after: int | None, table: str = TABLE) -> KeptState:
    return KeptState(state, table, None if after is None else str(after))


def newest(kept_state: KeptState | None, *commits: Commit) -> TableState:
    return newest_state("lake.orders", TABLE, kept_state, commits)


NOTHING = TableState(run=None)
BEGUN, HALF, FINISHED = state_of(2, (), 5), state_of(2, (0, 1, 4), 8), state_of(1, range(5), 5)


@for_each("state", [NOTHING, BEGUN, HALF, FINISHED])
def test_a_property_gives_the_state_back(state: TableState) -> None:
    assert TableState.from_text(state.to_text(step=1)) == state
    told = KeptState(state, TABLE, "17")
    assert kept_state({PROPERTY: told.to_text()}) == told


def test_nothing_of_ours_is_there() -> None:
    assert newest(None) == NOTHING
    assert newest(None, commit(1), commit(0)) == NOTHING
    assert newest(None, commit(9)) == NOTHING  # older ones are gone, and no property says that any was ours


def test_the_newest_commit_tells_and_a_run_that_has_none_yet_has_begun() -> None:
    older = state_of(2, (0, 1), 7)
    assert newest(kept(BEGUN, 1), commit(5), commit(4, HALF), commit(3, older), commit(1, FINISHED)) == HALF
    assert newest(kept(BEGUN, 3), commit(4), commit(3), commit(2, FINISHED)) == BEGUN
    assert newest(kept(BEGUN, 3), commit(3, FINISHED), commit(2)) == BEGUN
    assert newest(kept(BEGUN, None)) == BEGUN
    assert newest(kept(BEGUN, None), commit(1), commit(0)) == BEGUN


def test_commits_are_forgotten_after_the_run() -> None:
    assert newest(kept(FINISHED, 3), commit(9), commit(8)) == FINISHED


@for_each(
    "known, commits, said",
    [
        (
            kept(BEGUN, 3),
            [commit(9), commit(8)],
            r"lake\.orders: which offsets .* cannot be known: .*--restart --from '\{\"TOPIC\"",
        ),
        (kept(BEGUN, 3), [replace(commit(9), is_lost=True)], "the snapshot that commit 9 was made from has expired"),
        (kept(FINISHED, 3, table="other"), [commit(0)], "is another table's, so it is a copy"),
    ],
)
def test_a_state_is_lost_with_commits_in_the_midst_of_a_run_and_in_a_copy(
    known: KeptState, commits: list[Commit], said: str
) -> None:
    with pytest.raises(StateLostError, match=said):
        newest(known, *commits)


def test_a_rollback_takes_what_its_commits_said() -> None:
    """Given a table that was restored to before its last commits, then older ones tell, and numbers still go up."""
    undone = [commit(6), commit(5, HALF, is_undone=True), commit(4, is_undone=True)]
    assert newest(kept(BEGUN, 4), *undone, commit(3, FINISHED)) == state_of(1, range(5), 8)
    assert newest(kept(BEGUN, 4), *undone, commit(0)) == TableState(run=None, sequence=8)


def test_a_step_adds_to_the_state() -> None:
    step = steps(run_of(2))[3]
    assert HALF.with_step(run_of(2), step, "w") == state_of(2, (0, 1, 3, 4), 9)
    assert FINISHED.with_step(run_of(2), step, "w") == state_of(2, (3,), 6)
    assert offsets_text(steps(run_of(1))[1]) == {"orders": {"0": [12, 14]}}


@for_each(
    "text", ["", "[]", "{}", '{"format":2}', '{"format":1}', '{"format":1,"run":{},"done":"","sequence":1,"writer":""}']
)
def test_what_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not of ours"):
        kept_state({PROPERTY: text})
    with pytest.raises(UsageError, match=r"^lake\.orders: commit 3 has a property tidegate\.backfill not of ours"):
        newest(None, Commit(position="3", state=text))
