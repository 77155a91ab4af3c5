"""One Spark session for all tests that need one, and what else they share.

`spark` is the session; `spark_files` says where its event log, its log and its UI are. Set nothing on the session
that you do not take back. `spark_topics` is a broker of their own with topics of every kind, and a Tidegate before it.
`spark_package` and `spark_cluster` are for jobs that run by `spark-submit`.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark_fixtures import spark_cluster, spark_package
from tests.support.spark_topics import SparkTopics, filled_spark_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark_session import RunningSpark

__all__ = ["spark", "spark_cluster", "spark_files", "spark_package", "spark_topics"]

FOLDER = Path(__file__).parent
PYSPARK_LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""`collect` reads from a socket that it leaves to the garbage collector; pyspark says so in a comment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(PYSPARK_LEAVES_SOCKETS)


@pytest.fixture(scope="session")
def spark_files() -> Iterator["RunningSpark"]:
    # Here, so that a machine without pyspark skips these tests rather than failing to collect them.
    from tests.support.spark_session import running_spark

    with (
        tempfile.TemporaryDirectory(prefix="tidegate-spark-", ignore_cleanup_errors=True) as folder,
        running_spark(Path(folder)) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def spark(spark_files: "RunningSpark") -> "SparkSession":
    """It knows our source."""
    from pipeline.data_source import TidegateDataSource

    spark_files.session.dataSource.register(TidegateDataSource)
    return spark_files.session


@pytest.fixture
def logs_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one configuration of logs, and it would outlive a test's standard error."""
    monkeypatch.setattr("table.logs.configure_logs", lambda: None)


@pytest.fixture(scope="session")
def spark_topics() -> Iterator[SparkTopics]:
    """A broker, Tidegate, and topics of every kind that nobody adds to."""
    with filled_spark_topics() as topics:
        yield topics
