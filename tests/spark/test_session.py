"""The session that all tests here use: where it is, what it writes, and that Python workers find our code."""

import pytest
from pyspark.sql import SparkSession

from pipeline import session
from table import tasks


def test_workers_run_this_checkout(spark: SparkSession) -> None:
    """Given a class of ours, when a worker is asked, then it has it from where the tests have it."""

    def file_of_schema(_: int) -> str:
        from table import tasks

        return tasks.__file__

    assert spark.sparkContext.parallelize([1]).map(file_of_schema).collect() == [tasks.__file__]


def test_the_java_that_spark_submit_started_is_looked_at(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "JAVA_VERSIONS", (99,))
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    with pytest.raises(session.SessionError, match=r"^Java 17 or 21 is needed, spark-submit runs (17|21)"):
        session.start_session("a job")
