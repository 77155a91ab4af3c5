"""Fixtures that only tests against a real Kafka share."""

from collections.abc import Iterator

import pytest

from tests.support.client_programs import ClientPrograms
from tests.support.differential_world import DifferentialWorld, differential_world
from tests.support.filled_topics import FilledTopic, fill_codecs, fill_transactions
from tests.support.kafka import TieredTopic, own_cluster
from tests.support.s3_server import S3Server
from tests.support.secured_kafka import DESCRIBE, READ, SecuredKafka, operators_kafka
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.versitygw import versitygw
from tools.demo.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def differential() -> Iterator[DifferentialWorld]:
    """A broker with topics of every kind and several leader epochs, where nothing moves; only ask questions."""
    with differential_world() as world:
        yield world


@pytest.fixture(scope="session")
def pair() -> Iterator[KafkaCluster]:
    """Two brokers: leaders move, and brokers stop, come back and come in addition. A new follower begins behind the
    tier (KIP-1023)."""
    with own_cluster(brokers=2, properties={"follower.fetch.last.tiered.offset.enable": "true"}) as started:
        yield started


@pytest.fixture(scope="session")
def operators() -> Iterator[SecuredKafka]:
    """Three brokers behind SASL_SSL with stores of Java's; a test takes back the rights that it gave."""
    with operators_kafka() as started:
        yield started


@pytest.fixture(scope="session")
def moody() -> Iterator[KafkaCluster]:
    """A broker that may be stopped and started again."""
    with own_cluster() as started:
        yield started


@pytest.fixture(scope="session")
def codecs(kafka: KafkaCluster) -> FilledTopic:
    """One codec a partition, and records of every odd kind; nobody adds to it."""
    return fill_codecs(kafka)


@pytest.fixture(scope="session")
def transactions(kafka: KafkaCluster, tidegate: RunningTidegate) -> FilledTopic:
    """Committed and aborted transactions, produced through Tidegate; nobody adds to it."""
    return fill_transactions(kafka, tidegate.bootstrap_servers)


@pytest.fixture(scope="module")
def client_programs(kafka: KafkaCluster, tidegate: RunningTidegate) -> Iterator[ClientPrograms]:
    """Clients of all kinds as programs, each started when it is first asked."""
    with ClientPrograms(kafka.bootstrap_servers, tidegate.bootstrap_servers) as programs:
        yield programs


@pytest.fixture(scope="module")
def gate(guarded: SecuredKafka) -> Iterator[RunningTidegate]:
    """Signed in by PLAIN; `reader` may read the topic and `describer` may know of it."""
    guarded.allow("reader", READ, guarded.topic.name)
    guarded.allow("describer", DESCRIBE, guarded.topic.name)
    identity = guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT")
    with own_tidegate(guarded.cluster, identity, bootstrap_servers=guarded.address("SASL_PLAINTEXT")) as running:
        yield running
    guarded.withdraw("reader", READ, guarded.topic.name)
    guarded.withdraw("describer", DESCRIBE, guarded.topic.name)


@pytest.fixture(scope="module")
def gateway(kafka: KafkaCluster, tiered: TieredTopic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The folder that the broker's tier is in, served as a bucket."""
    with versitygw(kafka.tier_dir, tmp_path_factory.mktemp("versitygw"), keeps_metadata=False) as server:
        yield server
