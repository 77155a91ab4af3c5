"""Client libraries of seven kinds, each in the conversations that it has with a broker: through Tidegate as directly.

Each answer through Tidegate is compared with the same library's answer at the broker, so that a library's own ways
(how it names an error, what it calls the offset of no record) cancel out. The records are compared with what librdkafka
read as well: none of the seven errs in them on its own. Two do not have all that the others have: kafkajs has no reset
policy "none", and it reads in groups alone, so a seek of its own comes after a first Fetch from elsewhere; sarama has
reset policies in groups alone, so there its offset out of range is a committed one.
"""

import dataclasses
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support import needs
from tests.support.client_programs import CLIENTS, Answer, ClientPrograms, Said
from tests.support.digests import Digests, Isolation
from tests.support.filled_topics import FIRST_TIMESTAMP_MS, ISOLATIONS, TIMESTAMPS_SPAN_MS, FilledTopic
from tests.support.kafka import TieredTopic, fresh_name, orders, small_segments, tiered_topic
from tests.support.tidegate import RunningTidegate
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

WITHOUT_POLICY_NONE = ("kafkajs",)
"""The two of fromBeginning are its only policies."""
RECORDS_AFTER_TIMESTAMP = 30
TIMESTAMPS_MS = (
    0,
    FIRST_TIMESTAMP_MS,
    FIRST_TIMESTAMP_MS + TIMESTAMPS_SPAN_MS // 2,
    # Few records are so late: the first of them lies deep in the tier.
    FIRST_TIMESTAMP_MS + TIMESTAMPS_SPAN_MS - 4000,
    FIRST_TIMESTAMP_MS + TIMESTAMPS_SPAN_MS,
)
DELETED_BEFORE = 700


def marked(client: str, *others: str) -> ParameterSet:
    """The client as a parameter, with what it needs."""
    needed = [client] if needs.is_kind(client) else []
    return pytest.param(client, *others, marks=pytest.mark.needs(*needed), id="-".join([client, *others]))


for_all_clients = pytest.mark.parametrize("client", [marked(client) for client in CLIENTS])
for_all_policies = pytest.mark.parametrize(
    ("client", "policy"),
    [
        marked(client, policy)
        for client in CLIENTS
        for policy in ("earliest", "latest", "none")
        if policy != "none" or client not in WITHOUT_POLICY_NONE
    ],
)


@for_all_clients
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_whole_topic_of_every_codec_is_read(
    client: str, isolation: Isolation, client_programs: ClientPrograms, codecs: FilledTopic, tidegate: RunningTidegate
) -> None:
    request = {"scenario": "digest", "topic": codecs.name, "isolation": isolation, "lasts": codecs.lasts(isolation)}
    before = tidegate.process.counters(codecs.name)
    answer = same_answer(client_programs.ask(client, request))
    check_digests(answer, codecs.direct[isolation])
    grown = tidegate.process.counters(codecs.name) - before
    assert grown.served_tier_bytes >= codecs.tier_bytes > 0


@for_all_clients
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_aborted_transactions_in_the_tier_are_left_out_when_asked(
    client: str, isolation: Isolation, client_programs: ClientPrograms, transactions: FilledTopic
) -> None:
    lasts = transactions.lasts(isolation)
    request = {"scenario": "digest", "topic": transactions.name, "isolation": isolation, "lasts": lasts}
    answer = same_answer(client_programs.ask(client, request))
    check_digests(answer, transactions.direct[isolation])


@for_all_clients
def test_a_timestamp_is_sought_in_the_tier_and_read_from(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    request: dict[str, Any] = {
        "scenario": "timestamps",
        "topic": codecs.name,
        "lasts": codecs.lasts("read_uncommitted"),
    }
    request |= {"timestamps_ms": TIMESTAMPS_MS, "records": RECORDS_AFTER_TIMESTAMP}
    answer = same_answer(client_programs.ask(client, request))
    found = answer["found"]
    assert [each["timestamp_ms"] for each in found] == list(TIMESTAMPS_MS)
    first, *_, before_last, last = found
    assert {each["records"] for each in first["partitions"].values()} == {RECORDS_AFTER_TIMESTAMP}
    assert all(each["first"] > 0 for each in before_last["partitions"].values())
    assert {each["records"] for each in last["partitions"].values()} == {0}


@for_all_clients
def test_a_group_of_two_changes_and_loses_nothing(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    request = {"scenario": "group", "topic": codecs.name, "lasts": codecs.lasts("read_uncommitted")}
    answer = same_answer(client_programs.ask(client, request))
    check_digests(answer, codecs.direct["read_uncommitted"])


@for_all_clients
def test_paused_partitions_rest_and_go_on_where_they_were(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    request = {"scenario": "pause", "topic": codecs.name, "lasts": codecs.lasts("read_uncommitted"), "paused": [0, 3]}
    answer = same_answer(client_programs.ask(client, request))
    assert answer["stopped"]
    check_digests(answer, codecs.direct["read_uncommitted"])


@pytest.fixture(scope="module")
def cut(kafka: KafkaCluster) -> TieredTopic:
    """A topic whose log begins in the midst of the tier."""
    settings = small_segments(batches=4)
    topic = tiered_topic(
        kafka, fresh_name("clients-cut"), records=orders(2000, 1), configs=settings, batch_num_messages=100
    )
    assert topic.offsets[0].local_log_start_offset > DELETED_BEFORE
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (deleted,) = admin.delete_records([TopicPartition(topic.name, 0, DELETED_BEFORE)]).values()
    assert deleted.result(30).low_watermark == DELETED_BEFORE
    return topic


@for_all_policies
@pytest.mark.parametrize("where", ["below", "above"])
def test_an_offset_out_of_range_is_followed_by_the_reset_policy(
    client: str, policy: str, where: str, client_programs: ClientPrograms, kafka: KafkaCluster, cut: TieredTopic
) -> None:
    end = kafka.partition_offsets(cut.name)[0].high_watermark
    offset = DELETED_BEFORE // 2 if where == "below" else end + 100_000
    request = {"scenario": "reset", "topic": cut.name, "policy": policy, "offset": offset, "lasts": {0: end - 1}}
    answer = same_answer(client_programs.ask(client, {**request, "start": DELETED_BEFORE, "end": end}))
    expected = {"earliest": {"first": "start"}, "latest": {"first": "end"}}
    if policy == "none":
        assert answer["error"]
    else:
        assert answer == expected[policy]


def same_answer(said: Said) -> Answer:
    assert said.through == said.direct
    assert "failure" not in said.direct, said.direct["failure"]
    return said.direct


def check_digests(answer: Answer, reference: Digests) -> None:
    """The records are those that librdkafka read."""
    partitions: dict[str, dict[str, Any]] = answer["partitions"]
    expected = {str(partition): dataclasses.asdict(each) for partition, each in reference.items()}
    assert partitions == expected
