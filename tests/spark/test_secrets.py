"""Credentials reach executors, and are in nothing that Spark shows or writes on the way.

Searched: plans as explain() prints them, event logs, every page and REST answer of the UI, logs and output of driver,
executors and daemons, and the sentences of errors. Each search has a control: something harmless that must be found.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.secret_search import files_below, found_in, ui_pages
from tests.support.spark_topics import PLAIN, SparkTopics
from tools.demo.kafka_properties import properties_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark_session import RunningSpark

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]

STORAGE_SECRET = "planted/storage+secret=d41d8cd9"
SASL_SECRET = "planted/sasl+secret=8f00b204"
CONTROL = "planted-control-e9800998"
STORAGE_KEYS = {"rsm.config.storage.aws.secret.access.key": STORAGE_SECRET}
EXPLAIN_MODES = ("simple", "extended", "codegen", "cost", "formatted")
S3_THAT_IS_NOT_THERE = {
    "remote.log.storage.manager.class.name": "io.aiven.kafka.tieredstorage.RemoteStorageManager",
    "rsm.config.chunk.size": "4096",
    "rsm.config.storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
    "rsm.config.storage.s3.bucket.name": "nowhere",
    "rsm.config.storage.s3.region": "us-east-1",
    "rsm.config.storage.s3.endpoint.url": "http://127.0.0.1:9",
    "rsm.config.storage.aws.access.key.id": "who",
    **STORAGE_KEYS,
}
SASL_TO_A_PORT_WITHOUT = {
    "upstream.security.protocol": "SASL_PLAINTEXT",
    "upstream.sasl.mechanism": "PLAIN",
    "upstream.sasl.username": "who",
    "upstream.sasl.password": SASL_SECRET,
}


def properties(folder: Path, *wanted: Mapping[str, str]) -> Path:
    """A configuration of `serve`; later ones win."""
    path = folder / "tidegate.properties"
    path.write_text(properties_text({name: value for some in wanted for name, value in some.items()}))
    return path


def of_cluster(topics: SparkTopics) -> dict[str, str]:
    cluster = topics.cluster
    servers = {"upstream.bootstrap.servers": cluster.bootstrap_servers}
    return {**servers, "broker.config": str(cluster.server_properties_path(1))}


def shown(running: "RunningSpark") -> dict[str, bytes]:
    """All that a session in this process shows and writes."""
    url = running.session.sparkContext.uiWebUrl
    assert url is not None
    written = [(running.driver_log.name, running.driver_log.read_bytes()), *files_below(running.event_log_dir)]
    return {**ui_pages(url), **dict(written)}


def kinds(names: list[str], *wanted: str) -> set[str]:
    """Those of `wanted` that are a part of some name."""
    return {part for part in wanted if any(part in name for name in names)}


def test_a_secret_of_the_configuration_is_in_no_plan_page_or_log(
    spark: "SparkSession",
    spark_files: "RunningSpark",
    spark_topics: SparkTopics,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = properties(tmp_path, of_cluster(spark_topics), STORAGE_KEYS)
    rows = spark.read.format("tidegate").option("config", str(config)).option("subscribe", PLAIN).load()
    spark.sparkContext.setJobDescription(CONTROL)
    try:
        assert rows.where("length(value) > 0").count() > 0
    finally:
        spark.sparkContext.setJobDescription("")
    for mode in EXPLAIN_MODES:
        rows.explain(mode=mode)
    printed = capsys.readouterr().out
    assert "tidegate" in printed.lower()
    assert found_in(STORAGE_SECRET, [("explain()", printed.encode())]) == []

    texts = shown(spark_files)
    assert kinds(found_in(CONTROL, texts.items()), "/jobs", "/sql", "/SQL/", "events") >= {"/jobs", "/SQL/", "events"}
    assert found_in(STORAGE_SECRET, texts.items()) == []


@pytest.fixture
def misconfigured() -> tuple[Mapping[str, str], str, str]:
    """Configuration, its secret, and what is said of it."""
    return SASL_TO_A_PORT_WITHOUT, SASL_SECRET, "does not accept SASL mechanism"


def test_no_error_of_a_configuration_that_does_not_work_has_its_secrets(
    spark: "SparkSession",
    spark_files: "RunningSpark",
    spark_topics: SparkTopics,
    tmp_path: Path,
    misconfigured: tuple[Mapping[str, str], str, str],
) -> None:
    from pyspark.errors import PySparkException

    wrong, secret, said = misconfigured
    config = properties(tmp_path, of_cluster(spark_topics), wrong)
    rows = spark.read.format("tidegate").option("config", str(config)).option("subscribe", PLAIN)
    with pytest.raises(PySparkException) as caught:
        rows.load().count()
    error = f"{caught.value}\n{caught.value!r}"
    assert said in error
    assert found_in(secret, [("the error", error.encode()), *shown(spark_files).items()]) == []
