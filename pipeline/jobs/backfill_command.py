"""`backfill` from its command line: what is asked for, its range, its progress, and a table at the end.

Credentials of the Kafka source are Spark's to know: a JAAS file that `spark.driver.extraJavaOptions` and
`spark.executor.extraJavaOptions` name (-Djava.security.auth.login.config=FILE). As options they would show in the plan
and in the report, and are refused.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from pipeline.driver import open_tier
from pipeline.jobs.backfill import (
    REPORT,
    BackfillOptions,
    BackfillRange,
    forget_backfill,
    run_backfill,
)
from pipeline.jobs.backfill_plan import Step
from pipeline.jobs.backfill_range import find_range, range_options
from pipeline.jobs.job_context import DONE, JobContext, JobError, RunJob, UsageError
from pipeline.jobs.progress import JobProgress, duration, size
from pipeline.planning.options import OptionReader, SourceOptions, parse_options
from storage.config.model import HostPort
from storage.config.tier_client import TierClientConfig
from storage.model import uuid_to_text

TIER, KAFKA = "tidegate", "kafka"
"""Names of the two sources in Spark."""

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


@dataclass(frozen=True, slots=True)
class BackfillJob:
    """What was asked for. `bounds` find the range; `bootstrap` is Tidegate's address, if one is needed."""

    options: BackfillOptions
    bounds: SourceOptions
    bootstrap: HostPort | None
    restarts: bool

    def __call__(self, context: JobContext) -> int:
        """Do it; the exit code."""
        spark, options = context.spark, self.options

        def find() -> BackfillRange:
            with open_tier(self._config(context.config)) as tier:
                return find_range(tier, self.bounds, source=options.source)

        def find_topic_id() -> str:
            with open_tier(self._config(context.config)) as tier:
                topic = tier.client.topics([options.topic]).get(options.topic)
                if topic is None:
                    raise JobError(f"there is no topic {options.topic}")
                return uuid_to_text(topic.topic_id)

        if self.restarts:
            forget_backfill(spark, options.output)
        with JobProgress(context.messages, f"backfill {options.topic}", "steps", context=spark.sparkContext) as bar:

            def on_step(_step: Step, report: Mapping[str, Any], done: int, total: int) -> None:
                told = f"{report['rows']:,} rows, {size(report['bytes'])} in {duration(report['seconds'])}"
                bar.advance(done, total, told)

            report = run_backfill(spark, options, find, on_step, bar.begin, find_topic_id)
        context.output.print(_table(report))
        context.output.print(f"report: {options.output.rstrip('/')}/{REPORT}", soft_wrap=True, highlight=False)
        return DONE

    def _config(self, config: TierClientConfig) -> TierClientConfig:
        """With Tidegate in the brokers' place, where records are read through it: it must have what we ask for."""
        if self.bootstrap is None:
            return config
        return replace(config, upstream=replace(config.upstream, bootstrap_servers=(self.bootstrap,)))


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
    bootstrap = _bootstrap(arguments.bootstrap, problems)
    bounds = _bounds(arguments, problems)
    source_options = _source_options(arguments, problems)
    if problems:
        raise UsageError(*problems)
    options = BackfillOptions(
        topic=arguments.topic,
        output=arguments.output,
        source=KAFKA if arguments.source == "kafka" else TIER,
        reader={**_reader(arguments), **source_options},
        addresses=_addresses(arguments),
        bounds=bounds,
        partition_by=arguments.partition_by,
        offsets_per_folder=arguments.offsets_per_folder,
        bytes_per_step=arguments.bytes_per_step,
    )
    if options.source == TIER:
        parse_options({**options.reader, **options.addresses, **bounds, "subscribe": options.topic})
    settled = range_options(
        arguments.config, arguments.topic, reads_kafka=reads_kafka, isolation=arguments.isolation, bounds=bounds
    )
    return BackfillJob(options, settled, bootstrap, arguments.restart)


def _bootstrap(text: str | None, problems: list[str]) -> HostPort | None:
    if text is None:
        return None
    match = re.fullmatch(r"\[?([^\[\],\s]+?)\]?:(\d{1,5})", text, re.ASCII)
    if not match or not 0 < int(match[2]) < 65536:
        problems.append(f"--bootstrap {text}: it is not HOST:PORT")
        return None
    return HostPort(match[1], int(match[2]))


def _bounds(arguments: argparse.Namespace, problems: list[str]) -> dict[str, str]:
    given = {
        "startingOffsets": arguments.starting_offsets,
        "endingOffsets": arguments.ending_offsets,
        "startingTimestamp": _moment("--starting-timestamp", arguments.starting_timestamp, problems),
        "endingTimestamp": _moment("--ending-timestamp", arguments.ending_timestamp, problems),
    }
    return {name: value for name, value in given.items() if value is not None}


def _moment(name: str, text: str | None, problems: list[str]) -> str | None:
    if text is None:
        return None
    # Up, for a start and for an end: the first record that is not before it.
    moment = OptionReader({name: text}, problems).moment(name, rounds_up=True)
    return None if moment is None else str(moment)


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
        return {"kafka.isolation.level": arguments.isolation, "includeHeaders": headers, "failOnDataLoss": "true"}
    return {
        "isolation": arguments.isolation,
        "includeHeaders": headers,
        "badRecords": arguments.bad_records,
        "tail": arguments.tail,
    }


def _addresses(arguments: argparse.Namespace) -> dict[str, str]:
    servers = {} if arguments.bootstrap is None else {"kafka.bootstrap.servers": arguments.bootstrap}
    return servers if arguments.source == "kafka" else {"config": arguments.config, **servers}


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(title=f"{report['topic']}: {report['steps']} steps, {report['files']} files, {size(report['bytes'])}")
    for name in ("partition", "first offset", "end offset", "rows", "offsets without a row"):
        table.add_column(name, justify="right")
    for part in report["partitions"]:
        table.add_row(
            str(part["partition"]),
            *(f"{part[name]:,}" for name in ("start_offset", "end_offset", "rows", "offsets_without_row")),
        )
    table.add_section()
    without = sum(part["offsets_without_row"] for part in report["partitions"])
    table.add_row("all", "", "", f"{report['rows']:,}", f"{without:,}")
    return table
