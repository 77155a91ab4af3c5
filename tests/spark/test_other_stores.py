"""`format("tidegate")` over a tier in GCS and in Azure, as Aiven's plug-in writes it there: executors read the store
themselves, with credentials that only the driver's machine has."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyspark.sql import SparkSession

from tests.support.aiven_tier import StoreServer, publish_tier
from tests.support.fake_gcs import fake_gcs
from tests.support.scripted_http import response, scripted_http
from tests.support.source_rows import assert_same_rows, cached, read_tier
from tests.support.spark_topics import PLAIN, SparkTopics


@contextmanager
def key_file(path: Path) -> Iterator[None]:
    """A service account of Google's, whose token server gives anybody a token."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {"type": "service_account", "client_email": "reader@tests", "private_key": pem.decode()}
    with scripted_http() as tokens:
        answer = json.dumps({"access_token": "of-the-test", "expires_in": 3600, "token_type": "Bearer"})
        tokens.answer(response(200, answer.encode(), {"Content-Type": "application/json"}))
        path.write_text(json.dumps(account | {"token_uri": f"{tokens.endpoint_url}/token"}), "utf-8")
        yield
    assert tokens.requests, "somebody asked for a token"


def assert_reads_alike(
    spark: SparkSession, topics: SparkTopics, server: StoreServer, folder: Path, **keys: str | None
) -> None:
    """The tier in the store has the rows of the broker's own."""
    tier = publish_tier(topics.cluster, server, [PLAIN], folder, compression=True, encryption=True)
    serve = topics.tidegate.process.properties_path.read_text("utf-8")
    lines = "".join(f"{name}={value}\n" for name, value in tier.properties(**keys).items())
    config = folder / "tidegate.properties"
    config.write_text(f"{serve}\n{lines}", "utf-8")
    in_tasks = {"bytesPerPartition": "256k"}
    with (
        cached(read_tier(spark, topics, PLAIN)) as broker,
        cached(read_tier(spark, topics, PLAIN, {"config": str(config), **in_tasks})) as rows,
    ):
        assert_same_rows(rows, broker)


@pytest.mark.needs("fake-gcs-server")
def test_a_tier_in_gcs_is_read_with_the_drivers_key_file(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    named = {"storage_gcs_credentials_default": None, "storage_gcs_credentials_path": str(path)}
    with fake_gcs(tmp_path) as server, key_file(path):
        assert_reads_alike(spark, spark_topics, server, tmp_path, **named)
