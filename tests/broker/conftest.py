"""One broker for all tests here, with a tier, a listener for everybody and two where clients sign in; its topics, and
the Tidegates before it, in threads of this process.

Nobody adds to `codecs`, `transactions` and `secured.topic`: who writes makes a topic of its own.
"""

from collections.abc import Iterator

import pytest

from tests.broker.sides import Sides
from tests.support.aiven_tier import AivenTier, publish_tier
from tests.support.filled_topics import FilledTopic, fill_codecs, fill_transactions
from tests.support.s3_server import S3Server
from tests.support.secured_kafka import DESCRIBE, READ, SecuredKafka, secured_kafka
from tests.support.tidegate import TidegateInThread, tidegate_in_thread
from tools.demo.kafka_cluster import KafkaCluster

ASKS_FOR_EVERY_READ = {"authority.max.age.ms": "0"}
"""Whether a client may read is asked for each read of the tier, so that answers are the broker's of that moment."""


@pytest.fixture(scope="session")
def secured() -> Iterator[SecuredKafka]:
    """`reader` may read its topic and `describer` may know of it."""
    with secured_kafka() as started:
        started.allow("reader", READ, started.topic.name)
        started.allow("describer", DESCRIBE, started.topic.name)
        yield started


@pytest.fixture(scope="session")
def cluster(secured: SecuredKafka) -> KafkaCluster:
    """The same broker, by the listener where nobody signs in."""
    return secured.cluster


@pytest.fixture(scope="session")
def gate(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidegateInThread]:
    """Before the listener where nobody signs in; it reads the broker's tier."""
    with tidegate_in_thread(cluster, tmp_path_factory.mktemp("gate"), ASKS_FOR_EVERY_READ) as started:
        yield started


@pytest.fixture(scope="session")
def signing_gate(secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidegateInThread]:
    """Signs in itself, and relays how clients sign in, over TLS."""
    properties = secured.identity("tidegate", "SCRAM-SHA-512", "SASL_SSL") | ASKS_FOR_EVERY_READ
    with tidegate_in_thread(secured.cluster, tmp_path_factory.mktemp("signing"), properties) as started:
        yield started


@pytest.fixture(scope="session")
def tier_on_s3(
    cluster: KafkaCluster, codecs: FilledTopic, s3_endpoint: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> AivenTier:
    """The tier of `codecs` once more, as Aiven's plug-in writes it, compressed and encrypted."""
    folder = tmp_path_factory.mktemp("aiven")
    return publish_tier(cluster, s3_endpoint, [codecs.name], folder, compression=True, encryption=True)


@pytest.fixture(scope="session")
def s3_gate(
    cluster: KafkaCluster, tier_on_s3: AivenTier, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TidegateInThread]:
    """Before the same broker; its tier is the one on S3."""
    properties = {**tier_on_s3.properties(), **ASKS_FOR_EVERY_READ}
    with tidegate_in_thread(cluster, tmp_path_factory.mktemp("s3"), properties) as started:
        yield started


@pytest.fixture(scope="session")
def codecs(cluster: KafkaCluster) -> FilledTopic:
    """One codec a partition, and records of every odd kind."""
    return fill_codecs(cluster)


@pytest.fixture(scope="session")
def transactions(cluster: KafkaCluster, gate: TidegateInThread) -> FilledTopic:
    """Committed and aborted transactions, produced through Tidegate."""
    return fill_transactions(cluster, gate.bootstrap_servers)


@pytest.fixture(scope="session")
def sides(cluster: KafkaCluster, gate: TidegateInThread) -> Sides:
    return Sides(cluster, gate)
