"""What a backfill's command line comes to, and what of it is refused, before there is a Spark."""

import pytest

from pipeline.jobs.arguments import parser
from pipeline.jobs.backfill_command import BackfillJob, prepare
from pipeline.jobs.job_context import UsageError
from storage.config.model import HostPort
from table.planning.request import OffsetBound, OffsetEdge, OptionsError, PartitionOffsets, SameTimestamp
from tests.support.for_each import for_each

BASE = ["backfill", "--config", "t.properties", "--topic", "orders", "--output", "out"]


def job(*more: str) -> BackfillJob:
    made = prepare(parser().parse_args([*BASE, *more]))
    assert isinstance(made, BackfillJob)
    return made


def problems(*more: str) -> tuple[str, ...]:
    try:
        job(*more)
    except (UsageError, OptionsError) as error:
        return error.problems
    pytest.fail("nothing was refused")


def test_the_tier_is_read_to_its_end() -> None:
    made = job()
    assert made.options.source == "tidegate"
    reader = {"isolation": "read_uncommitted", "includeHeaders": "false", "badRecords": "fail", "tail": "none"}
    assert made.options.reader == reader
    assert made.options.addresses == {"config": "t.properties"}
    assert (made.bounds.starting, made.bounds.ending) == (OffsetEdge.EARLIEST, OffsetEdge.TIERED)
    assert made.bootstrap is None
    # With a tail the log.
    made = job("--tail", "kafka", "--bootstrap", "tide:9092", "--isolation", "read_committed")
    assert made.options.addresses == {"config": "t.properties", "kafka.bootstrap.servers": "tide:9092"}
    assert made.bounds.ending is OffsetEdge.LATEST
    assert made.bounds.read_committed
    assert made.bootstrap == HostPort("tide", 9092)


def test_the_kafka_source_is_told_in_its_own_words() -> None:
    made = job(
        *("--source", "kafka", "--bootstrap", "[::1]:9092", "--include-headers", "--isolation", "read_committed"),
        *("--option", "minPartitions=8", "--kafka-option", "kafka.security.protocol=SASL_SSL"),
    )
    assert made.options.source == "kafka"
    assert made.options.reader == {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}
    tuning = {"failOnDataLoss": "true", "minPartitions": "8", "kafka.security.protocol": "SASL_SSL"}
    assert made.options.tuning == tuning
    assert made.options.addresses == {"kafka.bootstrap.servers": "[::1]:9092"}
    assert made.bootstrap == HostPort("::1", 9092)
    assert made.bounds.ending is OffsetEdge.LATEST


@for_each(
    "more, starting, ending",
    [
        (["--from", "earliest", "--to", "tiered"], OffsetEdge.EARLIEST, OffsetEdge.TIERED),
        (["--from", "Latest", "--to", "latest"], OffsetEdge.LATEST, OffsetEdge.LATEST),
        (["--from", "tiered"], OffsetEdge.TIERED, OffsetEdge.TIERED),
        (["--from", "1500", "--to", "1970-01-01T00:00:02Z"], SameTimestamp(1500), SameTimestamp(2000)),
        (["--from", "1970-01-01T01:00:00.0001+01:00"], SameTimestamp(1), OffsetEdge.TIERED),
        (["--from", '{"orders":{"0":5}}'], PartitionOffsets({("orders", 0): 5}), OffsetEdge.TIERED),
        (["--to", '{"orders":{"0":-1}}'], OffsetEdge.EARLIEST, PartitionOffsets({("orders", 0): -1})),
    ],
)
def test_bounds_are_words_times_or_offsets(more: list[str], starting: OffsetBound, ending: OffsetBound) -> None:
    bounds = job(*more).bounds
    assert (bounds.starting, bounds.ending, bounds.fails_on_data_loss) == (starting, ending, True)
    assert not job(*more, "--option", "failondataloss=FALSE").bounds.fails_on_data_loss


@for_each(
    "more, told",
    [
        (["--source", "kafka"], "--bootstrap is missing"),
        (["--tail", "kafka"], "--bootstrap is missing"),
        (["--bootstrap", "tide:9092"], "asks no proxy"),
        (["--source", "kafka", "--bootstrap", "tide"], "not HOST:PORT"),
        (["--source", "kafka", "--bootstrap", "tide:70000"], "not HOST:PORT"),
        (["--source", "kafka", "--bootstrap", "t:1", "--tail", "kafka"], "--tail kafka is for"),
        (["--source", "kafka", "--bootstrap", "t:1", "--bad-records", "skip"], "--bad-records skip is for"),
        (["--from", "yesterday"], "--from is 'yesterday': it has to be earliest, tiered, latest, a time"),
        (["--from", "2026-01-31T12:00:00"], "as 2026-01-31T12:00:00Z"),
        (["--to", "earliest"], "--to is 'earliest'"),
        (["--to", "{"], "--to is '{'"),
        (["--partition-by", "date,date"], "--partition-by"),
        (["--partition-by", "day"], "some of topic, partition, date, hour, offsets"),
        (["--option", "subscribe=others"], "the job sets it"),
        (["--option", "bytesPerPartitions=1m"], "did you mean bytesPerPartition"),
    ],
)
def test_what_cannot_be_is_refused_by_name(more: list[str], told: str) -> None:
    assert any(told in problem for problem in problems(*more)), problems(*more)
    # All at once.
    assert len(problems("--source", "kafka", "--tail", "kafka", "--option", "subscribe=a")) == 3


@for_each("name", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.password", "kafka.ssl.keystore.key"])
def test_credentials_are_refused_and_not_repeated(name: str) -> None:
    told = problems("--source", "kafka", "--bootstrap", "t:1", "--option", f"{name}=hunter2")
    assert len(told) == 1
    assert "JAAS file" in told[0]
    assert "hunter2" not in told[0]


def test_where_to_read_may_change_between_runs_and_what_may_not() -> None:
    one = job("--source", "kafka", "--bootstrap", "a:1").options
    other = job("--source", "kafka", "--bootstrap", "b:1").options
    assert one.as_json() == other.as_json()
    assert one.as_json() != job("--source", "kafka", "--bootstrap", "a:1", "--include-headers").options.as_json()
    assert job().options.as_json() == job("--option", "bytesPerPartition=1m", "--topic", "b").options.as_json()
