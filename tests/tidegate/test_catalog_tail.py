"""Waiting for the end of the metadata topic, by many reads at once."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.messages import FETCH, Values
from protocol.client.settings import ClientSettings
from proxy.readiness import Readiness
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.serving.log_starts import TierLogStarts
from standalone.serving.owner import WeOwnIt
from storage.metadata.catalog import Catalog
from storage.metadata.event_log import metadata_partition
from storage.metadata.follower import CatalogFollower
from storage.model import TopicIdPartition
from tests.support.background_tasks import tasks_in
from tests.support.config_files import load_lines
from tests.support.fake_kafka import FakeKafka, FakeTopic
from tests.support.segments import topic_partition
from tests.support.waiting import HANG_S_MAX
from tidegate.catalog import TopicCatalogTail, start_catalog
from tidegate.live_settings import LiveSettings
from tidegate.process import Process

PARTITION = topic_partition("orders", 0)
COUNT = 5
NUMBER = metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT)
STRANGER = next(
    partition
    for partition in (topic_partition("orders", number) for number in range(1, 100))
    if metadata_partition(partition.topic_id, partition.partition, COUNT) != NUMBER
)
STRANGERS_NUMBER = metadata_partition(STRANGER.topic_id, STRANGER.partition, COUNT)


class ScriptedFollower:
    """How far each metadata partition was applied."""

    def __init__(self) -> None:
        self.positions = dict.fromkeys(range(COUNT), 0)
        self.ready = False
        self._listeners: list[Callable[[], None]] = []

    def position(self, number: int) -> int:
        return self.positions[number]

    def is_ready(self, _partition: object) -> bool:
        return self.ready

    def on_progress(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def apply(self, number: int, position: int) -> None:
        self.positions[number] = position
        for listener in self._listeners:
            listener()


class ScriptedTopic:
    """Where each metadata partition ends, and which were asked about, request by request."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends = dict(ends)
        self.asked: list[list[int]] = []
        self.latency_s = 0.0
        self.failure: Exception | None = None

    async def ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        self.asked.append(list(partitions))
        await trio.sleep(self.latency_s)
        if self.failure is not None:
            raise self.failure
        return {number: (0, self.ends.get(number, 0)) for number in partitions}


def tail_of(
    nursery: trio.Nursery, follower: ScriptedFollower, topic: ScriptedTopic | Mapping[int, int]
) -> TopicCatalogTail:
    scripted = topic if isinstance(topic, ScriptedTopic) else ScriptedTopic(topic)
    return TopicCatalogTail(cast(CatalogFollower, follower), lambda: COUNT, scripted.ranges, nursery)


@pytest.mark.autojump
async def test_reads_that_miss_share_one_question_to_their_own_metadata_partition(nursery: trio.Nursery) -> None:
    """Failed before: each asked all metadata partitions. A read that missed after a question was asked needs another:
    the segment that it lacks may have been copied meanwhile."""
    follower, topic = ScriptedFollower(), ScriptedTopic({NUMBER: 5})
    follower.positions = dict.fromkeys(range(COUNT), 100)
    tail, topic.latency_s = tail_of(nursery, follower, topic), 1.0
    async with trio.open_nursery() as reads:
        for _ in range(10):
            reads.start_soon(tail.catch_up, PARTITION)
        await trio.sleep(0.5)
        for _ in range(10):
            reads.start_soon(tail.catch_up, PARTITION)
        reads.start_soon(tail.catch_up, STRANGER)
    assert topic.asked == [[NUMBER], [STRANGERS_NUMBER], [NUMBER]]
    assert trio.current_time() == 2.0


async def test_every_read_that_waits_is_woken(nursery: trio.Nursery) -> None:
    # Failed before: each waiter took the others' event away, and only the last one was ever woken.
    follower = ScriptedFollower()
    tail = tail_of(nursery, follower, {NUMBER: 10})
    with trio.fail_after(HANG_S_MAX):
        async with trio.open_nursery() as reads:
            for _ in range(5):
                reads.start_soon(tail.catch_up, PARTITION)
            await trio.testing.wait_all_tasks_blocked()
            follower.apply(NUMBER, 10)


# --- before there is a metadata topic ---


@pytest.mark.autojump
async def test_readiness_waits_for_the_log_starts_once(kafka: FakeKafka, nursery: trio.Nursery, tmp_path: Path) -> None:
    async def long_poll(request: Any) -> Values:
        await trio.sleep(1)
        return kafka.fetch(1, request)

    kafka.add(1, "a").on(FETCH, long_poll)
    kafka.topics[METADATA_TOPIC] = FakeTopic(b"metadata topicid", [1])
    cluster, catalog = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery), Catalog(10)
    log_starts, readiness, meters = ScriptedLogStarts(), Readiness(), Meters(Registry())
    config = load_lines(tmp_path, "mode=standalone\n")
    started = await start_catalog(
        Process(config, LiveSettings(config), meters, readiness, tasks_in(nursery), cluster, ExitStack()),
        catalog,
        WeOwnIt(catalog, cast(TierLogStarts, log_starts), meters.tier),
    )
    await trio.sleep(10)
    assert (readiness.catalog_was_live, started.tail.is_ready(PARTITION)) == (False, False)
    assert "the coordinator of tidegate.log-start has not said yet where logs start" in readiness.reasons[0]

    log_starts.known = True
    await trio.sleep(1)
    assert (readiness.catalog_was_live, started.tail.is_ready(PARTITION)) == (True, True)
    log_starts.known = False
    await trio.sleep(1)
    assert not [reason for reason in readiness.reasons if "coordinator" in reason]
    assert not started.tail.is_ready(PARTITION)
    await started.tail.catch_up(PARTITION)


class ScriptedLogStarts:
    """TierLogStarts as the catalog's side asks it."""

    known = False

    def is_known(self, _partition: TopicIdPartition) -> bool:
        return self.known

    def missing(self) -> str | None:
        return None if self.known else "the coordinator of tidegate.log-start has not said yet where logs start"


async def test_progress_short_of_the_end_or_elsewhere_is_waited_through(nursery: trio.Nursery) -> None:
    follower = ScriptedFollower()
    tail = tail_of(nursery, follower, {NUMBER: 10})
    done = trio.Event()

    async def wait() -> None:
        await tail.catch_up(PARTITION)
        done.set()

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        for number, position in ((NUMBER, 9), ((NUMBER + 1) % COUNT, 99)):
            await trio.testing.wait_all_tasks_blocked()
            follower.apply(number, position)
            await trio.testing.wait_all_tasks_blocked()
            assert not done.is_set()
        follower.apply(NUMBER, 11)
