"""`backfill` with a real Spark: the rows that the broker has, run after run, cut off or not; folders; refusals."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from pipeline.jobs.arguments import parser
from pipeline.jobs.backfill import BackfillError, run_backfill
from pipeline.jobs.backfill_command import BackfillJob, prepare
from pipeline.jobs.backfill_folder import FolderSink
from pipeline.jobs.backfill_range import BackfillRefusedError, Planned
from pipeline.jobs.backfill_steps import side_by_side
from pipeline.jobs.command_line import main
from pipeline.jobs.progress import JobProgress
from pipeline.jobs.sink import STEPS_MAX, OffsetRange, Run, RunState, Sink, Step, steps
from tests.support.source_rows import read_kafka
from tests.support.spark_topics import COMPRESSED, PLAIN, TRANSACTIONAL, TRIMMED, TRIMMED_AT, WIDE, SparkTopics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")

STEPS = 2
CUT_OFF_S_MAX = 300.0
ONE_DAY = {"0": 303, "1": 411}
"""In PLAIN, where a first run ends."""


class CutOff(Exception):
    """The job ends here, as if it had been killed."""


class CutSink:
    """A folder whose job ends when the rows of a step are written, and before it is done; steps before `after` are."""

    def __init__(self, folder: FolderSink, *, after: int) -> None:
        self._folder = folder
        self._after = after
        self.where = folder.where
        self.last_run, self.begin, self.forget = folder.last_run, folder.begin, folder.forget
        self.clean, self.finish = folder.clean, folder.finish

    def append(
        self, rows: DataFrame, run: Run, step: Step, counted: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        def cut() -> Mapping[str, Any]:
            raise CutOff

        return self._folder.append(rows, run, step, counted if step.number < self._after else cut)


def quiet(run: Run) -> JobProgress:
    return JobProgress(Console(quiet=True), run.step_name(0), "steps")


def backfill(spark: SparkSession, job: BackfillJob, sink: Sink, told: "Told") -> list[dict[str, Any]]:
    """Nobody is shown how far it is."""
    return run_backfill(spark, job.options, sink, told, quiet)  # type: ignore[arg-type]  # all that is asked of plans


class DoublingSink(CutSink):
    """A folder in which some rows of the first run are there twice before it is read back."""

    def __init__(self, folder: FolderSink, path: Path) -> None:
        super().__init__(folder, after=STEPS_MAX)
        self.path = path
        self.finish = self._finish

    def _finish(self, state: RunState, report: Mapping[str, Any]) -> Mapping[str, Any]:
        (some, *_) = sorted(self.path.glob("date=*/run-000001-*.parquet"))
        shutil.copy(some, some.with_name(some.name.replace("-00000-", "-00077-")))
        return self._folder.finish(state, report)


class Told:
    """What a backfill would ask of the brokers, answered."""

    def __init__(self, *ranges: OffsetRange, topic_id: str = "id", steps_count: int = 1) -> None:
        self._planned = Planned({each.topic: topic_id for each in ranges}, ranges, (), steps_count)

    def topic_ids(self, names: tuple[str, ...]) -> Mapping[str, str]:
        return {name: self._planned.topics[name] for name in names}

    def lost(self, ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
        return ()

    def next_run(self, ends: Mapping[str, Mapping[int, int]], *, is_first: bool) -> Planned:
        return self._planned


@pytest.fixture(scope="module")
def finished(spark: SparkSession, spark_topics: SparkTopics, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that nothing has happened to, read back; a test that changes it takes a copy."""
    out = tmp_path_factory.mktemp("finished") / "out"
    assert main([*arguments(spark_topics, "tier", out), "--verify"]) == 0
    return out


def test_a_job_that_was_cut_off_and_run_again_gives_what_one_gives_that_was_not(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, finished: Path
) -> None:
    """Given a job that ends when its second step is written and not done, when it is run again, then rows and report
    are those of a job that nothing has happened to; and the broker's."""
    cut = tmp_path / "cut"
    with pytest.raises(CutOff):
        run(spark, spark_topics, cut, finished)
    assert done_steps(cut) == ["run-000001-step-000000.json"]
    assert parquet_files(cut) == parquet_files(finished)  # of the step that is not done, too
    leave_half_a_step(cut)

    assert main([*arguments(spark_topics, "tier", cut), "--verify"]) == 0

    assert parquet_files(cut) == parquet_files(finished)
    assert report(cut) == report(finished)
    assert (done_steps(cut), list(cut.glob("_temporary"))) == ([], [])
    same_rows(spark.read.parquet(str(finished)), spark.read.parquet(str(cut)))
    ends = ends_of(spark_topics)
    rows = read_kafka(spark, spark_topics.cluster.bootstrap_servers, PLAIN, {"includeHeaders": "false"}).where(
        f"partition = 0 and offset < {ends['0']} or partition = 1 and offset < {ends['1']}"
    )
    same_rows(rows, spark.read.parquet(str(cut)))
    assert report(cut)["rows"] == sum(part["rows"] for part in report(cut)["partitions"]) == sum(ends.values())
    assert spark.read.parquet(str(cut)).where("date <> to_date(timestamp)").count() == 0


def test_the_same_command_goes_on_behind_its_last_run_and_finishes_that_first(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given a day's run of all up to some offsets, that was cut off, when the next day's goes further, then it ends
    the first one's steps, and every record is there once."""
    cut = tmp_path / "out"
    day = [*arguments(spark_topics, "tier", cut, ends=ONE_DAY, bytes_per_step=80 << 10), "--steps-at-once", "1"]
    job = job_of(day)
    ranges = [OffsetRange(PLAIN, int(partition), 0, end) for partition, end in ONE_DAY.items()]
    told = Told(*ranges, topic_id=topic_id_of(finished), steps_count=3)
    with pytest.raises(CutOff):
        backfill(spark, job, CutSink(FolderSink(spark, str(cut)), after=2), told)

    assert main(arguments(spark_topics, "tier", cut)) == 0

    told_out = capfd.readouterr()
    assert "run 1: 714 new offsets of 2 partitions, 3 steps" in told_out.out
    whole = sum(ends_of(spark_topics).values())
    assert f"run 2: {whole - 714:,} new offsets of 2 partitions" in told_out.out
    assert "run 1: 2 of 3 steps were done before" in told_out.err
    same_rows(spark.read.parquet(str(finished)), spark.read.parquet(str(cut)))
    digests = [int(report_of(cut, number)["digest"]) for number in (1, 2)]
    assert sum(digests) == int(report(finished)["digest"])
    assert [part["start_offset"] for part in report(cut)["partitions"]] == list(ONE_DAY.values())


def test_a_second_topic_joins_and_has_a_folder_of_its_own(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a backfill of topics by a pattern, when topics are named the next day, one of them new, then the old one
    has nothing new, and the other is there from its start."""
    config = str(spark_topics.tidegate.process.properties_path)
    base = ["backfill", "--config", config, "--output", str(tmp_path)]
    assert main([*base, "--pattern", TRIMMED]) == 0
    assert main([*base, "--topic", COMPRESSED, "--topic", TRIMMED]) == 0

    rows = spark.read.parquet(str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("[!_.]*")) == [f"topic={COMPRESSED}", f"topic={TRIMMED}"]
    for name in (COMPRESSED, TRIMMED):
        expected = {
            partition: offsets.latest_tiered_offset + 1 - offsets.log_start_offset
            for partition, offsets in spark_topics.topics[name].offsets.items()
        }
        counted = rows.where(f"topic = '{name}'").groupBy("partition").count().collect()
        assert {row["partition"]: row["count"] for row in counted} == expected
    assert rows.select("topic", "partition", "offset").distinct().count() == rows.count()
    assert {part["topic"] for part in report(tmp_path)["partitions"]} == {COMPRESSED, TRIMMED}


def test_another_backfill_in_the_same_folder_is_refused_until_it_is_begun_again(
    spark_topics: SparkTopics, tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given a finished job, and a file of somebody else's, when the same folder is asked for by offsets, then that is
    refused; and with --restart the job's files are gone, the others are not."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "date=2020-01-01").mkdir()
    (out / "date=2020-01-01" / "of-others.parquet").write_bytes(b"")
    by_offsets = [*arguments(spark_topics, "tier", out, bytes_per_step=1 << 30), "--partition-by", "offsets"]

    assert main(by_offsets) == 2
    assert 'partition_by was ["date"], is ["offsets"]' in capfd.readouterr().err
    assert main([*base_arguments(spark_topics, WIDE, out)]) == 2
    assert f"it has {PLAIN}, which --topic does not name" in capfd.readouterr().err
    assert main([*by_offsets, "--restart", "--verify"]) == 0

    assert sorted(path.name for path in out.glob("[!_.]*")) == ["date=2020-01-01", "partition=0", "partition=1"]
    assert (report(out)["options"]["partition_by"], report(out)["steps"]) == (["offsets"], 1)
    digests = [part["digest"] for part in report(out)["partitions"]]
    assert digests == [part["digest"] for part in report(finished)["partitions"]]


def test_a_topic_that_was_created_again_is_refused(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a backfill of a topic's offsets, when the name means another topic, then nothing of that is read."""
    job = job_of(arguments(spark_topics, "tier", tmp_path))
    sink = FolderSink(spark, str(tmp_path))
    backfill(spark, job, sink, Told(OffsetRange(PLAIN, 0, 0, 0), topic_id="before"))
    after = Told(OffsetRange(PLAIN, 0, 0, 5), topic_id="after")
    with pytest.raises(BackfillRefusedError, match="created again"):
        backfill(spark, job, sink, after)
    assert parquet_files(tmp_path) == done_steps(tmp_path) == []


def test_a_folder_with_something_else_in_it_is_refused(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(arguments(spark_topics, "tier", tmp_path)) == 2
    assert "notes.txt" in capfd.readouterr().err
    assert main([*arguments(spark_topics, "tier", tmp_path), "--restart"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_folders_of_offset_ranges_hold_their_offsets(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    folders = ["--partition-by", "offsets", "--offsets-per-folder", "500", "--bytes-per-step", "1g", "--verify"]
    wanted = [*base_arguments(spark_topics, TRIMMED, tmp_path), *folders, "--isolation", "read_committed"]
    assert main(wanted) == 0

    rows = spark.read.parquet(str(tmp_path))
    outside = "offset < cast(offset_range as bigint) or offset >= cast(offset_range as bigint) + 500"
    assert rows.where(outside).count() == 0
    assert {path.split("/")[1] for path in parquet_files(tmp_path)} >= {f"offset_range={500:020d}"}
    part = report(tmp_path)["partitions"][0]
    assert (part["start_offset"], part["offsets_without_row"]) == (TRIMMED_AT, 0)
    assert part["rows"] == rows.count() == part["end_offset"] - TRIMMED_AT


@pytest.mark.parametrize("source", ["kafka", "tail"])
def test_transactions_headers_and_bounds_are_as_from_the_broker(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, source: str
) -> None:
    """Given committed reads with headers up to the log's end, when backfilled, then the broker's rows, and a report
    whose offsets add up: each is a row, or has none."""
    through = ["--bootstrap", spark_topics.tidegate.bootstrap_servers]
    how = ["--source", "kafka", *through] if source == "kafka" else ["--tail", "kafka", *through]
    wanted = base_arguments(spark_topics, TRANSACTIONAL, tmp_path)
    assert main([*wanted, *how, "--isolation", "read_committed", "--include-headers", "--verify"]) == 0

    told = report(tmp_path)
    (part,) = told["partitions"]
    expected = read_kafka(
        spark, spark_topics.cluster.bootstrap_servers, TRANSACTIONAL, {"kafka.isolation.level": "read_committed"}
    )
    got = spark.read.parquet(str(tmp_path))
    assert "headers" in got.columns
    assert part["end_offset"] - part["start_offset"] == part["rows"] + part["offsets_without_row"]
    assert told["rows"] == part["rows"] == got.count()
    assert part["end_offset"] == spark_topics.topics[TRANSACTIONAL].offsets[0].high_watermark
    same_rows(expected, got)


def test_what_is_read_back_must_be_what_was_written(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a step whose rows are there twice, when the run is read back, then it says so, and is not done."""
    job = job_of([*arguments(spark_topics, "tier", tmp_path), "--verify"])
    sink = FolderSink(spark, str(tmp_path), verifies=True)
    plans = Told(OffsetRange(PLAIN, 0, 0, 50))

    for _ in range(2):
        with pytest.raises(BackfillError, match=r"50 rows were written, .* are read back"):
            backfill(spark, job, DoublingSink(sink, tmp_path), plans)
    next(tmp_path.glob("date=*/run-000001-*-00077-*")).unlink()
    told, _ = backfill(spark, job, sink, plans)
    assert (told["rows"], told["partitions"][0]["rows"]) == (50, 50)


def test_steps_side_by_side_leave_each_other_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Given a step that has written rows and waits until another has been done from its first task to its commit, when
    it goes on, then its own rows are there too."""
    out, waits = tmp_path / "out", tmp_path / "waits"
    sink = FolderSink(spark, str(out))
    run = Run(
        number=1,
        topics={"t": "id"},
        ranges=(OffsetRange("t", 0, 0, 200),),
        steps_count=2,
        options={"partition_by": ["date"]},
    )
    sink.begin(run)
    waits.mkdir()

    def do(step: Step) -> Mapping[str, Any]:
        def rows(_: object) -> Iterator[tuple[int, int]]:
            for each in step.ranges:
                for offset in range(each.start, each.end):
                    if offset == 50:
                        (waits / "begun").touch()
                        wait_until((waits / "done").exists, "the other step is done")
                    if offset == 100:
                        wait_until((waits / "begun").exists, "the first step has begun")
                    yield each.partition, offset

        made = spark.createDataFrame(
            spark.sparkContext.parallelize([0], 1).mapPartitions(rows), "partition int, offset long"
        )
        timed = made.selectExpr("*", "timestamp'2026-01-01 00:00:00' as timestamp")
        report = sink.append(timed, run, step, dict)
        if step.number == 1:
            (waits / "done").touch()
        return report

    done: list[int] = []
    named = [(run.step_name(step.number), step) for step in steps(run)]
    side_by_side(spark.sparkContext, named, do, lambda step, _: done.append(step.number), at_once=2)
    assert done == [1, 0]
    assert sorted(row.offset for row in spark.read.parquet(str(out)).collect()) == list(range(200))


def test_the_first_failure_stops_the_other_steps_and_is_the_one_that_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    def do(number: int) -> int:
        if number == 1:
            wait_until((tmp_path / "begun").exists, "the other step has begun")
            raise ValueError("the cause")

        def waits(_: object) -> Iterator[int]:
            (tmp_path / "begun").touch()
            wait_until((tmp_path / "never").exists, "nothing", timeout_s=CUT_OFF_S_MAX)
            yield 0

        return spark.sparkContext.parallelize([0], 1).mapPartitions(waits).count()

    with pytest.raises(ValueError, match="the cause"):
        side_by_side(spark.sparkContext, [(f"step-{n}", n) for n in range(3)], do, lambda *_: None, at_once=2)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def base_arguments(topics: SparkTopics, topic: str, out: Path) -> list[str]:
    config = str(topics.tidegate.process.properties_path)
    return ["backfill", "--config", config, "--topic", topic, "--output", str(out)]


def arguments(
    topics: SparkTopics,
    source: str,
    out: Path,
    *,
    topic: str = PLAIN,
    bytes_per_step: int | None = None,
    ends: Mapping[str, int] | None = None,
) -> list[str]:
    """STEPS steps of all that the tier has of a topic; of PLAIN a bit less, up to `ends_of`."""
    size = bytes_per_step or -(-topics.topics[topic].tier_bytes // STEPS)
    through = ["--source", "kafka", "--bootstrap", topics.tidegate.bootstrap_servers] if source == "kafka" else []
    bounds = ["--to", json.dumps({topic: ends or ends_of(topics)})] if topic == PLAIN else []
    return [*base_arguments(topics, topic, out), "--bytes-per-step", str(size), *through, *bounds]


def ends_of(topics: SparkTopics) -> dict[str, int]:
    """Return ends in PLAIN: inside a segment, and where the tier ends."""
    return {"0": 1003, "1": topics.topics[PLAIN].offsets[1].latest_tiered_offset + 1}


def job_of(wanted: list[str]) -> BackfillJob:
    job = prepare(parser().parse_args(wanted))
    assert isinstance(job, BackfillJob)
    return job


def topic_id_of(out: Path) -> str:
    (topic_id,) = report(out)["topics"].values()
    return str(topic_id)


def run(spark: SparkSession, topics: SparkTopics, out: Path, like: Path) -> None:
    """The job as `finished` began it, cut off in its second step."""
    job = job_of([*arguments(topics, "tier", out), "--steps-at-once", "1"])
    parts = report(like)["partitions"]
    ranges = [OffsetRange(each["topic"], each["partition"], each["start_offset"], each["end_offset"]) for each in parts]
    told = Told(*ranges, topic_id=topic_id_of(like), steps_count=STEPS)
    backfill(spark, job, CutSink(FolderSink(spark, str(out)), after=1), told)


def leave_half_a_step(out: Path) -> None:
    """Leave what a job leaves that is killed while tasks of its second step move their files."""
    some = next(out.glob("date=*/run-000001-step-000000-*.parquet"))
    for number in (0, 77):
        (some.parent / f"run-000001-step-000001-{number:05d}-x.c000.snappy.parquet").write_bytes(some.read_bytes())
    (out / "_temporary/1/_temporary/attempt_1/date=2020-01-01").mkdir(parents=True)
    (out / "_temporary/1/_temporary/attempt_1/date=2020-01-01/run-1.parquet").write_bytes(b"cut o")


def done_steps(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "_tidegate/steps").glob("run-*.json"))


def parquet_files(out: Path) -> list[str]:
    """Names up to Spark's own random part."""
    found = (path.relative_to(out) for path in out.rglob("*.parquet") if "_temporary" not in path.parts)
    return sorted(f"{path.parent}/{path.name[:28]}" for path in found)


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "_tidegate/report.json").read_text())
    del found["seconds"]
    return found


def report_of(out: Path, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"_tidegate/reports/run-{number:06d}.json").read_text())
    return found


def same_rows(one: DataFrame, other: DataFrame) -> None:
    other = other.select(*one.columns)
    assert one.count() == other.count() > 0
    assert one.exceptAll(other).count() == other.exceptAll(one).count() == 0
