"""What Tidegate relays and takes no part in: share groups, transactions, KIP-848 groups, telemetry, admin calls.

The same program runs at the broker and through Tidegate; what it gets must be the same.
"""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from tests.integration.test_client_scenarios import check_digests, same_answer
from tests.support.broker_plugin import jars_with
from tests.support.client_programs import ClientPrograms
from tests.support.filled_topics import FilledTopic, fill_codecs, fill_transactions
from tests.support.needs import ROOT
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

RECORDS_PER_TRANSACTION = 5


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker whose groups of the new kinds change in a moment, and that takes telemetry (which a broker without a
    reporter for it does not offer)."""
    folder = tmp_path_factory.mktemp("relayed")
    jars = jars_with(ROOT / "tests" / "integration" / "java" / "TelemetryReceiver.java", folder)
    properties = {"metric.reporters": "TelemetryReceiver"}
    for kind in ("consumer", "share"):
        properties |= {f"group.{kind}.heartbeat.interval.ms": "200", f"group.{kind}.min.heartbeat.interval.ms": "200"}
    with KafkaCluster(jars=jars, work=folder, properties=properties) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tidegate(kafka: KafkaCluster) -> Iterator[RunningTidegate]:
    with own_tidegate(kafka, {"authority.max.age.ms": "0"}) as running:
        yield running


@pytest.fixture(scope="module")
def transactions(kafka: KafkaCluster) -> FilledTopic:
    return fill_transactions(kafka, kafka.bootstrap_servers)


@pytest.fixture(scope="module")
def codecs(kafka: KafkaCluster) -> FilledTopic:
    return fill_codecs(kafka)


def test_a_share_group_gets_and_acknowledges_every_record(
    client_programs: ClientPrograms, transactions: FilledTopic
) -> None:
    """With a topic that is mostly in the tier: the broker reads it for share groups by itself."""
    records = transactions.direct["read_uncommitted"][0].records
    request = {"scenario": "share", "topic": transactions.name, "records": records}
    answer = same_answer(client_programs.ask("RelayedFeatures", request))
    assert answer["accepted"] == records
    assert 0 < answer["released"] < records
    assert answer["delivered_again"]


def test_transactions_commit_abort_carry_offsets_and_fence(
    client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    request = {"scenario": "transactions", "topic": codecs.name, "records": RECORDS_PER_TRANSACTION}
    answer = same_answer(client_programs.ask("RelayedFeatures", request))
    committed = [f"true {number}" for number in range(RECORDS_PER_TRANSACTION)]
    aborted = [f"false {number}" for number in range(RECORDS_PER_TRANSACTION)]
    assert answer["read_committed"] == [*committed, "last"]
    assert answer["read_uncommitted"] == [*committed, *aborted, "last"]
    assert answer["committed_offset"] == RECORDS_PER_TRANSACTION
    assert answer["fenced"] in ("ProducerFencedException", "InvalidProducerEpochException")
    assert answer["is_committed"]


@pytest.mark.parametrize("client", ["java", "librdkafka"])
def test_a_group_of_the_new_protocol_changes_and_loses_nothing(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    request = {"scenario": "group", "topic": codecs.name, "lasts": codecs.lasts("read_uncommitted")}
    answer = same_answer(client_programs.ask(client, {**request, "protocol": "consumer"}))
    check_digests(answer, codecs.direct["read_uncommitted"])


def test_kafkas_admin_client_is_told_the_same(client_programs: ClientPrograms, codecs: FilledTopic) -> None:
    answer = same_answer(client_programs.ask("RelayedAdmin", {"scenario": "admin", "topic": codecs.name}))
    assert not [name for name, text in answer.items() if text.startswith("here: ")]
    failed = {name for name, text in answer.items() if re.fullmatch(r"\w+(Exception|Error)", text)}
    assert failed == {
        "alterPartitionReassignments wrong",
        "alterReplicaLogDirs",
        "createAcls",
        "createDelegationToken",
        "createPartitions fewer",
        "createTopics again",
        "createTopics validate only",
        "deleteAcls",
        "deleteConsumerGroups unknown",
        "deleteRecords beyond",
        "describeAcls",
        "describeClassicGroups unknown",
        "describeConsumerGroups unknown",
        "describeDelegationToken",
        "describeShareGroups unknown",
        "describeTopics unknown",
        "describeTransactions unknown",
        "describeUserScramCredentials unknown",
        "incrementalAlterConfigs wrong",
        "unregisterBroker",
        "updateFeatures",
    }
    assert "offset=4," in answer["listOffsets made earliest"]
    assert "offset=10," in answer["listOffsets made latest"]
    assert "max.message.bytes=12345" in answer["describeConfigs"]


def test_a_client_pushes_its_metrics_to_the_broker(
    client_programs: ClientPrograms, kafka: KafkaCluster, codecs: FilledTopic
) -> None:
    said = client_programs.ask("RelayedFeatures", {"scenario": "telemetry", "topic": codecs.name, "records": 10})
    for answer in (said.direct, said.through):
        line = re.compile(rf"telemetry: {re.escape(answer['client_instance_id'])} [1-9]\d* ")
        wait_until(partial(logged, kafka, line), "the broker was given metrics")


def logged(kafka: KafkaCluster, line: re.Pattern[str]) -> bool:
    return line.search(kafka.broker(1).log_path.read_text("utf-8", "replace")) is not None
