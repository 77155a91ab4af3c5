"""Log starts of an own tier at a real coordinator: kept with their topic ids, and lost by the retention of offsets."""

from datetime import timedelta

import pytest
import trio

from protocol.client.connection import ClientSettings
from protocol.client.leaders import AskNode
from protocol.client.messages import Api, Question
from proxy.offsets.log_starts import LOG_START_GROUP, CommittedLogStarts, TierLogStarts
from proxy.upstream.cluster import Cluster
from proxy.upstream.group_offsets import ROLE, GroupOffsets
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition, Uuid, uuid_to_text
from tests.support.metadata_records import finish, started
from tests.support.secured_kafka import HOST
from tests.support.waiting import HANG_S_MAX
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

TOPIC, FIRST_OFFSET, RAISED = "orders", 100, 170

COMMIT_WITH_RETENTION = Api(8, "offset_commit", 2, 4)
"""Whose requests say for how long the offsets are kept; of later ones the broker's `offsets.retention.minutes` says."""


async def test_a_log_start_outlives_the_retention_of_offsets(moody: KafkaCluster, nursery: trio.Nursery) -> None:
    """Given a log start that was raised, when the coordinator's retention takes its offset, then a process that starts
    meanwhile goes by the first segment, and has the log start again as soon as one that knows it has looked."""
    moody.create_topic(TOPIC, partitions=1)
    cluster = Cluster(ClientSettings(bootstrap_servers=((HOST, moody.broker(1).port),)), nursery)
    offsets = GroupOffsets(cluster, LOG_START_GROUP)
    with trio.fail_after(HANG_S_MAX):
        (topic,) = await cluster.learn_topics([TOPIC])
        partition = TopicIdPartition(Uuid(topic.topic_id), 0, TOPIC)
        catalog = Catalog()
        finish(catalog, started("a segment", FIRST_OFFSET, 199, partition=partition))
        serving = TierLogStarts(CommittedLogStarts(offsets), catalog)
        await until_polled(serving)
        assert serving.get(partition) == FIRST_OFFSET
        assert await serving.raise_all({partition: RAISED}) == {partition: RAISED}
        committed = await offsets.fetch([(TOPIC, 0)])
        assert committed[TOPIC, 0] == (RAISED, uuid_to_text(topic.topic_id))

        await commit_for_a_moment(cluster, committed[TOPIC, 0].metadata)
        while True:
            if not await offsets.fetch([(TOPIC, 0)]):
                break
            await trio.sleep(0.1)
        starting = TierLogStarts(CommittedLogStarts(GroupOffsets(cluster, LOG_START_GROUP)), catalog)
        await until_polled(starting)
        assert starting.get(partition) == FIRST_OFFSET

        await until_polled(serving)
        assert serving.get(partition) == RAISED
        await until_polled(starting)
        assert starting.get(partition) == RAISED


async def until_polled(log_starts: TierLogStarts) -> None:
    """The first question of all makes `__consumer_offsets`, which takes the broker a moment."""
    await log_starts.poll()
    while log_starts.complaints():
        await trio.sleep(0.1)
        await log_starts.poll()


async def commit_for_a_moment(cluster: Cluster, metadata: str) -> None:
    """The same offset again, to be kept for a millisecond."""
    entry = {"partition_index": 0, "committed_offset": RAISED, "committed_metadata": metadata}
    values = {
        "group_id": LOG_START_GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": timedelta(milliseconds=1),
        "topics": [{"name": TOPIC, "partitions": [entry]}],
    }
    (body,) = await cluster.ask_all(ROLE, [AskNode(1, Question(COMMIT_WITH_RETENTION, values))])
    assert [int(each.error_code) for topic in body.topics for each in topic.partitions] == [0]
