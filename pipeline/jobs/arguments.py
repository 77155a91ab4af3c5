"""What each job's command line has. Only argparse: `--help` needs neither Spark nor Arrow."""

import argparse
import re
from typing import Final

SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
STEPS_AT_ONCE: Final = 3
"""Two keep all cores busy while one of them ends; the third is for a step that is planned or committed meanwhile."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all jobs."""
    whole = argparse.ArgumentParser(
        prog="tidegate spark",
        description="Spark jobs over Kafka's tiered storage (docs/spark.md).",
        epilog="Exit codes: 0 done, 1 found something wrong, 2 usage or configuration. A job that was cut off goes on "
        "when the same command is run again.",
    )
    jobs = whole.add_subparsers(dest="job", metavar="JOB", required=True)
    for name, told, add in (
        ("backfill", "write topics' history as Parquet, and each time it is run again what is new", _add_backfill),
        ("audit", "check every object of the tier against its metadata", _add_audit),
    ):
        job = jobs.add_parser(name, help=told, description=f"{told[0].upper()}{told[1:]}.", allow_abbrev=False)
        job.add_argument("--config", required=True, metavar="FILE", help="the properties file of tidegate serve")
        job.add_argument("--master", metavar="URL", help="Spark's master, for example local[4] or spark://host:7077")
        job.add_argument(
            "--conf", action="append", default=[], type=setting, metavar="K=V", help="a setting of Spark's; repeatable"
        )
        job.add_argument(
            "--verbose",
            action="store_true",
            help="show Spark's log, and all that it says of a failure, above its cause",
        )
        add(job)
    return whole


def setting(text: str) -> tuple[str, str]:
    """K=V, for argparse."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        # Not the text itself: it may be a secret without its name.
        raise argparse.ArgumentTypeError("it is not of the form K=V")
    return name, value


def size(text: str) -> int:
    """Bytes, with k, m, g or t for powers of 1024, for argparse."""
    match = re.fullmatch(r"(\d{1,12})([kmgt]?)b?", text.strip().lower(), re.ASCII)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError("it is not a size, as 512m or 4g")
    return int(match[1]) * SIZE_UNITS[match[2]]


def count(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError("it is not a whole number from 1 on")
    return int(text)


def _add_backfill(job: argparse.ArgumentParser) -> None:
    _add_topics(job, required=True)
    where = job.add_mutually_exclusive_group(required=True)
    where.add_argument("--output", metavar="DIR", help="a folder for Parquet, in any file system that Spark reaches")
    where.add_argument("--table", metavar="NAME", help="a Delta or Iceberg table, as catalog.db.orders")
    job.add_argument("--table-format", choices=("delta", "iceberg"), help="of a table that is not there yet")
    job.add_argument(
        "--evolve-schema", action="store_true", help="add the columns that the table lacks, in place of an error"
    )
    _add_source(job)
    job.add_argument(
        "--from",
        dest="starting",
        metavar="WHERE",
        help="where the first run starts: earliest (the default), tiered, latest, a time (ISO-8601 with an offset from "
        'UTC, or milliseconds), or offsets as {"topic":{"0":17}}; a later run starts where the one before it ended',
    )
    job.add_argument(
        "--to",
        dest="ending",
        metavar="WHERE",
        help="where this run ends: tiered (the default of the tier source), latest (the default of what reads Kafka), "
        "a time, or offsets; exclusive",
    )
    job.add_argument(
        "--partition-by",
        metavar="COLUMNS",
        help="folders, a list with commas of topic, partition, date, hour and offsets; date without it, or topic,date "
        "for several topics",
    )
    job.add_argument(
        "--offsets-per-folder", type=count, metavar="N", help="with --partition-by offsets (default 1000000)"
    )
    job.add_argument(
        "--bytes-per-step",
        type=size,
        metavar="SIZE",
        help="of log, about; a step is what a job that is cut off does again. Without it, some tasks for each core",
    )
    job.add_argument(
        "--steps-at-once",
        type=count,
        default=STEPS_AT_ONCE,
        metavar="N",
        help=f"steps side by side, so that no core waits for the last task of one (default {STEPS_AT_ONCE})",
    )
    job.add_argument(
        "--verify", action="store_true", help="read back what a run wrote, and compare rows, offsets and digests"
    )
    job.add_argument("--restart", action="store_true", help="delete what earlier runs wrote there, begin again")


def _add_source(job: argparse.ArgumentParser) -> None:
    job.add_argument(
        "--source",
        choices=("tier", "kafka"),
        default="tier",
        help="read objects of the tier (the default), or Spark's Kafka source through Tidegate",
    )
    job.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="Tidegate's address: for --source kafka, and for --tail kafka"
    )
    job.add_argument(
        "--tail",
        choices=("none", "kafka"),
        default="none",
        help="what is not in the tier yet: left out (the default), or read through Kafka",
    )
    job.add_argument(
        "--option",
        "--kafka-option",
        dest="source_options",
        action="append",
        default=[],
        type=setting,
        metavar="K=V",
        help="an option of the source, for example bytesPerPartition=64m or minPartitions=8; repeatable. No "
        "credentials: Spark shows options. Those of the Kafka source belong in a JAAS file (docs/spark.md)",
    )
    job.add_argument("--isolation", choices=("read_uncommitted", "read_committed"), default="read_uncommitted")
    job.add_argument("--include-headers", action="store_true")
    job.add_argument(
        "--bad-records", choices=("fail", "skip"), default="fail", help="corrupt batches, tier source only"
    )


def _add_audit(job: argparse.ArgumentParser) -> None:
    _add_topics(job)
    job.add_argument("--report", metavar="DIR", help="keep what was found; a second run goes on from there")


def _add_topics(job: argparse.ArgumentParser, *, required: bool = False) -> None:
    which = job.add_mutually_exclusive_group(required=required)
    without = "" if required else "; all without it"
    which.add_argument("--topic", action="append", default=[], dest="topics", help=f"repeatable{without}")
    which.add_argument("--pattern", help="a regular expression that whole names match")
