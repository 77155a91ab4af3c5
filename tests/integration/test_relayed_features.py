"""What Tidegate relays and takes no part in: share groups, transactions, KIP-848 groups, telemetry, admin calls.

The same program runs at the broker and through Tidegate; what it is told must be the same.
"""

import dataclasses
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its re-exports are not marked as such
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.support.client_programs import ClientPrograms, Said
from tests.support.filled_topics import FilledTopic, fill_codecs, fill_transactions
from tests.support.kafka import fresh_name
from tests.support.needs import JARS, ROOT
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

RECORDS_PER_TRANSACTION = 5
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker whose groups of the new kinds change in a moment, and that takes telemetry (which a broker without a
    reporter for it does not offer)."""
    folder = tmp_path_factory.mktemp("relayed")
    jars = folder / "jars"
    jars.mkdir()
    for jar in JARS.glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    source = ROOT / "tests" / "integration" / "java" / "TelemetryReceiver.java"
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(folder / "classes"), str(source)], check=True, timeout=60)
    with zipfile.ZipFile(jars / "telemetry-receiver.jar", "w") as archive:
        for compiled in (folder / "classes").glob("*.class"):
            archive.write(compiled, compiled.name)
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


def same_answer(said: Said) -> dict[str, Any]:
    assert said.through == said.direct
    assert "failure" not in said.through, said.through["failure"]
    return said.through


def test_a_share_group_gets_and_acknowledges_every_record(
    client_programs: ClientPrograms, transactions: FilledTopic
) -> None:
    """Of a topic that is mostly in the tier: the broker reads it for share groups by itself."""
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
    read = {int(partition): each for partition, each in answer["partitions"].items()}
    assert read == {
        partition: dataclasses.asdict(each) for partition, each in codecs.direct["read_uncommitted"].items()
    }


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


def test_librdkafkas_admin_client_is_told_the_same(
    kafka: KafkaCluster, tidegate: RunningTidegate, codecs: FilledTopic
) -> None:
    direct, through = (admin_calls(each.bootstrap_servers, codecs) for each in (kafka, tidegate))
    assert through == direct
    assert through["list_consumer_group_offsets"] == "[7]"
    assert through["create_partitions"] == "None"


def admin_calls(bootstrap_servers: str, codecs: FilledTopic) -> dict[str, str]:
    """What each call says, or the name of its error; what it makes has a name of its own, which reads MADE."""
    made, said = fresh_name("clients-admin"), {}
    for name, call in AdminCalls(bootstrap_servers, made, codecs.name).all().items():
        try:
            text = str(call())
        except Exception as error:
            text = error.args[0].name() if hasattr(error.args[0], "name") else repr(error)
        said[name] = text.replace(made, "MADE")
    return said


class AdminCalls:
    """librdkafka's admin client, call after call. A topic and a group are `made`, and gone in the end."""

    def __init__(self, bootstrap_servers: str, made: str, tiered: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._made = made
        self._tiered = tiered
        self._partition = TopicPartition(made, 0, 7)
        change = ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
        self._resource = ConfigResource(ResourceType.TOPIC, made, incremental_configs=[change])

    def all(self) -> dict[str, Callable[[], Any]]:
        """In the order in which they are to be made."""
        admin, made = self._admin, self._made
        nobody = cast("dict[str, Any]", admin.describe_user_scram_credentials(["nobody"]))
        return {
            "create_topics": lambda: one(admin.create_topics([NewTopic(made, num_partitions=1)])),
            "create_partitions": lambda: one(admin.create_partitions([NewPartitions(made, 3)])),
            "describe_topics": lambda: settled(self._partitions, 3),
            "incremental_alter_configs": lambda: one(admin.incremental_alter_configs([self._resource])),
            "describe_configs": lambda: settled(self._retention, "12345"),
            "list_offsets": self._offsets,
            "delete_records": lambda: one(admin.delete_records([TopicPartition(made, 0, 0)])).low_watermark,
            "alter_consumer_group_offsets": self._alter_group_offsets,
            "list_consumer_group_offsets": self._group_offsets,
            "describe_consumer_groups": lambda: one(admin.describe_consumer_groups([made])).state,
            "delete_consumer_groups": lambda: one(admin.delete_consumer_groups([made])),
            "elect_leaders": self._elected,
            "describe_acls": self._acls,
            "describe_user_scram_credentials": lambda: one(nobody),
            "delete_topics": lambda: one(admin.delete_topics([made])),
        }

    def _partitions(self) -> int:
        try:
            return len(one(self._admin.describe_topics(TopicCollection([self._made]))).partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return 0  # the controller knows it, and the broker not yet

    def _retention(self) -> str:
        return str(one(self._admin.describe_configs([self._resource]))["retention.ms"].value)

    def _offsets(self) -> list[int]:
        specs = [getattr(OffsetSpec, name)() for name in ("earliest", "latest", "max_timestamp")]  # which have no types
        return [one(self._admin.list_offsets({TopicPartition(self._tiered, 0): spec})).offset for spec in specs]

    def _alter_group_offsets(self) -> int:
        wanted = [ConsumerGroupTopicPartitions(self._made, [self._partition])]
        return len(one(self._admin.alter_consumer_group_offsets(wanted)).topic_partitions)

    def _group_offsets(self) -> list[int]:
        answered = one(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self._made)]))
        return [each.offset for each in answered.topic_partitions]

    def _elected(self) -> list[str]:
        answered = self._admin.elect_leaders(ElectionType.PREFERRED, [self._partition]).result(TIMEOUT_S)
        return [error.name() for error in answered.values() if error is not None]

    def _acls(self) -> list[Any]:
        any_name: Any = None  # the types demand text where None means any
        everything = AclBindingFilter(
            ResourceType.ANY,
            any_name,
            ResourcePatternType.ANY,
            any_name,
            any_name,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        return list(self._admin.describe_acls(everything).result(TIMEOUT_S))


def one(futures: dict[Any, Any]) -> Any:
    """The result of a call about one thing."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def settled(ask: Callable[[], Any], expected: Any) -> Any:
    """The broker follows its controller: what was changed is told a moment later."""
    wait_until(lambda: ask() == expected, f"it says {expected}")
    return expected


def test_a_client_pushes_its_metrics_to_the_broker(
    client_programs: ClientPrograms, kafka: KafkaCluster, codecs: FilledTopic
) -> None:
    said = client_programs.ask("RelayedFeatures", {"scenario": "telemetry", "topic": codecs.name, "records": 10})
    for answer in (said.direct, said.through):
        line = re.compile(rf"telemetry: {re.escape(answer['client_instance_id'])} [1-9]\d* ")
        wait_until(partial(logged, kafka, line), "the broker was given metrics")


def logged(kafka: KafkaCluster, line: re.Pattern[str]) -> bool:
    return line.search(kafka.broker(1).log_path.read_text("utf-8", "replace")) is not None
