"""Topics and the stage that the tests of hostile clients share."""

from collections.abc import Iterator

import pytest

from tests.support.hostile_stage import (
    BATCHES,
    HonestTopic,
    HostileStage,
    LargeTopic,
    blobs,
    honest_topic_of,
    hostile_stage,
    make_honest_topic,
    make_large_topic,
)
from tests.support.kafka import fresh_name, produce
from tests.support.secured_kafka import READ, SecuredKafka
from tools.demo.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def honest_topic(kafka: KafkaCluster) -> HonestTopic:
    """24 MiB in two partitions, nearly all in the tier alone."""
    return make_honest_topic(kafka)


@pytest.fixture(scope="session")
def large_topic(kafka: KafkaCluster) -> LargeTopic:
    """One partition with a segment of 64 MiB in the tier alone."""
    return make_large_topic(kafka)


@pytest.fixture(scope="session")
def local_topic(kafka: KafkaCluster) -> str:
    """Six partitions of 8 MiB each that are all in the broker."""
    name = fresh_name("local")
    kafka.create_topic(name, 6)
    produce(kafka, name, blobs(48, 6), **BATCHES)
    return name


@pytest.fixture(scope="module")
def running_stage(kafka: KafkaCluster, honest_topic: HonestTopic) -> Iterator[HostileStage]:
    """One Tidegate and one honest consumer: each test leaves them as it found them, or fails.

    Not for the session: the consumer never pauses, and half a core would go to it until the last test of all.
    """
    with hostile_stage(kafka, honest_topic) as started:
        yield started


@pytest.fixture
def stage(running_stage: HostileStage) -> HostileStage:
    """Return the running stage, of which this test has seen nothing yet."""
    running_stage.begin_again()
    return running_stage


@pytest.fixture(scope="module")
def secret(guarded: SecuredKafka) -> Iterator[HonestTopic]:
    """The secured broker's topic, which `reader` may read while a module runs that uses this."""
    guarded.allow("reader", READ, guarded.topic.name)
    ends = {partition: known.high_watermark for partition, known in guarded.topic.offsets.items()}
    yield honest_topic_of(guarded.ports["PLAINTEXT"], guarded.topic.name, ends)
    guarded.withdraw("reader", READ, guarded.topic.name)
