"""What clients read through Tidegate is what they read at the broker: across the border of tier and log, by times, in
transactions, in groups, and where the log begins."""

import dataclasses
import itertools
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not marked as re-exported

from tests.broker.sides import (
    SERVED_BYTES,
    Sides,
    fetched,
    for_both_libraries,
    kafka_python_is_quiet,
    library,
    listed,
    wait_for,
)
from tests.support.client_scenarios import ClientLibrary, Request, Taken
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
from tests.support.kafka import fresh_name, orders, small_segments, tiered_topic

pytestmark = [pytest.mark.needs("java", "kafka"), kafka_python_is_quiet]

FETCH_VERSIONS = range(4, 18)
LIST_OFFSETS_VERSIONS = range(1, 12)
SPECIAL_TIMES = (-1, -2, -3, -4, -5)
"""Latest, earliest, the largest timestamp's, the local log's earliest, the tier's latest."""
TIMES_MS = tuple(FIRST_TIMESTAMP_MS + TIMESTAMPS_SPAN_MS * part // 4 for part in range(5))
LITTLE_BYTES, MUCH_BYTES = 1000, 1 << 20
RECORDS_TAKEN = 20
SMALL: dict[str, Any] = {"configs": small_segments(batches=4), "batch_num_messages": 20}


@pytest.fixture(params=["codecs", "transactions"])
def filled(request: pytest.FixtureRequest) -> FilledTopic:
    topic: FilledTopic = request.getfixturevalue(request.param)
    return topic


@for_both_libraries
def test_a_whole_topic_is_read(client: str, filled: FilledTopic, sides: Sides) -> None:
    """Given a topic that is mostly in the tier, when each isolation level reads it, then its records are those that
    librdkafka reads at the broker, and the tier's bytes came from Tidegate."""
    for isolation in ISOLATIONS:
        before = sides.gate.metric(SERVED_BYTES)
        answer = sides.ask(client, "digest", filled.name, isolation=isolation, lasts=filled.lasts(isolation))
        assert answer["partitions"] == as_scenarios_say(filled.direct[isolation]), isolation
        assert sides.gate.metric(SERVED_BYTES) - before >= filled.tier_bytes > 0, isolation


def test_aborted_transactions_were_read_or_left_out(transactions: FilledTopic) -> None:
    uncommitted, committed = (transactions.direct[each][0].records for each in ISOLATIONS)
    assert uncommitted == TRANSACTIONS * RECORDS_PER_TRANSACTION
    assert committed == uncommitted - ABORTED_TRANSACTIONS * RECORDS_PER_TRANSACTION


def test_the_broker_reads_nothing_from_its_tier_for_tidegates_clients(sides: Sides) -> None:
    """Given a topic that nobody reads at the broker, when both libraries have read it through Tidegate, then they have
    what was produced, and the broker's own count of reads from its tier is 0."""
    produced = list(orders(1200, 1))
    topic = tiered_topic(sides.cluster, fresh_name("unread"), records=iter(produced), **SMALL)
    assert topic.offsets[0].latest_tiered_offset > len(produced) // 2
    for client in ("librdkafka", "kafka-python"):
        read = take(library(client, sides.gate.bootstrap_servers), Request("", topic.name), 0, len(produced))
        assert [(each.offset, each.key, each.value) for each in read] == [
            (offset, record.key, record.value) for offset, record in enumerate(produced)
        ]
        assert [tuple(each.headers) for each in read] == [record.headers for record in produced]
    assert sides.cluster.broker(1).remote_fetch_requests(topic.name) == 0


@for_both_libraries
def test_a_reader_begins_anywhere_beside_the_border(client: str, codecs: FilledTopic, sides: Sides) -> None:
    """When a consumer begins at the tier's start, and before, at and behind where the local log begins, then it has the
    broker's records from there on."""
    request = Request("", codecs.name)
    border = sides.cluster.partition_offsets(codecs.name)[0].local_log_start_offset
    for start in (0, border - RECORDS_TAKEN // 2, border - 1, border, border + 1):
        expected, got = (take(each, request, start, RECORDS_TAKEN) for each in sides.libraries(client))
        assert got == expected, start
        assert [each.offset for each in expected] == [*range(start, start + RECORDS_TAKEN)]


def take(connected: ClientLibrary, request: Request, start: int, count: int) -> list[Taken]:
    """Take so many records of partition 0 from an offset on."""
    reader, found = connected.reader(request, {0: start}), list[Taken]()

    def has_enough() -> bool:
        found.extend(reader.poll(0.1))
        return len(found) >= count

    try:
        wait_for(has_enough, f"{count} records from {start} on")
    finally:
        reader.close()
    return found[:count]


@for_both_libraries
def test_a_timestamp_is_sought_in_the_tier_and_read_from(client: str, codecs: FilledTopic, sides: Sides) -> None:
    members = {"timestamps_ms": (0, *TIMES_MS), "records": RECORDS_TAKEN, "lasts": codecs.lasts("read_uncommitted")}
    found = sides.ask(client, "timestamps", codecs.name, **members)["found"]
    first, *_, last = found
    assert {each["records"] for each in first["partitions"].values()} == {RECORDS_TAKEN}
    assert {each["records"] for each in last["partitions"].values()} == {0}


@for_both_libraries
def test_paused_partitions_rest_and_go_on_where_they_were(client: str, codecs: FilledTopic, sides: Sides) -> None:
    answer = sides.ask(client, "pause", codecs.name, lasts=codecs.lasts("read_uncommitted"), paused=[0, 3])
    assert answer["stopped"]
    assert answer["partitions"] == as_scenarios_say(codecs.direct["read_uncommitted"])


@pytest.mark.parametrize(
    ("client", "protocol"), [("librdkafka", "classic"), ("librdkafka", "consumer"), ("kafka-python", "classic")]
)
def test_a_groups_only_member_reads_all_and_commits(
    client: str, protocol: str, codecs: FilledTopic, sides: Sides
) -> None:
    _, through = sides.libraries(client)
    request = Request("group", codecs.name, group=fresh_name("group"), protocol=protocol)
    lasts, read = set(codecs.lasts("read_uncommitted").items()), set[tuple[int, int]]()

    def has_all() -> bool:
        read.update((each.partition, each.offset) for each in member.poll(0.1))
        return lasts <= read

    member = through.member(request)
    try:
        wait_for(has_all, "the member to read all")
    finally:
        member.close()
    assert len(read) == sum(each.records for each in codecs.direct["read_uncommitted"].values())
    partitions = [TopicPartition(codecs.name, partition) for partition in codecs.ends]
    settings = {"bootstrap.servers": sides.gate.bootstrap_servers, "group.id": request.group}
    with closing(Consumer(settings)) as asking:
        assert {each.partition: each.offset for each in asking.committed(partitions, 20)} == codecs.ends


@for_both_libraries
def test_below_a_deleted_offset_the_reset_policy_decides(client: str, sides: Sides) -> None:
    """Given a topic that DeleteRecords, sent through Tidegate, has made to begin in the midst of the tier, when a
    consumer begins before that or behind the end, then it starts where its policy says, or hears an error."""
    topic = tiered_topic(sides.cluster, fresh_name("cut"), records=orders(1200, 1), **SMALL)
    cut = topic.offsets[0].local_log_start_offset // 2
    admin = AdminClient({"bootstrap.servers": sides.gate.bootstrap_servers})
    (deleted,) = admin.delete_records([TopicPartition(topic.name, 0, cut)]).values()
    assert deleted.result(30).low_watermark == cut
    expected = {"earliest": {"first": "start"}, "latest": {"first": "end"}}
    for policy, offset in itertools.product((*expected, "none"), (cut // 2, 100_000)):
        end = sides.cluster.partition_offsets(topic.name)[0].high_watermark
        answer = sides.ask(client, "reset", topic.name, policy=policy, offset=offset, start=cut, end=end)
        assert answer == expected[policy] if policy in expected else answer["error"], (policy, offset)


def test_every_fetch_is_answered_as_the_broker_does(filled: FilledTopic, sides: Sides) -> None:
    """Every version, with both isolation levels: at the tier's ends and inside, at the log's end and beyond."""
    offsets = sides.cluster.partition_offsets(filled.name)[0]
    border, end = offsets.local_log_start_offset, offsets.high_watermark
    with sides.bare() as (direct, through):
        topic_id = direct.topic_id(filled.name)
        for version, isolation, offset, limit in itertools.product(
            FETCH_VERSIONS, (0, 1), (0, border // 2, border - 1, border, end, end + 1), (LITTLE_BYTES, MUCH_BYTES)
        ):
            target = (filled.name, topic_id if version >= 13 else None, 0, offset, limit)
            expected, got = (
                fetched(client, version, target, isolation, is_at_end=offset == end) for client in (direct, through)
            )
            assert got == expected, (version, isolation, offset, limit)


def test_every_offset_is_looked_up_as_at_the_broker(filled: FilledTopic, sides: Sides) -> None:
    with sides.bare() as clients:
        for version, isolation, time_ms in itertools.product(
            LIST_OFFSETS_VERSIONS, (0, 1), (*SPECIAL_TIMES, 0, *TIMES_MS)
        ):
            targets = [(filled.name, partition, time_ms) for partition in filled.ends]
            direct, through = (listed(each, version, targets, isolation) for each in clients)
            assert through == direct, (version, isolation, time_ms)


def test_librdkafka_looks_up_ends_and_largest_timestamps(filled: FilledTopic, sides: Sides) -> None:
    kinds: Any = OffsetSpec  # its functions have no types
    specs = (kinds.earliest(), kinds.latest(), kinds.max_timestamp(), kinds.for_timestamp(TIMES_MS[2]))

    def look_up(bootstrap_servers: str) -> list[tuple[int, int]]:
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        asked = [{TopicPartition(filled.name, each): spec for each in filled.ends} for spec in specs]
        answers = [future.result(20) for each in asked for future in admin.list_offsets(each).values()]
        return [(each.offset, each.timestamp) for each in answers]

    assert look_up(sides.gate.bootstrap_servers) == look_up(sides.cluster.bootstrap_servers)


def test_kafka_python_looks_up_ends(filled: FilledTopic, sides: Sides) -> None:
    import kafka

    partitions = [kafka.TopicPartition(filled.name, each) for each in filled.ends]
    for server in (sides.cluster.bootstrap_servers, sides.gate.bootstrap_servers):
        with closing(kafka.KafkaConsumer(bootstrap_servers=server)) as consumer:
            assert consumer.beginning_offsets(partitions) == dict.fromkeys(partitions, 0)
            assert {each.partition: end for each, end in consumer.end_offsets(partitions).items()} == filled.ends


def as_scenarios_say(digests: Digests) -> dict[int, dict[str, object]]:
    return {partition: dataclasses.asdict(each) for partition, each in digests.items()}
