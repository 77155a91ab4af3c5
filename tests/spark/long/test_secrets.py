"""Credentials reach executors, and are in nothing that Spark shows or writes on the way.

Searched: plans as explain() prints them, event logs, every page and REST answer of the UI, logs and output of driver,
executors and daemons, and the sentences of errors. Each search has a control: something harmless that must be found.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.spark.test_secrets import (
    CONTROL,
    S3_THAT_IS_NOT_THERE,
    STORAGE_KEYS,
    STORAGE_SECRET,
    kinds,
    properties,
    test_no_error_of_a_configuration_that_does_not_work_has_its_secrets,
)
from tests.support import secret_search
from tests.support.secret_search import files_below, found_in
from tests.support.secured_kafka import password, secured_kafka
from tests.support.spark_cluster import SparkCluster
from tools.spark_package.build import Built

__all__ = ["test_no_error_of_a_configuration_that_does_not_work_has_its_secrets"]

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]
PROGRAM = """
import sys
from pathlib import Path
import secret_search
from pyspark.sql import SparkSession
from tidegate.spark import register

config, topic, folder, control = sys.argv[1:]
spark = SparkSession.builder.appName(control).getOrCreate()
register(spark)
spark.sparkContext.setJobDescription(control)
rows = spark.read.format("tidegate").option("config", config).option("subscribe", topic).load()
for mode in ("simple", "extended", "codegen", "cost", "formatted"):
    rows.explain(mode=mode)
print("ROWS", rows.where("length(value) > 0").count())
rows.foreachPartition(lambda found: print(control, "on an executor", sum(1 for _ in found)))
for number, (path, page) in enumerate(secret_search.ui_pages(spark.sparkContext.uiWebUrl).items()):
    Path(folder, str(number)).write_bytes(path.encode() + b"\\n" + page)
"""


@pytest.fixture
def misconfigured() -> tuple[Mapping[str, str], str, str]:
    """The store is asked several times before the task fails."""
    return S3_THAT_IS_NOT_THERE, STORAGE_SECRET, "nowhere"


def test_secrets_that_are_in_use_are_in_nothing_that_a_cluster_shows_or_writes(
    spark_cluster: SparkCluster, spark_package: Built, tmp_path: Path
) -> None:
    pages, program = tmp_path / "pages", tmp_path / "program.py"
    pages.mkdir()
    program.write_text(PROGRAM)
    files = f"{spark_package.zip},{secret_search.__file__}"
    with secured_kafka() as secured:
        broker = {"broker.config": str(secured.cluster.server_properties_path(1))}
        identity = secured.identity("tidegate", "PLAIN", "SASL_PLAINTEXT")
        config = properties(tmp_path, broker, identity, STORAGE_KEYS)
        topic = secured.topic.name
        done = spark_cluster.spark_submit("--py-files", files, program, config, topic, pages, CONTROL)
    assert done.returncode == 0, done.stderr[-8000:]
    texts = {
        "driver's output": done.stdout.encode(),
        "driver's log": done.stderr.encode(),
        **dict(files_below(pages, spark_cluster.folder / "logs", spark_cluster.folder / "events")),
        **{str(path): path.read_bytes() for path in spark_cluster.written()},
    }
    wanted = {"driver's log", "pages", "events", "master.log", "std"}
    assert kinds(found_in(CONTROL, texts.items()), *wanted) == wanted
    for secret in (STORAGE_SECRET, password("tidegate")):
        assert found_in(secret, texts.items()) == []
