"""`backfill`: the history of topics into a folder or a table, and each time it is run again what is new since.

Rules:
1. An invocation first finishes the run before it, if its driver was killed: only the steps that are left of it. Then it
   settles a run of its own, from where each partition ended to where it ends now, and does that.
2. A partition that is new since begins at its start, and so does a topic that is new.
3. A topic that was deleted and created again is refused: its offsets would be other records. So is a run with other
   options than the first: one backfill has rows of one kind.
4. Steps run side by side, each as Spark jobs of a thread of its own. The first failure stops the others, and is the one
   that the job reports.
5. What was written is counted while it is written; whether it is read back too is the sink's matter.

Where rows go, and how a step is all or nothing, is a sink's (pipeline.jobs.sink).
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from pipeline.data_source import TidegateDataSource
from pipeline.jobs.backfill_range import BackfillRefusedError, TierPlans
from pipeline.jobs.backfill_steps import side_by_side
from pipeline.jobs.job_context import JobError
from pipeline.jobs.progress import JobProgress, duration
from pipeline.jobs.sink import OffsetRange, Run, RunState, Sink, Step, in_order, steps
from pipeline.jobs.tier_rows import tier_rows

TIER = TidegateDataSource.name()

_NOT_HASHED = frozenset({"headers"})
_NOT_HASHABLE = ('"map"', '"variant"')
"""In the JSON of a column's type, however deep."""


class BackfillError(JobError):
    """What was written does not add up; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """What the user asked for. `reader`: options of the source; no credentials, since Spark shows options.

    `addresses` are options that say where to read, not what. They may be others in another run, and so may `tuning`:
    those that say how.
    """

    source: str
    reader: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What else must be the same in every run. None: it was not given, and is what the first run has."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of `kept`, in the first run."""
    topics: tuple[str, ...] | None = None
    """Those that were named; None: by a pattern."""
    steps_at_once: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return what must be the same in every run of one backfill."""
        return {"source": self.source, "reader": dict(sorted(self.reader.items())), **self.kept}


ShownProgress = Callable[[Run], JobProgress]
"""A run's, to be entered while it is done."""


def run_backfill(
    spark: SparkSession, options: BackfillOptions, sink: Sink, plans: TierPlans, progress: ShownProgress
) -> list[dict[str, Any]]:
    """Finish what is left, then do what is new; the reports of the runs that were done, none when nothing is new.

    Raises:
        BackfillRefusedError: there is another backfill, or a topic is another one.
        BackfillError: what was written does not add up.
    """
    last = sink.last_run()
    reports = []
    if last is not None:
        _refuse_another(sink, options, last.run)
        _refuse_other_topics(sink, last.run.topics, plans.topic_ids(tuple(last.run.topics)))
        if not last.is_finished:
            reports.append(_do_run(spark, options, sink, _with_lost(last, plans), progress))
    run = _next_run(options, sink, last, plans)
    if run is not None:
        sink.begin(run)
        reports.append(_do_run(spark, options, sink, RunState(run), progress))
    return reports


def _with_lost(state: RunState, plans: TierPlans) -> RunState:
    """With what retention took since the run began, of steps that are left."""
    lost = plans.lost([each for step in state.left for each in step.ranges])
    return replace(state, run=replace(state.run, lost=in_order([*state.run.lost, *lost])))


def _next_run(options: BackfillOptions, sink: Sink, last: RunState | None, plans: TierPlans) -> Run | None:
    """None when nothing is new. The first run is made in any case: it settles where the backfill starts."""
    ends = {} if last is None else last.ends
    topics = {} if last is None else last.run.topics
    planned = plans.next_run(ends, is_first=last is None)
    _refuse_other_topics(sink, topics, planned.topics)
    if last is not None and not any(each.offsets for each in planned.ranges):
        return None
    known = {(each.topic, each.partition) for each in planned.ranges}
    gone = [
        OffsetRange(topic, partition, end, end)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
        if (topic, partition) not in known
    ]
    return Run(
        number=1 if last is None else last.run.number + 1,
        topics={**topics, **planned.topics},
        ranges=in_order([*planned.ranges, *gone]),
        steps_count=planned.steps_count,
        options=_settled(options.as_json(), options.defaults if last is None else last.run.options),
        lost=planned.lost,
    )


def _settled(asked: Mapping[str, Any], otherwise: Mapping[str, Any]) -> dict[str, Any]:
    return {name: otherwise.get(name) if value is None else value for name, value in asked.items()}


def _refuse_another(sink: Sink, options: BackfillOptions, last: Run) -> None:
    asked, was = _settled(options.as_json(), last.options), last.options
    other = [f"{name} was {_shown(was.get(name))}, is {_shown(asked[name])}" for name in asked]
    other = [told for name, told in zip(asked, other, strict=True) if was.get(name) != asked[name]]
    if options.topics is not None and (missing := sorted(set(last.topics) - set(options.topics))):
        other.append(f"it has {', '.join(missing)}, which --topic does not name")
    if other:
        told = "; ".join(other)
        raise BackfillRefusedError(f"{sink.where} holds another backfill ({told}): take another place, or --restart")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _refuse_other_topics(sink: Sink, was: Mapping[str, str], now: Mapping[str, str]) -> None:
    for topic, topic_id in was.items():
        if topic in now and now[topic] != topic_id:
            raise BackfillRefusedError(
                f"{topic} was deleted and created again since the backfill in {sink.where} began: take another place, "
                "or --restart"
            )


def _do_run(
    spark: SparkSession, options: BackfillOptions, sink: Sink, state: RunState, progress: ShownProgress
) -> dict[str, Any]:
    started_s = time.monotonic()
    run, total, done = state.run, len(steps(state.run)), dict(state.done)
    with progress(run) as shown:
        shown.begin(len(done), total)
        if state.left:
            sink.clean(state)

        def do(step: Step) -> Mapping[str, Any]:
            return _do_step(spark, options, sink, run, step)

        def on_done(step: Step, report: Mapping[str, Any]) -> None:
            done[step.number] = report
            shown.advance(len(done), total, f"{report['rows']:,} rows in {duration(report['seconds'])}")

        side_by_side(
            spark.sparkContext,
            [(run.step_name(step.number), step) for step in state.left],
            do,
            on_done,
            at_once=options.steps_at_once,
        )
        state = replace(state, done=done)
        return dict(sink.finish(state, _report(state, round(time.monotonic() - started_s, 3))))


def _do_step(spark: SparkSession, options: BackfillOptions, sink: Sink, run: Run, step: Step) -> dict[str, Any]:
    started_s = time.monotonic()
    rows, counted = counted_rows(read_step(spark, options, step), run.step_name(step.number))

    def told() -> dict[str, Any]:
        found = counted()
        if found["rows"] > step.offsets:
            raise BackfillError(
                f"{run.step_name(step.number)}: {found['rows']} rows of {step.offsets} offsets were read"
            )
        return {**found, "offsets": step.offsets, "seconds": round(time.monotonic() - started_s, 3)}

    return dict(sink.append(rows, run, step, told))


def read_step(spark: SparkSession, options: BackfillOptions, step: Step) -> DataFrame:
    """The rows of a step, from either source: both take the same three options."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for each in step.ranges:
        partitions.setdefault(each.topic, []).append(each.partition)
        starts.setdefault(each.topic, {})[str(each.partition)] = each.start
        ends.setdefault(each.topic, {})[str(each.partition)] = each.end
    bounds = {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    asked = {**options.reader, **options.tuning, **options.addresses, **bounds}
    if options.source == TIER:
        return tier_rows(spark, asked)
    return spark.read.format(options.source).options(**asked).load()


def counted_rows(rows: DataFrame, name: str) -> tuple[DataFrame, Callable[[], dict[str, Any]]]:
    """The rows, and what one action on them has counted: how many, and a digest that does not depend on their order."""
    seen = Observation(name)
    observed = rows.observe(seen, sql.count(sql.lit(1)).alias("rows"), digest(rows).alias("digest"))

    def counted() -> dict[str, Any]:
        found = seen.get
        return {"rows": int(found["rows"]), "digest": str(found["digest"] or 0)}

    return observed, counted


def digest(rows: DataFrame) -> Any:
    """Return a digest of all columns that Spark can hash, as a sum: steps' digests add up to a run's."""
    # Sorted: a column that names folders is read back as the last.
    columns = sorted(
        column.name
        for column in rows.schema.fields
        if column.name not in _NOT_HASHED and not any(kind in column.dataType.json() for kind in _NOT_HASHABLE)
    )
    return sql.sum(sql.xxhash64(*columns).cast("decimal(38,0)"))


def _report(state: RunState, seconds: float) -> dict[str, Any]:
    """Return the report of a run whose steps are done. A killed driver's steps are None if the sink keeps none."""
    run, reports = state.run, list(state.done.values())
    is_known = all("rows" in report for report in reports)
    rows = sum(report["rows"] for report in reports) if is_known else None
    return {
        "run": run.number,
        "options": dict(run.options),
        "topics": dict(run.topics),
        "steps": len(reports),
        "offsets": run.offsets,
        "rows": rows,
        # Control records, aborted transactions, and what compaction took.
        "offsets_without_row": None if rows is None else run.offsets - rows,
        "digest": str(sum(int(report["digest"]) for report in reports)) if is_known else None,
        "seconds": seconds,
        "lost": [_range_json(each) for each in run.lost],
        "partitions": [_range_json(each) for each in run.ranges],
    }


def _range_json(each: OffsetRange) -> dict[str, Any]:
    return {"topic": each.topic, "partition": each.partition, "start_offset": each.start, "end_offset": each.end}
