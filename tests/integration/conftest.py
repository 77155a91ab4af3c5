"""Fixtures that only tests against a real Kafka share."""

from collections.abc import Iterator

import pytest

from tests.support.client_programs import ClientPrograms
from tests.support.differential_world import DifferentialWorld, differential_world
from tests.support.filled_topics import FilledTopic, fill_codecs, fill_transactions
from tests.support.tidegate import RunningTidegate
from tools.demo.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def differential() -> Iterator[DifferentialWorld]:
    """A broker with topics of every kind and several leader epochs, where nothing moves; only ask questions."""
    with differential_world() as world:
        yield world


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
