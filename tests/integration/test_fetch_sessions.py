"""Fetch sessions (KIP-227): conversations played on the broker and on Tidegate, which must say the same.

`TIDEGATE_SESSIONS` is how many conversations of 20 requests (40), `TIDEGATE_SESSIONS_SEED` repeats a run.
"""

import os
import random
import threading
from collections.abc import Iterator

import pytest

from protocol.fetch.messages import FETCH_VERSION_MAX
from tests.support.kafka import TIERED, Record, fresh_name, orders, produce, small_segments, wait_settled
from tests.support.raw_client import FETCH, RawClient
from tests.support.session_player import Played, PlayedPartition, Script, SessionPlayer, Step, summary
from tests.support.tidegate import RunningTidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

CONVERSATIONS = int(os.environ.get("TIDEGATE_SESSIONS") or 40)
SEED = int(os.environ.get("TIDEGATE_SESSIONS_SEED") or random.SystemRandom().randrange(2**32))
REQUESTS = 20
READ_RECORDS = 50
"""Fewer than a segment has."""
VERSION_MIN = 7
SHOWN_MAX = 10

ABSENT = PlayedPartition("sessions-absent", bytes(range(16)), 0, 0, -1)


@pytest.fixture(scope="module")
def partitions(kafka: KafkaCluster) -> list[PlayedPartition]:
    """Three that are mostly in the tier and nobody adds to, two without a tier, one that is not there."""
    cold, hot = fresh_name("sessions-cold"), fresh_name("sessions-hot")
    kafka.create_topic(cold, 3, {**TIERED, **small_segments(12)})
    kafka.create_topic(hot, 2, {})
    produce(kafka, cold, orders(3000, 3), batch_num_messages=10)
    produce(kafka, hot, orders(200, 2), batch_num_messages=10)
    settled = wait_settled(kafka, cold)
    with RawClient("127.0.0.1", kafka.broker(1).port) as client:
        cold_id, hot_id = client.topic_id(cold), client.topic_id(hot)
    return [
        *(
            PlayedPartition(cold, cold_id, number, offsets.local_log_start_offset, offsets.high_watermark)
            for number, offsets in settled.items()
        ),
        *(
            PlayedPartition(hot, hot_id, number, 0, offsets.high_watermark)
            for number, offsets in kafka.partition_offsets(hot).items()
        ),
        ABSENT,
    ]


@pytest.fixture
def player(
    kafka: KafkaCluster, tidegate: RunningTidegate, partitions: list[PlayedPartition]
) -> Iterator[SessionPlayer]:
    with RawClient("127.0.0.1", kafka.broker(1).port) as broker, RawClient(*tidegate.address) as ours:
        yield SessionPlayer(broker, ours, partitions, "script")


def test_made_up_conversations_are_answered_alike(
    kafka: KafkaCluster,
    tidegate: RunningTidegate,
    partitions: list[PlayedPartition],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A first read of a segment may take longer than records of others are held for it.
    with RawClient(*tidegate.address) as ours:
        for each in partitions:
            for offset in range(0, each.tier_end, READ_RECORDS):
                ours.patient_fetch(FETCH_VERSION_MAX, [(each.topic, each.topic_id, each.partition, offset, 1)])
    played = Played()
    for number in range(CONVERSATIONS):
        with RawClient("127.0.0.1", kafka.broker(1).port) as broker, RawClient(*tidegate.address) as ours:
            version_max = min(broker.api_versions()[FETCH][1], ours.api_versions()[FETCH][1], FETCH_VERSION_MAX)
            script = Script(SEED, number, partitions, (VERSION_MIN, version_max))
            player = SessionPlayer(broker, ours, partitions, f"conversation {number}")
            for _ in range(REQUESTS):
                if (grown := script.wants_record()) is not None:
                    _append(kafka, grown)
                player.play(script.step(), played)
    with capsys.disabled():
        print(f"\nsessions: seed {SEED}, {summary(played)}")
    assert not played.differences, "\n".join([f"TIDEGATE_SESSIONS_SEED={SEED}", *played.differences[:SHOWN_MAX]])
    assert played.became_ours > CONVERSATIONS / 4
    assert played.given_back > CONVERSATIONS / 8
    assert played.errors.keys() >= {0, 1, 70, 71, 106}


def test_a_life_of_a_session(player: SessionPlayer, partitions: list[PlayedPartition]) -> None:
    """Local, into the tier, out of it again, forgotten and added, refused, emptied."""
    for version in (7, 12, 13, 17):
        played = Played()
        for step in life_of_a_session(version, partitions):
            player.play(step, played)
        assert not played.differences, "\n".join([f"version {version}", *played.differences])
        assert (played.became_ours, played.given_back) == (2, 2), f"version {version}"


def life_of_a_session(version: int, partitions: list[PlayedPartition]) -> list[Step]:
    first, second, _, local, _, absent = partitions
    other = 13 if version < 13 else 12
    return [
        Step("open", version, ((first, first.end), (local, local.end))),
        Step("go on", version),
        Step("go on", version, ((first, 3),)),
        Step("go on", version, ((first, 13),)),
        Step("go on", version),
        Step("go on", other),
        Step("wrong epoch", version, ((second, 5),)),
        Step("wrong id", version),
        Step("go on", version, ((second, 5), (absent, 0)), (first,)),
        Step("go on", version, ((first, 20),), (second,)),
        Step("go on", version, ((first, first.end), (first, 30)), (absent,)),
        Step("go on", version, ((first, first.end),)),
        Step("go on", version),
        Step("go on", version, ((local, 0),)),
        Step("go on", version, ((local, local.end), (second, second.tier_end - 1))),
        Step("go on", version, ((second, second.tier_end),)),
        Step("go on", version, ((second, 0),), (first, second, local)),
        Step("go on", version),
        Step("open", version, ((first, 0), (second, 0))),
        Step("open", version, ((local, local.end),)),
        Step("close", version, ((first, 0),)),
        Step("go on", version),
    ]


def test_a_session_that_is_given_back_waits_as_the_broker_does(
    kafka: KafkaCluster, player: SessionPlayer, partitions: list[PlayedPartition]
) -> None:
    first, *_, local, _ = partitions
    end = kafka.partition_offsets(local.topic)[local.partition].high_watermark
    played = Played()
    player.play(Step("open", 17, ((first, 3), (local, end))), played)
    for named in (((first, first.end),), ((local, end + 1),)):
        growth = threading.Timer(0.3, _append, (kafka, local))
        growth.start()
        step = Step("go on", 17, named, max_wait_ms=10_000, min_bytes=1)
        theirs, ours = player.play(step, played)
        growth.join()
        assert [bool(each.records) for each in theirs.partitions] == [True]
        assert [bool(each.records) for each in ours.partitions] == [True]
    assert not played.differences, "\n".join(played.differences)
    assert (played.given_back, played.late) == (1, 0)


def test_a_session_does_not_outlive_its_connection(
    kafka: KafkaCluster, tidegate: RunningTidegate, partitions: list[PlayedPartition]
) -> None:
    """At a broker it does, until it is evicted; a client that reconnects opens another at either."""
    # Those of connections that have just been closed end a moment later.
    wait_until(lambda: tidegate.metric("tidegate_fetch_sessions") == 0, "the end of other sessions")
    first = partitions[0]
    with RawClient(*tidegate.address) as client:
        client.patient_fetch(17, [first.target(3)])
        opened = client.fetch(17, [first.target(3)], session=(0, 0))
        assert tidegate.metric("tidegate_fetch_sessions") == 1
    with RawClient(*tidegate.address) as client:
        assert client.fetch(17, [], session=(opened.session_id, 1)).error_code == 70
        again = client.fetch(17, [first.target(3)], session=(opened.session_id, 0))
        assert again.session_id not in (0, opened.session_id)
        assert again.partitions[0].records == opened.partitions[0].records


def _append(cluster: KafkaCluster, partition: PlayedPartition) -> None:
    produce(cluster, partition.topic, iter([Record(partition.partition, b"key", b"one more")]), linger_ms=0)
