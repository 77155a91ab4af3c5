"""Where a backfill's rows go, and what a run of it is: the seam between the job and folders or tables.

A backfill is the same command run again and again. Each invocation is a *run* with a number. A run's ranges are settled
when it begins, so its steps follow from them alone; each partition starts where the run before it ended. A run whose
driver was killed is finished first, step by step, before the next one begins.

Rules for a sink:
1. A step is done when the sink says so, all or nothing: its rows are there once, or they are not there.
2. `last_run` says it all: what it gives is enough to finish that run, and to begin the next one.
3. `clean` comes before the first `append` of a driver. Nobody else writes meanwhile.
4. `append` may be called from several threads, for different steps. The steps of a run come in any order.

`run.ranges` names every partition that the backfill has ever read, with an empty range where nothing is new. So the
last run alone knows where each partition ended, and nobody has to read the runs before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEPS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Step:
    """What is done or not done: some offsets of each partition; a partition without any is left out."""

    number: int
    ranges: tuple[OffsetRange, ...]

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation's work. `number` is from 1 on."""

    number: int
    topics: Mapping[str, str]
    """Ids by name, when the run began: of every topic that the backfill has ever read."""
    ranges: tuple[OffsetRange, ...]
    """By topic and partition, in order."""
    steps_count: int
    options: Mapping[str, Any]
    """What must be the same in every run of one backfill: plain JSON, without credentials."""
    lost: tuple[OffsetRange, ...] = ()
    """What retention took before this run could read it; with failOnDataLoss=false a run goes on behind it."""

    @property
    def ends(self) -> Mapping[str, Mapping[int, int]]:
        """By topic and partition: the end that this run and all before it reach."""
        found: dict[str, dict[int, int]] = {}
        for each in self.ranges:
            found.setdefault(each.topic, {})[each.partition] = each.end
        return found

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.ranges)

    def step_name(self, number: int) -> str:
        """Names a step among all steps of all runs."""
        return f"run-{self.number:06d}-step-{number:06d}"

    def to_json(self) -> dict[str, Any]:
        """As a sink keeps it."""
        return {
            "run": self.number,
            "topics": dict(self.topics),
            "ranges": _ranges_json(self.ranges),
            "steps": self.steps_count,
            "options": dict(self.options),
            "lost": _ranges_json(self.lost),
        }

    @staticmethod
    def from_json(value: Any) -> "Run":
        """Return what `to_json` made.

        Raises:
            ValueError: it did not make this.
        """
        try:
            return Run(
                number=int(value["run"]),
                topics={str(name): str(topic_id) for name, topic_id in value["topics"].items()},
                ranges=_ranges(value["ranges"]),
                steps_count=int(value["steps"]),
                options=dict(value["options"]),
                lost=_ranges(value["lost"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a run of a backfill: {error!r}") from error


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is."""

    run: Run
    done: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By number, the steps that are done, with their reports as `append` gave them; {} where the sink keeps none."""
    is_finished: bool = False
    """`finish` was called. A sink that has nothing to do there says so as soon as all steps are done."""

    @property
    def ends(self) -> Mapping[str, Mapping[int, int]]:
        return self.run.ends

    @property
    def left(self) -> tuple[Step, ...]:
        """Steps that are not done."""
        return tuple(step for step in steps(self.run) if step.number not in self.done)


class Sink(Protocol):
    """Where a backfill's rows go. One driver at a time; `append` may be called from several threads."""

    @property
    def where(self) -> str:
        """For messages: the folder, or the table's name."""
        ...

    def last_run(self) -> RunState | None:
        """The run that began last, finished or not; None: nothing of ours is there.

        Raises:
            UsageError: what is there is somebody else's, and nothing may be added to it.
        """
        ...

    def forget(self) -> None:
        """`--restart`: delete what backfills wrote there, and nothing else. Afterwards there is no last run."""
        ...

    def begin(self, run: Run) -> None:
        """Keep a new run, before its first step."""
        ...

    def clean(self, state: RunState) -> None:
        """Remove what a killed driver left of steps that are not done."""
        ...

    def append(
        self, rows: "DataFrame", run: Run, step: Step, counted: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Write a step's rows, after which it is done.

        Args:
            rows: with the source's columns; they must be written by one action.
            counted: to be called once, after that action and before the step is said to be done; `rows` and `digest`.

        Returns:
            Its report: what was counted, and `files` and `bytes` where they are known. Plain JSON.
        """
        ...

    def finish(self, state: RunState, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """All steps are done.

        Args:
            report: of the run, for sinks that keep one.

        Returns:
            The report, with what the sink alone knows (`files`, `bytes`, …).
        """
        ...


def steps(run: Run) -> tuple[Step, ...]:
    """The run's work in about `steps_count` steps, every offset in just one. Pure: the same run gives the same steps.

    Each goes over all partitions side by side, a share of each in proportion to its length, so that a step has work for
    all executors and the last one is as wide as the first.
    """
    cut = [_shares(each, run.steps_count) for each in run.ranges]
    made = (tuple(shares[number] for shares in cut if shares[number].offsets) for number in range(run.steps_count))
    return tuple(Step(number, ranges) for number, ranges in enumerate(made) if ranges)


def in_order(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """As a run has them."""
    return tuple(sorted(ranges, key=lambda each: (each.topic, each.partition)))


def _ranges_json(ranges: Sequence[OffsetRange]) -> dict[str, dict[str, list[int]]]:
    made: dict[str, dict[str, list[int]]] = {}
    for each in ranges:
        made.setdefault(each.topic, {})[str(each.partition)] = [each.start, each.end]
    return made


def _ranges(value: Any) -> tuple[OffsetRange, ...]:
    return in_order(
        [
            OffsetRange(str(topic), int(partition), int(start), int(end))
            for topic, partitions in value.items()
            for partition, (start, end) in partitions.items()
        ]
    )


def _shares(whole: OffsetRange, count: int) -> Sequence[OffsetRange]:
    borders = [whole.start + whole.offsets * number // count for number in range(count + 1)]
    return [OffsetRange(whole.topic, whole.partition, borders[at], borders[at + 1]) for at in range(count)]
