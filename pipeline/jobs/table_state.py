"""What a backfill keeps in a table, and how the newest of it is found. Pure.

| where | what | when |
|---|---|---|
| each commit's own properties | run, steps done with this commit, this commit's offsets | with the rows |
| the table's properties | run, steps done, and behind which commit this was written | a run begins, a run ends |

Rules:
1. A commit tells the truth about its rows, because both are one commit. So a commit that can be seen wins over the
   table's property.
2. Commits are forgotten: snapshots expire, logs are cleaned. The property is for that. It is enough when its run was
   finished, or when every commit behind it can be seen and none is ours. In every other case nobody knows which rows
   are there: an error, never a repetition.
3. Only commits that made the table what it is now count. After a rollback the rows of later commits are gone, and so is
   what these said.
4. Commits of ours are numbered (`sequence`), and the table's format takes each number once. Two drivers that know the
   same state take the same number, so one of them fails.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.jobs.job_context import UsageError
from pipeline.jobs.sink import Run, RunState, Step

PROPERTY = "tidegate.backfill"
"""On a commit and on a table. Iceberg's summary, Delta's userMetadata."""

_FORMAT = 1


class StateLostError(UsageError):
    """Rows of a backfill are in the table, and what says which was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """How far a run is. `sequence`: how many commits backfills have made here; `writer` names the driver."""

    run: Run | None
    """None: nothing of a backfill's is there, or it was forgotten on the user's wish."""
    done: frozenset[int] = frozenset()
    sequence: int = 0
    writer: str = ""

    @property
    def is_finished(self) -> bool:
        return self.run is None or not RunState(self.run, {number: {} for number in self.done}).left

    def with_step(self, run: Run, step: Step, writer: str) -> "TableState":
        """The state that this step's commit makes."""
        done = self.done if self.run is not None and self.run.number == run.number else frozenset[int]()
        return replace(self, run=run, done=done | {step.number}, sequence=self.sequence + 1, writer=writer)

    def to_text(self, **more: Any) -> str:
        """As a property's value."""
        run = None if self.run is None else self.run.to_json()
        value = {"format": _FORMAT, "sequence": self.sequence, "writer": self.writer, "done": _spans(self.done)}
        return json.dumps({**value, **more, "run": run}, separators=(",", ":"), ensure_ascii=False)

    @staticmethod
    def from_text(text: str) -> "TableState":
        """Return what `to_text` made.

        Raises:
            ValueError: it did not make this.
        """
        return _state(json.loads(text))


@dataclass(frozen=True, slots=True)
class KeptState:
    """The table's property. `table`: its id when that was written, and `after`: its newest commit then, if any."""

    state: TableState
    table: str
    after: str | None

    def to_text(self) -> str:
        return self.state.to_text(table=self.table, after=self.after)

    @staticmethod
    def from_text(text: str) -> "KeptState":
        """Return what `to_text` made.

        Raises:
            ValueError: it did not make this.
        """
        value = json.loads(text)
        try:
            return KeptState(_state(value), str(value["table"]), value["after"])
        except KeyError as error:
            raise ValueError(f"it has no {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One of the table's commits, as its format tells it."""

    position: str
    state: str | None
    """The commit's property."""
    is_first: bool = False
    """There is none before it."""
    is_undone: bool = False
    """A rollback took its rows away."""
    is_lost: bool = False
    """It is a backfill's, and its property can be seen no more."""


def offsets_text(step: Step) -> dict[str, dict[str, list[int]]]:
    """The offsets of a commit: by topic and partition, from and until."""
    found: dict[str, dict[str, list[int]]] = {}
    for each in step.ranges:
        found.setdefault(each.topic, {})[str(each.partition)] = [each.start, each.end]
    return found


def newest_state(name: str, table: str, kept: KeptState | None, commits: Iterable[Commit]) -> TableState:
    """Return what is in the table; without a run when nothing of a backfill's is.

    Args:
        name: the table's, for messages.
        table: its id now.
        commits: the newest first, as far as they can be seen.

    Raises:
        StateLostError: which rows are there cannot be known.
    """
    if kept is not None and kept.table != table:
        raise _lost(name, "its property is another table's, so it is a copy, and commits are not copied")
    sequence = kept.state.sequence if kept else 0
    sees_all = True
    for commit in commits:
        if commit.is_lost:
            raise _lost(name, f"the snapshot that commit {commit.position} was made from has expired")
        sees_all = commit.is_first
        state = None if commit.state is None else _read(name, commit)
        sequence = max(sequence, state.sequence if state else 0)
        if commit.is_undone:
            continue
        if kept is not None and commit.position == kept.after:
            return replace(kept.state, sequence=sequence)
        if state is not None:
            return replace(state, sequence=sequence)
    if kept is None:
        return TableState(run=None, sequence=sequence)
    if sees_all and kept.after is not None:
        # Rolled back behind all that backfills wrote, or replaced: it is not among what made the table.
        return TableState(run=None, sequence=sequence)
    if not sees_all and not kept.state.is_finished:
        raise _lost(name, "its commits since the run began are gone from its history")
    return replace(kept.state, sequence=sequence)


def _lost(name: str, why: str) -> StateLostError:
    return StateLostError(
        f"{name}: which offsets are in the table cannot be known: {why} (snapshots expired, or the log was cleaned, in "
        "the midst of a run). Find out the last offset of each partition in the table, and go on behind it: "
        '--restart --from \'{"TOPIC": {"0": OFFSET}}\', which keeps the rows'
    )


def _read(name: str, commit: Commit) -> TableState:
    try:
        return TableState.from_text(str(commit.state))
    except ValueError as error:
        raise UsageError(f"{name}: commit {commit.position} has a property {PROPERTY} not of ours: {error}") from error


def _state(value: Any) -> TableState:
    try:
        if value["format"] != _FORMAT:
            raise ValueError(f"format {value['format']} is not known to this version")
        return TableState(
            run=None if value["run"] is None else Run.from_json(value["run"]),
            done=_numbers(value["done"]),
            sequence=int(value["sequence"]),
            writer=str(value["writer"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the state of a backfill: {error!r}") from error


def _spans(numbers: Iterable[int]) -> str:
    """0, 1, 2 and 5 as "0-2,5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _numbers(spans: str) -> frozenset[int]:
    found: set[int] = set()
    for span in filter(None, spans.split(",")):
        first, _, last = span.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def kept_state(properties: Mapping[str, str]) -> KeptState | None:
    """The property among a table's properties.

    Raises:
        UsageError: it is there and not of ours.
    """
    if (text := properties.get(PROPERTY)) is None:
        return None
    try:
        return KeptState.from_text(text)
    except ValueError as error:
        raise UsageError(f"the table's property {PROPERTY} is not of ours: {error}") from error
