"""Offsets that are committed for a group from outside: what Kafka's own tool then says, and a group in use."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer

from protocol.client.errors import GroupInUseError
from protocol.client.settings import ClientSettings
from table.brokers.client import BrokerClient
from tests.support.client_programs import kafka_tool
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.secured_kafka import HOST
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

COMMITTED = 7
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def commit(kafka: KafkaCluster, tiered: TieredTopic) -> Iterator[Callable[[str], None]]:
    settings = ClientSettings(bootstrap_servers=((HOST, kafka.broker(1).port),), deadline_s=20)
    with BrokerClient(settings) as client:
        yield lambda group: client.commit_offsets(group, {(tiered.name, 0): COMMITTED, (tiered.name, 1): 0})


def test_kafkas_own_tool_shows_the_lag(kafka: KafkaCluster, tiered: TieredTopic, commit: Callable[[str], None]) -> None:
    """Given a group that there is not yet, when offsets are committed for it, then `kafka-consumer-groups.sh` has
    them, and what they are behind."""
    group = fresh_name("spark-lag")
    commit(group)
    said = kafka_tool(TOOL, "--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group)
    rows = [line.split()[:6] for line in said.splitlines() if line.startswith(group)]
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    assert sorted(rows) == [
        [group, tiered.name, str(partition), str(committed), str(ends[partition]), str(ends[partition] - committed)]
        for partition, committed in ((0, COMMITTED), (1, 0))
    ]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_left_alone(
    kafka: KafkaCluster, tiered: TieredTopic, commit: Callable[[str], None], protocol: str
) -> None:
    """Given a consumer in the group, when offsets are to be committed for it, then that is refused in a sentence, and
    done as soon as it has left."""
    group = fresh_name(f"spark-{protocol}")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.protocol": protocol})
    consumer.subscribe([tiered.name])
    try:
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "the consumer has joined")
        with pytest.raises(GroupInUseError, match=f"for group {group} is refused: the group has members, whose"):
            commit(group)
    finally:
        consumer.close()
    commit(group)
