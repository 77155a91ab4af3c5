"""Who leads which partition: asked, and changed as an operator would."""

import datetime
from collections.abc import Mapping, Sequence

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.raw_client import RawClient
from tests.support.tidegate import RunningTidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

ALTER_PARTITION_REASSIGNMENTS = 45


def move_leaders(cluster: KafkaCluster, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
    """Give partitions these replicas, and have the first of each lead it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wanted = [{"partition_index": partition, "replicas": tuple(ids)} for partition, ids in replicas.items()]
    running = next(broker for broker in cluster.brokers if broker.is_running)
    with RawClient("127.0.0.1", running.port) as client:
        values = {"timeout": datetime.timedelta(seconds=20), "topics": [{"name": topic, "partitions": wanted}]}
        answer = client.call(ALTER_PARTITION_REASSIGNMENTS, 0, values)
        assert answer.error_code == 0, answer

    def are_in_sync() -> bool:
        found = admin.list_topics(topic, timeout=20).topics[topic].partitions
        return all(
            partition in found
            and list(found[partition].replicas) == list(ids)
            and set(found[partition].isrs) == set(ids)
            for partition, ids in replicas.items()
        )

    wait_until(are_in_sync, f"{replicas} to be in sync")
    partitions = [TopicPartition(topic, partition) for partition in replicas]

    def lead() -> bool:
        admin.elect_leaders(ElectionType.PREFERRED, partitions).result(20)
        return leaders_of(cluster, topic) == {partition: ids[0] for partition, ids in replicas.items()}

    wait_until(lead, f"the first of {replicas} to lead")


def leaders_of(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Node id by partition; -1 while there is no leader."""
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(topic, timeout=20)
    return {partition.id: partition.leader for partition in metadata.topics[topic].partitions.values()}


def broker_ports(tidegate: RunningTidegate) -> dict[int, int]:
    """Return what clients get: each broker's listener."""
    with RawClient(*tidegate.address) as client:
        return {int(broker.node_id): int(broker.port) for broker in client.metadata([]).brokers}
