"""`backfill` from its command line: what is asked for, where it goes, its progress, and a table for each run.

Credentials of the Kafka source are Spark's to know: a JAAS file that `spark.driver.extraJavaOptions` and
`spark.executor.extraJavaOptions` name (-Djava.security.auth.login.config=FILE). As options they would show in the plan
and in the report, and are refused.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from pipeline.jobs.backfill import BackfillOptions, run_backfill
from pipeline.jobs.backfill_folder import PARTITION_BY, REPORT, FolderSink
from pipeline.jobs.backfill_range import TierPlans
from pipeline.jobs.backfill_s3a import is_s3a, s3a_writer_options
from pipeline.jobs.job_context import DONE, JobContext, RunJob, UsageError
from pipeline.jobs.progress import JobProgress
from pipeline.jobs.sink import Run, Sink
from pipeline.jobs.table_format import TableName
from pipeline.jobs.tables import TableOptions, TableSink
from pipeline.jobs.topics import topic_selection
from pipeline.options import parse_options
from storage.config.model import HostPort
from storage.config.tier_client import TierClientConfig
from storage.sizes import shown_size
from table.driver import kept_tier
from table.planning.option_values import OptionReader
from table.planning.request import (
    BYTES_PER_PARTITION,
    EARLIEST_OFFSET,
    OffsetBound,
    OffsetEdge,
    PartitionOffsets,
    SameTimestamp,
    SourceOptions,
    TopicSelection,
)

TIER, KAFKA = "tidegate", "kafka"
"""Names of the two sources in Spark."""

TASKS_PER_CORE = 4
"""For a step whose size is not given: cores wait for the last task of a step, and the next step is there by then."""
SHOWN_PARTITIONS_MAX = 100
"""In the table; the report has all."""

_CREDENTIAL = re.compile(r".*(password|secret|token|credential|jaas|keystore\.key|certificate).*", re.IGNORECASE)
_OURS = frozenset(
    name.lower()
    for name in (
        *("config", "subscribe", "subscribePattern", "assign", "tail", "badRecords"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        *("isolation", "kafka.isolation.level", "includeHeaders", "columns", "kafka.bootstrap.servers"),
        *("timestampFrom", "timestampTo"),
    )
)
"""Options that the job sets, or that it must not have: its counts would be of other rows."""
_TUNING = re.compile(
    r"failondataloss|bytesperpartition|taskbytes|badrecordspath|minpartitions|maxrecordsperpartition|groupidprefix"
    r"|kafka\..*|kafkaconsumer\..*|fetchoffset\..*|schemaregistry|deadletterpath"
)
"""Options that say how to read, and not what: another run may have others."""

_MOMENT = "a time (milliseconds, or ISO-8601 with an offset, as 2026-01-31T12:00:00Z)"


@dataclass(frozen=True, slots=True)
class BackfillJob:
    """What was asked for. `bounds` find what is new; `bootstrap` is Tidegate's address, if one is needed."""

    arguments: argparse.Namespace
    options: BackfillOptions
    bounds: SourceOptions
    bootstrap: HostPort | None

    def __call__(self, context: JobContext) -> int:
        """Do it; the exit code."""
        with ExitStack() as stack:
            sink = open_sink(context, self.arguments)
            if isinstance(sink, FolderSink):  # a table's commits find out about each other
                stack.enter_context(sink.held())
            return self._run(context, sink)

    def _run(self, context: JobContext, sink: Sink) -> int:
        if self.arguments.restart:
            sink.forget()
        cores = context.spark.sparkContext.defaultParallelism
        plans = TierPlans(
            open_tier=lambda: kept_tier.open(self._config(context.config)),
            bounds=self.bounds,
            reads_kafka=self.options.source == KAFKA,
            bytes_per_step=self.arguments.bytes_per_step or cores * TASKS_PER_CORE * BYTES_PER_PARTITION,
        )
        selection = self.bounds.selection
        name = f"backfill {selection.pattern or ', '.join(selection.topics or ())}"

        def progress(run: Run) -> JobProgress:
            shown = f"{name}, run {run.number}"
            return JobProgress(context.messages, shown, "steps", context=context.spark.sparkContext)

        with closing(kept_tier):
            reports = run_backfill(context.spark, self.options, sink, plans, progress)
        for report in reports:
            context.output.print(run_table(report))
            for line in lost_lines(report):
                context.output.print(line, soft_wrap=True, highlight=False)
        if not reports:
            last = sink.last_run()
            context.output.print(f"nothing new since run {0 if last is None else last.run.number}", highlight=False)
        if self.arguments.output is not None:
            context.output.print(f"report: {sink.where.rstrip('/')}/{REPORT}", soft_wrap=True, highlight=False)
        return DONE

    def _config(self, config: TierClientConfig) -> TierClientConfig:
        """With Tidegate in the brokers' place, where records are read through it: it must have what we ask for."""
        if self.bootstrap is None:
            return config
        return replace(config, upstream=replace(config.upstream, bootstrap_servers=(self.bootstrap,)))


def open_sink(context: JobContext, arguments: argparse.Namespace) -> Sink:
    """Return where rows go.

    Raises:
        UsageError: nothing here can write there.
    """

    def say(told: str) -> None:
        context.messages.print(told, soft_wrap=True, highlight=False, markup=False)

    if arguments.table is not None:
        table = TableOptions(
            name=TableName.parse(arguments.table),
            format=arguments.table_format,
            evolves_schema=arguments.evolve_schema,
            starts_at_offsets=(arguments.starting or "").lstrip().startswith("{"),
        )
        return TableSink(context.spark, table, say)
    options, warning = s3a_writer_options(context.spark) if is_s3a(arguments.output) else ({}, None)
    if warning is not None:
        say(f"warning: {warning}")
    return FolderSink(context.spark, arguments.output, writer_options=options, verifies=arguments.verify, say=say)


def prepare(arguments: argparse.Namespace) -> RunJob:
    """The job, if it can be done.

    Raises:
        UsageError, OptionsError: with every problem found.
    """
    problems: list[str] = []
    reads_kafka = arguments.source == "kafka" or arguments.tail == "kafka"
    if arguments.source == "kafka" and arguments.tail == "kafka":
        problems.append("--tail kafka is for --source tier: the Kafka source reads everything through Kafka")
    if arguments.source == "kafka" and arguments.bad_records == "skip":
        problems.append("--bad-records skip is for --source tier: the Kafka source has no such option")
    if reads_kafka and arguments.bootstrap is None:
        problems.append("--bootstrap is missing: Tidegate's address, HOST:PORT")
    if not reads_kafka and arguments.bootstrap is not None:
        problems.append("--bootstrap is for --source kafka and for --tail kafka: the tier source asks no proxy")
    problems += _table_problems(arguments)
    bootstrap = _bootstrap(arguments.bootstrap, problems)
    selection = topic_selection(arguments.topics, arguments.pattern)
    bounds = SourceOptions(
        config=Path(arguments.config),
        selection=selection,
        starting=_bound("--from", arguments.starting, problems) or OffsetEdge.EARLIEST,
        ending=_bound("--to", arguments.ending, problems) or (OffsetEdge.LATEST if reads_kafka else OffsetEdge.TIERED),
        starts_at_latest_without_match=True,
        read_committed=arguments.isolation == "read_committed",
        reads_tail=reads_kafka,
    )
    given = _source_options(arguments, problems)
    folders = _partition_by(arguments.partition_by, problems)
    if problems:
        raise UsageError(*problems)
    options = _options(arguments, selection, given, folders)
    data_loss = {name.lower(): value for name, value in options.tuning.items()}.get("failondataloss", "true")
    if options.source == TIER:
        parse_options({**options.reader, **options.tuning, **options.addresses, "subscribe": "any"})
    return BackfillJob(arguments, options, replace(bounds, fails_on_data_loss=data_loss.lower() != "false"), bootstrap)


def _table_problems(arguments: argparse.Namespace) -> Sequence[str]:
    if arguments.table is None:
        given = [name for name in ("table_format", "evolve_schema") if getattr(arguments, name)]
        return [f"--{name.replace('_', '-')} is for --table" for name in given]
    try:
        TableName.parse(arguments.table)
    except UsageError as error:
        return error.problems
    if arguments.verify:
        return ["--verify is for --output: a table has rows of others too, and each commit's rows are counted"]
    return []


def _options(
    arguments: argparse.Namespace, selection: TopicSelection, given: Mapping[str, str], folders: tuple[str, ...] | None
) -> BackfillOptions:
    tuning = {name: value for name, value in given.items() if _TUNING.fullmatch(name.lower())}
    several = selection.topics is None or len(selection.topics) > 1
    return BackfillOptions(
        source=KAFKA if arguments.source == "kafka" else TIER,
        reader={**_reader(arguments), **{name: value for name, value in given.items() if name not in tuning}},
        addresses=_addresses(arguments),
        tuning={**({"failOnDataLoss": "true"} if arguments.source == "kafka" else {}), **tuning},
        kept={
            "from": arguments.starting,
            "partition_by": None if folders is None else list(folders),
            "offsets_per_folder": arguments.offsets_per_folder,
        },
        defaults={"from": "earliest", "partition_by": ["topic", "date"] if several else ["date"]},
        topics=selection.topics,
        steps_at_once=arguments.steps_at_once,
    )


def _bootstrap(text: str | None, problems: list[str]) -> HostPort | None:
    if text is None:
        return None
    match = re.fullmatch(r"\[?([^\[\],\s]+?)\]?:(\d{1,5})", text, re.ASCII)
    if not match or not 0 < int(match[2]) < 65536:
        problems.append(f"--bootstrap {text}: it is not HOST:PORT")
        return None
    return HostPort(match[1], int(match[2]))


def _bound(name: str, text: str | None, problems: list[str]) -> OffsetBound | None:
    if text is None:
        return None
    edges = ("earliest", "tiered", "latest") if name == "--from" else ("tiered", "latest")
    if text.strip().lower() in edges:
        return OffsetEdge(text.strip().lower())
    found: list[str] = []
    reader = OptionReader({name: text}, found)
    if text.lstrip().startswith("{"):
        offsets = PartitionOffsets(reader.partition_numbers(name, minimum=EARLIEST_OFFSET))
        problems += found
        return offsets
    # Up, for a start and for an end: the first record that is not before it.
    moment = reader.moment(name, rounds_up=True)
    if moment is None or found:
        problems.append(f'{name} is {text!r}: it has to be {", ".join(edges)}, {_MOMENT}, or {{"topic":{{"0":17}}}}')
        return None
    return SameTimestamp(moment)


def _partition_by(text: str | None, problems: list[str]) -> tuple[str, ...] | None:
    """None: it was not given."""
    if text is None:
        return None
    columns = tuple(part.strip().lower() for part in text.split(","))
    if not set(columns) <= set(PARTITION_BY) or len(set(columns)) < len(columns):
        problems.append(f"--partition-by is {text!r}: it has to be some of {', '.join(PARTITION_BY)}, each once")
    return columns


def _source_options(arguments: argparse.Namespace, problems: list[str]) -> dict[str, str]:
    options = dict(arguments.source_options)
    for name in options:
        if _CREDENTIAL.fullmatch(name):
            problems.append(
                f"--option {name} is refused: options show in Spark's plan; credentials of the Kafka source belong in "
                "a JAAS file (--conf spark.driver.extraJavaOptions=-Djava.security.auth.login.config=FILE, and "
                "spark.executor.extraJavaOptions)"
            )
        elif name.lower() in _OURS:
            problems.append(f"--option {name} is refused: the job sets it from its own command line")
    return options


def _reader(arguments: argparse.Namespace) -> dict[str, str]:
    headers = str(bool(arguments.include_headers)).lower()
    if arguments.source == "kafka":
        return {"kafka.isolation.level": arguments.isolation, "includeHeaders": headers}
    return {
        "isolation": arguments.isolation,
        "includeHeaders": headers,
        "badRecords": arguments.bad_records,
        "tail": arguments.tail,
    }


def _addresses(arguments: argparse.Namespace) -> dict[str, str]:
    servers = {} if arguments.bootstrap is None else {"kafka.bootstrap.servers": arguments.bootstrap}
    return servers if arguments.source == "kafka" else {"config": arguments.config, **servers}


def run_table(report: Mapping[str, Any]) -> Table:
    """A run for people: what each partition had that was new."""
    parts = [part for part in report["partitions"] if part["end_offset"] > part["start_offset"]]
    told = [f"{report['offsets']:,} new offsets of {len(parts):,} partitions", f"{report['steps']:,} steps"]
    if report.get("files") is not None:
        told += [f"{report['files']:,} files", shown_size(report["bytes"])]
    table = Table(title=f"run {report['run']}: {', '.join(told)}")
    for name in ("topic", "partition", "first offset", "end offset", "rows", "offsets without a row"):
        table.add_column(name, justify="left" if name == "topic" else "right")
    for part in parts[:SHOWN_PARTITIONS_MAX]:
        # By partition rows are known where they were read back.
        counts = [f"{part[name]:,}" if name in part else "" for name in ("rows", "offsets_without_row")]
        offsets = (f"{part['start_offset']:,}", f"{part['end_offset']:,}")
        table.add_row(part["topic"], str(part["partition"]), *offsets, *counts)
    if len(parts) > SHOWN_PARTITIONS_MAX:
        table.add_row(f"… {len(parts) - SHOWN_PARTITIONS_MAX} more", "", "", "", "", "")
    table.add_section()
    totals = ["" if report[name] is None else f"{report[name]:,}" for name in ("rows", "offsets_without_row")]
    table.add_row("all", "", "", "", *totals)
    return table


def lost_lines(report: Mapping[str, Any]) -> list[str]:
    """Return what retention took before it could be read."""
    return [
        f"lost: {part['topic']}-{part['partition']}, offsets {part['start_offset']:,} to {part['end_offset'] - 1:,} "
        "were deleted before this run"
        for part in report["lost"]
    ]
