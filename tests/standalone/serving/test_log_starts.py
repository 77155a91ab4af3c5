"""Log starts of an own tier: what is committed, what counts, and what becomes of it when it expires."""

import pytest
import structlog
import trio
from kio.schema.errors import ErrorCode

from protocol.client.errors import UpstreamError, UpstreamRefusedError
from protocol.client.settings import ClientSettings
from proxy.upstream.cluster import Cluster
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.log_starts import (
    COMMIT_AGAIN_S,
    LOG_START_GROUP,
    POLL_S,
    START_POLL_S,
    UNANSWERED_S_MAX,
    CommittedLogStarts,
    CopierLogStarts,
    TierLogStarts,
)
from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, uuid_to_text
from tests.support.fake_groups import FakeGroup
from tests.support.fake_kafka import FakeKafka
from tests.support.metadata_records import DELETE_FINISHED, DELETE_STARTED, apply_all, finish, moved, started
from tests.support.segments import topic_partition, uuid_of

pytestmark = pytest.mark.autojump

ORDERS, OTHER = topic_partition("orders", 0), topic_partition("other", 1)
ID = uuid_to_text(ORDERS.topic_id)
"""What is kept beside an offset."""


class World:
    """A catalog, a group at a broker, and a process that serves."""

    def __init__(self, kafka: FakeKafka, nursery: trio.Nursery) -> None:
        kafka.add(1, "a")
        self.group = FakeGroup(kafka)
        self.catalog = Catalog()
        self._cluster = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery)
        self.committed = CommittedLogStarts(GroupOffsets(self._cluster, LOG_START_GROUP))
        self.log_starts = TierLogStarts(self.committed, self.catalog)

    def another(self) -> TierLogStarts:
        """Another process."""
        return TierLogStarts(CommittedLogStarts(GroupOffsets(self._cluster, LOG_START_GROUP)), self.catalog)

    def add(self, partition: TopicIdPartition, first: int, last: int) -> None:
        finish(self.catalog, self._segment(partition, first, last))

    def remove(self, partition: TopicIdPartition, first: int, last: int) -> None:
        segment = self._segment(partition, first, last)
        apply_all(self.catalog, moved(segment, DELETE_STARTED), moved(segment, DELETE_FINISHED))

    def _segment(self, partition: TopicIdPartition, first: int, last: int) -> RemoteLogSegmentMetadata:
        return started(f"{partition} {first}", first, last, partition=partition)


@pytest.fixture
def world(kafka: FakeKafka, nursery: trio.Nursery) -> World:
    world = World(kafka, nursery)
    world.add(ORDERS, 100, 199)
    world.add(ORDERS, 200, 299)
    return world


async def test_without_a_commit_it_is_the_first_segments(world: World) -> None:
    assert world.log_starts.get(ORDERS) == 100
    await world.log_starts.poll()
    assert (world.log_starts.get(ORDERS), world.log_starts.get(OTHER)) == (100, None)
    world.remove(ORDERS, 100, 199)
    assert world.log_starts.get(ORDERS) == 200
    world.remove(ORDERS, 200, 299)
    assert world.log_starts.get(ORDERS) is None


async def test_who_asks_for_ever_is_heard_of_when_it_has_no_answer(world: World, nursery: trio.Nursery) -> None:
    """Failed before: nobody asked for the complaints."""
    heard: list[list[str]] = []
    world.group.codes = [ErrorCode.group_authorization_failed] * 8
    nursery.start_soon(world.log_starts.run, lambda reasons: heard.append([*reasons]))
    await trio.sleep(POLL_S / 2)
    assert "committed log starts are as they were heard last" in heard[-1][0]
    world.group.codes = []
    await trio.sleep(2 * POLL_S)
    assert heard[-1] == []


# --- before the coordinator has answered ---


async def test_it_is_not_known_before_the_coordinator_was_asked_about_the_partition(
    world: World, nursery: trio.Nursery
) -> None:
    world.group.offsets["orders", 0] = (150, ID)
    assert not world.log_starts.is_known(ORDERS)
    assert world.log_starts.is_known(OTHER), "the tier has nothing of it"
    nursery.start_soon(world.log_starts.run)
    await trio.sleep(POLL_S / 2)
    assert world.log_starts.is_known(TopicIdPartition(ORDERS.topic_id, 0, ""))
    assert (world.log_starts.are_known(), world.log_starts.get(ORDERS)) == (True, 150)

    world.add(OTHER, 0, 9)
    assert (world.log_starts.is_known(OTHER), world.log_starts.are_known()) == (False, False)
    await trio.sleep(POLL_S)
    assert (world.log_starts.is_known(OTHER), world.log_starts.are_known()) == (True, True)


@pytest.mark.parametrize("trouble", ["refuses", "says nothing"])
async def test_a_coordinator_that_does_not_answer_is_not_waited_for_for_ever(
    world: World, nursery: trio.Nursery, trouble: str
) -> None:
    """What is asked about later is waited for, too, once it has answered again."""
    await world.log_starts.poll()
    world.add(OTHER, 0, 9)
    if trouble == "refuses":
        world.group.codes = [ErrorCode.coordinator_load_in_progress] * 1000
    else:
        world.group.hang_s = 1000.0
    with structlog.testing.capture_logs() as logs:
        nursery.start_soon(world.log_starts.run)
        await trio.sleep(UNANSWERED_S_MAX - 0.1)
        assert (world.log_starts.is_known(OTHER), world.log_starts.is_known(ORDERS)) == (False, True)
        await trio.sleep(0.2)
        assert [world.log_starts.are_known() for _ in range(3)] == [True] * 3
    assert [line["event"] for line in logs].count("log_starts_not_waited_for") == 1

    world.group.codes, world.group.hang_s = [], 0.0
    await trio.sleep(60.0)
    later = topic_partition("later", 0)
    world.add(later, 0, 9)
    assert not world.log_starts.is_known(later)


async def test_what_is_committed_counts_if_it_is_this_topics(world: World) -> None:
    for kept, log_start in (
        ((150, ID), 150),
        ((99, ID), 100),
        ((150, uuid_to_text(uuid_of("orders before"))), 100),
        ((150, "tidegate"), 100),
        ((150, None), 100),
    ):
        world.group.offsets["orders", 0] = kept
        log_starts = world.another()
        await log_starts.poll()
        assert log_starts.get(ORDERS) == log_start, kept


async def test_it_is_committed_before_it_is_raised_and_never_goes_back(world: World) -> None:
    assert await world.log_starts.raise_all({ORDERS: 170}) == {ORDERS: 170}
    assert world.group.offsets["orders", 0] == (170, ID)
    assert await world.log_starts.raise_all({ORDERS: 160}) == {ORDERS: 170}
    assert world.group.offsets["orders", 0] == (170, ID)
    other_process = world.another()
    assert await other_process.raise_all({ORDERS: 165}) == {ORDERS: 170}, "it has not heard of it yet"
    assert world.group.offsets["orders", 0] == (170, ID)
    assert await world.log_starts.raise_all({ORDERS: 180, OTHER: 5}) == {ORDERS: 180, OTHER: 5}


async def test_what_cannot_be_committed_does_not_count(world: World) -> None:
    codes_of_errors = [[code] * 2 for code in (ErrorCode.not_coordinator, ErrorCode.group_authorization_failed)]
    for codes in (*codes_of_errors, *([ErrorCode.none, *codes] for codes in codes_of_errors)):
        world.group.codes = codes
        with pytest.raises(UpstreamError):
            await world.log_starts.raise_all({ORDERS: 170})
        world.group.codes = []
        assert world.log_starts.get(ORDERS) == 100
        assert not world.group.committed


async def test_other_processes_hear_of_it_about_a_second_later(world: World, nursery: trio.Nursery) -> None:
    other_process = world.another()
    nursery.start_soon(other_process.run)
    await trio.sleep(10 * POLL_S)
    await world.log_starts.raise_all({ORDERS: 170})
    assert other_process.get(ORDERS) == 100
    await trio.sleep(1.1 * POLL_S)
    assert other_process.get(ORDERS) == 170


async def test_what_has_expired_is_committed_again(world: World, nursery: trio.Nursery) -> None:
    """As with a short offsets.retention.minutes: the group has no members, so its offsets go."""
    await world.log_starts.raise_all({ORDERS: 170})
    nursery.start_soon(world.log_starts.run)
    await trio.sleep(POLL_S)
    for lost, then in (
        ({}, ID),
        ({("orders", 0): (120, ID)}, ID),
        ({("orders", 0): (999, "other")}, f"other 999 {ID} 170"),
    ):
        world.group.offsets = dict(lost)
        await trio.sleep(2 * POLL_S)
        assert world.group.offsets["orders", 0] == (170, then)
        assert world.log_starts.get(ORDERS) == 170


async def test_it_is_committed_again_at_the_start_and_every_day(world: World) -> None:
    world.group.offsets["orders", 0] = (170, ID)
    for _ in range(3):
        await world.log_starts.poll()
        assert world.group.committed == [{("orders", 0): (170, ID)}]
    await trio.sleep(COMMIT_AGAIN_S - 1)
    await world.log_starts.poll()
    assert len(world.group.committed) == 1
    await trio.sleep(1)
    await world.log_starts.poll()
    assert world.group.committed == [{("orders", 0): (170, ID)}] * 2


async def test_what_counts_no_more_is_left_to_expire(world: World, nursery: trio.Nursery) -> None:
    world.group.offsets["orders", 0] = (200, ID)
    world.remove(ORDERS, 100, 199)
    nursery.start_soon(world.log_starts.run)
    await trio.sleep(10 * POLL_S)
    assert not world.group.committed
    world.remove(ORDERS, 200, 299)
    await trio.sleep(10 * POLL_S)
    assert not world.group.committed


async def test_a_topic_without_a_right_is_named_and_harms_no_other(world: World) -> None:
    world.add(OTHER, 0, 99)
    world.group.offsets |= {("orders", 0): (170, ID), ("other", 1): (50, uuid_to_text(OTHER.topic_id))}
    world.group.denied = {"other"}
    await world.log_starts.poll()
    assert (world.log_starts.get(ORDERS), world.log_starts.get(OTHER)) == (170, 0)
    (complaint,) = world.log_starts.complaints()
    assert "ACL Describe on Topic other is missing" in complaint
    world.group.denied = set()
    await world.log_starts.poll()
    assert world.log_starts.get(OTHER) == 50
    assert not world.log_starts.complaints()


async def test_a_topic_made_again_and_the_one_before_keep_a_log_start_each(world: World) -> None:
    """Failed before: as long as the tier had something of the old topic, who served it committed its log start again
    in the place of the new one's, each second; and a process that began then served what was deleted."""
    old = TopicIdPartition(uuid_of("orders before"), 0, "orders")
    world.add(old, 0, 99)
    world.group.offsets["orders", 0] = (50, uuid_to_text(old.topic_id))
    await world.log_starts.poll()
    assert await world.log_starts.raise_all({ORDERS: 170}) == {ORDERS: 170}
    for _ in range(3):
        await world.log_starts.poll()
        other_process = world.another()
        await other_process.poll()
        assert (other_process.get(old), other_process.get(ORDERS)) == (50, 170)
    assert len(world.group.committed) == 2 + 3, "each process once, and the word once"
    assert await world.log_starts.raise_all({old: 60, ORDERS: 180}) == {old: 60, ORDERS: 180}
    assert await world.another().committed.fetch([old, ORDERS]) == {old: 60, ORDERS: 180}


async def test_a_copier_gets_its_own_errors(world: World) -> None:
    store = CopierLogStarts(world.committed)
    await store.commit({ORDERS: 170})
    await store.commit({ORDERS: 150})
    assert await store.get([ORDERS, OTHER]) == {ORDERS: 170}
    world.group.codes = [ErrorCode.not_coordinator] * 2
    with pytest.raises(RetriableRemoteStorageError):
        await store.get([ORDERS])
    world.group.codes = [ErrorCode.group_authorization_failed]
    with pytest.raises(RemoteStorageError) as caught:
        await store.commit({ORDERS: 180})
    assert not isinstance(caught.value, RetriableRemoteStorageError)
    assert isinstance(caught.value.__cause__, UpstreamRefusedError)


async def test_below_the_first_segment_it_stays_where_it_is(world: World) -> None:
    assert await world.log_starts.raise_all({ORDERS: 50}) == {ORDERS: 100}


async def test_a_start_does_not_wait_for_the_first_question(world: World, nursery: trio.Nursery) -> None:
    """The catalog is empty at first, and there is nothing to ask about."""
    world.remove(ORDERS, 100, 199)
    world.remove(ORDERS, 200, 299)
    nursery.start_soon(world.log_starts.run)
    await trio.sleep(10.05)
    world.add(ORDERS, 300, 399)
    await trio.sleep(2 * START_POLL_S)
    assert world.log_starts.are_known()
    assert START_POLL_S < POLL_S / 4
