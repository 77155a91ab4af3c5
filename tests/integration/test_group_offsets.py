"""Offsets that are committed for a group from outside: what Kafka's own tool then says, a group in use, and rights."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its re-exports are not marked as such
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from pipeline.brokers.client import BrokerClient
from protocol.client.connection import ClientSettings
from protocol.client.errors import GroupAuthorizationError, GroupInUseError, TopicAuthorizationError
from protocol.client.sasl import SaslCredentials
from tests.support.client_programs import ACL_COMMAND, kafka_tool
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.needs import ROOT
from tests.support.page_blocks import blocks_of
from tests.support.secured_kafka import HOST, READ, TIMEOUT_S, SecuredKafka, password
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

GUIDE = blocks_of((ROOT / "docs" / "spark.md").read_text("utf-8"))
COMMITTED = 7
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@contextmanager
def client_of(port: int, user: str | None = None) -> Iterator[BrokerClient]:
    sasl = None if user is None else SaslCredentials("PLAIN", user, password(user))
    with BrokerClient(ClientSettings(bootstrap_servers=((HOST, port),), deadline_s=20, sasl=sasl)) as client:
        yield client


@pytest.fixture
def commit(kafka: KafkaCluster, tiered: TieredTopic) -> Iterator[Callable[[str], None]]:
    with client_of(kafka.broker(1).port) as client:
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


@pytest.mark.parametrize(
    ("denied", "reads_topic", "error", "said"),
    [
        (AclOperation.DESCRIBE, True, GroupAuthorizationError, "FindCoordinator {}: ACL Read on Group"),
        (AclOperation.READ, True, GroupAuthorizationError, "OffsetCommit {}: ACL Read on Group"),
        (None, False, TopicAuthorizationError, "OffsetCommit {}: ACL Read on Topic"),
    ],
    ids=["nothing on the group", "Describe alone on the group", "no Read on the topic"],
)
def test_the_right_that_is_missing_is_named(
    guarded: SecuredKafka, denied: AclOperation | None, reads_topic: bool, error: type[Exception], said: str
) -> None:
    group, topic = fresh_name("spark-rights"), guarded.topic.name
    if denied is not None:
        deny(guarded, group, denied)
    wanted = (
        said.format(f"for group {group} is denied to 'reader'") + f" {topic if denied is None else group} is missing"
    )
    with client_of(guarded.ports["SASL_PLAINTEXT"], "reader") as client:
        if reads_topic:
            guarded.allow("reader", READ, topic)
        try:
            with pytest.raises(error) as caught:
                client.commit_offsets(group, {(topic, 0): COMMITTED})
        finally:
            if reads_topic:
                guarded.withdraw("reader", READ, topic)
    assert str(caught.value).endswith(wanted)


def deny(guarded: SecuredKafka, group: str, operation: AclOperation) -> None:
    """To `reader`, whom the stage lets read any group; of a group that no other test has."""
    rule = AclBinding(
        ResourceType.GROUP, group, ResourcePatternType.LITERAL, "User:reader", "*", operation, AclPermissionType.DENY
    )
    for future in guarded.admin.create_acls([rule]).values():
        future.result(TIMEOUT_S)
    wanted = AclBindingFilter(
        ResourceType.GROUP, group, ResourcePatternType.LITERAL, "User:reader", "*", operation, AclPermissionType.DENY
    )
    wait_until(lambda: guarded.admin.describe_acls(wanted).result(TIMEOUT_S), "the broker knows the rule")


def test_the_commands_of_the_guide_grant_it(guarded: SecuredKafka) -> None:
    """As docs/spark.md has them, but for the broker, the user and the topic."""
    group, topic = "orders-to-lake", guarded.topic.name
    ours = {"broker-1:9092": guarded.cluster.bootstrap_servers, "User:tidegate": "User:revoked", "orders": topic}
    for line in GUIDE["Lag and progress 3"].body.splitlines():
        program, *words = shlex.split(line)
        assert program == "kafka-acls.sh"
        kafka_tool(ACL_COMMAND, *(ours.get(word, word) for word in words))
    for kind, name in ((ResourceType.GROUP, group), (ResourceType.TOPIC, topic)):
        wanted = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, "User:revoked", "*", READ, AclPermissionType.ALLOW
        )
        known = partial(guarded.admin.describe_acls, wanted)
        wait_until(partial(_result, known), "the broker knows the rule")
        for future in guarded.admin.delete_acls([wanted]).values():
            future.result(TIMEOUT_S)


def _result(ask: Callable[[], Any]) -> Any:
    return ask().result(TIMEOUT_S)
