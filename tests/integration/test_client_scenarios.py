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

from tests.support import needs
from tests.support.client_programs import CLIENTS, Answer, ClientPrograms, Said
from tests.support.differential_steps import delete_records
from tests.support.digests import Digests
from tests.support.filled_topics import (
    ABORTED_TRANSACTIONS,
    FIRST_TIMESTAMP_MS,
    ISOLATIONS,
    RECORDS_PER_TRANSACTION,
    TIMESTAMPS_SPAN_MS,
    TRANSACTIONS,
    FilledTopic,
)
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


for_all_clients = pytest.mark.parametrize(
    "client",
    [pytest.param(each, marks=pytest.mark.needs(*([each] if needs.is_kind(each) else []))) for each in CLIENTS],
)


def ask(client: str, programs: ClientPrograms, scenario: str, topic: str, **members: Any) -> Answer:
    return same_answer(programs.ask(client, {"scenario": scenario, "topic": topic, **members}), f"{client}: {members}")


@for_all_clients
def test_a_whole_topic_of_every_codec_is_read(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic, tidegate: RunningTidegate
) -> None:
    for isolation in ISOLATIONS:
        before = tidegate.process.counters(codecs.name)
        lasts = codecs.lasts(isolation)
        answer = ask(client, client_programs, "digest", codecs.name, isolation=isolation, lasts=lasts)
        check_digests(answer, codecs.direct[isolation])
        grown = tidegate.process.counters(codecs.name) - before
        assert grown.served_tier_bytes >= codecs.tier_bytes > 0, isolation


@for_all_clients
def test_aborted_transactions_in_the_tier_are_left_out_when_asked(
    client: str, client_programs: ClientPrograms, transactions: FilledTopic
) -> None:
    for isolation in ISOLATIONS:
        lasts = transactions.lasts(isolation)
        answer = ask(client, client_programs, "digest", transactions.name, isolation=isolation, lasts=lasts)
        check_digests(answer, transactions.direct[isolation])
    uncommitted, committed = (transactions.direct[each][0].records for each in ISOLATIONS)
    assert uncommitted == TRANSACTIONS * RECORDS_PER_TRANSACTION
    assert committed == uncommitted - ABORTED_TRANSACTIONS * RECORDS_PER_TRANSACTION


@for_all_clients
def test_a_timestamp_is_sought_in_the_tier_and_read_from(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    members = {"timestamps_ms": TIMESTAMPS_MS, "records": RECORDS_AFTER_TIMESTAMP}
    lasts = codecs.lasts("read_uncommitted")
    found = ask(client, client_programs, "timestamps", codecs.name, lasts=lasts, **members)["found"]
    assert [each["timestamp_ms"] for each in found] == list(TIMESTAMPS_MS)
    first, *_, before_last, last = found
    assert {each["records"] for each in first["partitions"].values()} == {RECORDS_AFTER_TIMESTAMP}
    assert all(each["first"] > 0 for each in before_last["partitions"].values())
    assert {each["records"] for each in last["partitions"].values()} == {0}


@for_all_clients
def test_a_group_of_two_changes_and_loses_nothing(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    answer = ask(client, client_programs, "group", codecs.name, lasts=codecs.lasts("read_uncommitted"))
    check_digests(answer, codecs.direct["read_uncommitted"])


@for_all_clients
def test_paused_partitions_rest_and_go_on_where_they_were(
    client: str, client_programs: ClientPrograms, codecs: FilledTopic
) -> None:
    lasts = codecs.lasts("read_uncommitted")
    answer = ask(client, client_programs, "pause", codecs.name, lasts=lasts, paused=[0, 3])
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
    delete_records(kafka, topic.name, 0, DELETED_BEFORE)
    return topic


@for_all_clients
def test_an_offset_out_of_range_is_followed_by_the_reset_policy(
    client: str, client_programs: ClientPrograms, kafka: KafkaCluster, cut: TieredTopic
) -> None:
    expected = {"earliest": {"first": "start"}, "latest": {"first": "end"}}
    for policy in (*expected, *(["none"] if client not in WITHOUT_POLICY_NONE else [])):
        for where in ("below", "above"):
            end = kafka.partition_offsets(cut.name)[0].high_watermark
            members = {"policy": policy, "start": DELETED_BEFORE, "end": end, "lasts": {0: end - 1}}
            offset = DELETED_BEFORE // 2 if where == "below" else end + 100_000
            answer = ask(client, client_programs, "reset", cut.name, offset=offset, **members)
            assert answer == expected[policy] if policy in expected else answer["error"], (policy, where)


def same_answer(said: Said, what: str = "") -> Answer:
    assert said.through == said.direct, what
    assert "failure" not in said.direct, said.direct["failure"]
    return said.direct


def check_digests(answer: Answer, reference: Digests) -> None:
    """The records are those that librdkafka read."""
    partitions: dict[str, dict[str, Any]] = answer["partitions"]
    expected = {str(partition): dataclasses.asdict(each) for partition, each in reference.items()}
    assert partitions == expected
