"""A topic that Tidegate may not describe: brokers serve all of it, and every place where an operator looks says so."""

import html
import json
from collections.abc import Iterator

import pytest

from tests.support.client_programs import ACL_COMMAND, kafka_tool
from tests.support.raw_client import RawClient
from tests.support.secured_kafka import DESCRIBE, READ, SecuredKafka, password
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


@pytest.fixture
def blind(guarded: SecuredKafka) -> Iterator[RunningTidegate]:
    """A Tidegate whose user has lost Describe on the tiered topic; a reader may read it."""
    guarded.withdraw("tidegate", DESCRIBE, guarded.topic.name)
    guarded.allow("reader", READ, guarded.topic.name)
    identity = guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT")
    try:
        with own_tidegate(guarded.cluster, identity, bootstrap_servers=guarded.address("SASL_PLAINTEXT")) as tidegate:
            yield tidegate
    finally:
        guarded.withdraw("reader", READ, guarded.topic.name)
        guarded.allow("tidegate", DESCRIBE, guarded.topic.name)


def undescribed(gate: RunningTidegate) -> float:
    return gate.metric("tidegate_fallback_partitions", reason="not_described")


def first_records(gate: RunningTidegate, topic: str) -> bytes:
    """Return what a reader gets at the topic's first offset, which only the tier holds."""
    with RawClient(*gate.address) as client:
        assert client.sasl_plain("reader", password("reader")) == 0
        (partition,) = client.patient_fetch(12, [(topic, None, 0, 0, 1 << 20)]).partitions
    assert partition.error_code == 0
    return partition.records


def test_a_topic_without_describe_is_told_in_every_place_until_it_has_it(
    guarded: SecuredKafka, blind: RunningTidegate
) -> None:
    """Failed before: ready, not degraded, no trouble, fallback 0 for every reason, and "upstream names no leader"."""
    topic = guarded.topic.name
    wait_until(lambda: undescribed(blind) > 0, "the metric to tell of it")
    by_brokers = first_records(blind, topic)
    assert by_brokers
    assert blind.metric("tidegate_served_tier_bytes_total") == 0

    wait_until(lambda: json.loads(blind.page("/readyz"))["degraded"], "a complaint")
    report, status = json.loads(blind.page("/readyz")), json.loads(blind.page("/status.json"))
    assert report["ready"]
    cause = f"ACL Describe on Topic {topic} is missing for 'tidegate'"
    grant = (
        f"kafka-acls.sh --bootstrap-server {guarded.address('SASL_PLAINTEXT')} --command-config admin.properties "
        f"--add --allow-principal User:tidegate --operation Describe --topic {topic}"
    )
    (row,) = [row for row in status["partitions"]["rows"] if row["topic"] == topic]
    (trouble,) = status["troubles"]
    (spell,) = status["fallbacks"]
    for place in (*report["complaints"], row["problem"], trouble["what"], spell["detail"], blind.log()):
        assert cause in place
        assert grant in place
    assert row["left_to_broker"] == spell["reason"] == "not_described"
    assert html.escape(cause) in blind.page("/")

    # The command as it stands, but for the listener: super users alone may grant, in plain text.
    arguments = grant.removeprefix("kafka-acls.sh ").split()
    arguments[1:4] = [guarded.cluster.bootstrap_servers]
    kafka_tool(ACL_COMMAND, *arguments)
    wait_until(lambda: undescribed(blind) == 0, "the right to be noticed")
    assert first_records(blind, topic) == by_brokers
    assert blind.metric("tidegate_served_tier_bytes_total") > 0
    wait_until(lambda: not json.loads(blind.page("/readyz"))["degraded"], "no complaint any more")
    assert json.loads(blind.page("/status.json"))["troubles"] == []
