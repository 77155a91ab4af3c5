"""Fetches of a tier of our own (standalone mode): what the broker has dropped is served, and never asked of it."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import structlog.testing
import trio

from protocol.client.errors import UpstreamConnectionError
from protocol.fetch.messages import PARTITIONS_MAX, FetchResponse
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.errors import ErrorCode
from proxy.connection.request_handlers import RELAY, Relay
from proxy.fetch.fallback import COME_AGAIN
from standalone.serving.answer_edits import AnswerEdits, OwnEdits
from storage.errors import CorruptObjectError, RemoteAccessDeniedError, RetriableRemoteStorageError
from storage.model import TopicIdPartition
from storage.reading.aborted_transactions import TierAborts
from tests.support.fake_wire import FakePartitionLog, broker_batch, tier_batch
from tests.support.segments import topic_partition
from tests.support.session_model import SessionBroker, SessionClient
from tests.support.tier_world import LEADER_EPOCH, NODE_ID, TierWorld, ask, client_frame, codes_of, fetch_of, records_of

pytestmark = pytest.mark.autojump

LOCAL_START = 1000
END = 1500
HOLES = "tidegate_tier_holes_stepped_over_total"
OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


class World(TierWorld):
    """`orders` has its tier from 100 to 1199, and the broker what is from 1000 to 1500."""

    def __init__(self, nursery: trio.Nursery, **settings: Any) -> None:
        self.sessions = SessionBroker()
        super().__init__(nursery, broker=self.sessions, owns_tier=True, **settings)
        self.broker.waits = False

    def add(self, number: int = 0, segments: Sequence[tuple[int, int]] = ((100, 499), (500, 1199))) -> TopicIdPartition:
        return self.add_partition("orders", number, segments=segments, log_start_offset=LOCAL_START, high_watermark=END)

    def drop(self, partition: TopicIdPartition, local_start: int) -> None:
        """The broker deletes what is below."""
        log = self.log(partition)
        log.log_start_offset = log.local_log_start_offset = local_start

    def asked_below(self) -> list[int]:
        """Return what the broker was asked for below its log start."""
        return [at for asked in self.broker.asked for *_, at in asked if at < LOCAL_START]

    def known_starts(self, partition: TopicIdPartition) -> tuple[int, int] | None:
        """Log start and local log start, as the frontier has them."""
        frontier = self.frontiers.get(NODE_ID, partition)
        return None if frontier is None else (frontier.log_start_offset, frontier.local_log_start_offset)


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


@pytest.fixture
def partition(world: World) -> TopicIdPartition:
    return world.add()


def tier_run(first: int, count: int, number: int = 0) -> bytes:
    return b"".join(tier_batch(number, first + at) for at in range(count))


def broker_run(first: int, count: int, number: int = 0) -> bytes:
    return b"".join(broker_batch(number, first + at) for at in range(count))


async def fetch(world: TierWorld, partition: TopicIdPartition, offset: int, **fields: int) -> FetchResponse:
    return await SessionClient(world.client()).fetch(fetch_of([ask(partition, offset, max_bytes=200)], **fields))


# --- frontiers, and what clients hear of the log start ---


async def test_what_the_broker_dropped_is_served_with_our_start(world: World, partition: TopicIdPartition) -> None:
    response = await fetch(world, partition, 300)

    (answer,) = response.partitions
    assert (answer.error_code, records_of(response)) == (0, [tier_run(300, 2)])
    assert (answer.high_watermark, answer.log_start_offset) == (END, 100)
    assert world.client_of_ours.timestamps_asked == {OffsetTimestamp.EARLIEST, OffsetTimestamp.LATEST}
    assert world.known_starts(partition) == (100, LOCAL_START)


async def test_below_the_tiers_log_start_is_out_of_range(world: World, partition: TopicIdPartition) -> None:
    assert codes_of(await fetch(world, partition, 99)) == [OUT_OF_RANGE]
    assert not world.reader.reads
    assert records_of(await fetch(world, partition, 100)) == [tier_run(100, 2)]


async def test_a_log_start_that_is_raised_counts_at_once(world: World, partition: TopicIdPartition) -> None:
    """Also where a good probe is used again."""
    world.settings.authority_age_s_max = 1000.0
    client = world.client()
    assert codes_of(await client.fetch([ask(partition, 300)])) == [0]

    world.log_starts.raised[partition] = 301

    assert codes_of(await client.fetch([ask(partition, 300)])) == [OUT_OF_RANGE]
    response = await client.fetch([ask(partition, 301)])
    assert [answer.log_start_offset for answer in response.partitions] == [301]


async def test_a_tier_start_above_the_brokers_is_the_brokers(world: World, partition: TopicIdPartition) -> None:
    world.log_starts.raised[partition] = 1100

    await world.frontiers.refresh(NODE_ID, [partition])

    assert world.known_starts(partition) == (LOCAL_START, LOCAL_START)


async def test_a_probe_that_finds_a_shorter_log_moves_the_frontier(world: World, partition: TopicIdPartition) -> None:
    await fetch(world, partition, 300)
    world.drop(partition, 1100)

    await fetch(world, partition, 300)

    assert world.known_starts(partition) == (100, 1100)
    assert records_of(await fetch(world, partition, 1050)) == [tier_run(1050, 2)]


# --- there is no way out to the broker ---


async def test_what_the_tier_fails_to_read_comes_again(nursery: trio.Nursery) -> None:
    for fault in (
        RemoteAccessDeniedError("denied"),
        CorruptObjectError("corrupt"),
        RetriableRemoteStorageError("a reset"),
        UpstreamConnectionError("no lineage"),
        ValueError("a fault of ours"),
    ):
        world = World(nursery)
        partition = world.add()
        world.reader.failures[partition] = fault
        for _ in range(3):  # in a spell too
            started_s = trio.current_time()
            assert codes_of(await fetch(world, partition, 300, max_wait_ms=100)) == [COME_AGAIN], fault
            assert trio.current_time() - started_s >= 0.5, fault
        assert not world.asked_below(), fault


async def test_what_both_have_may_still_be_read_by_the_broker(world: World, partition: TopicIdPartition) -> None:
    world.settings.read_prefer_tier = True
    assert records_of(await fetch(world, partition, 1100)) == [tier_run(1100, 2)]

    world.reader.failures[partition] = RemoteAccessDeniedError("denied")

    assert records_of(await fetch(world, partition, 1100)) == [broker_run(1100, 2)]


async def test_local_partitions_beside_it_are_answered(world: World, partition: TopicIdPartition) -> None:
    other = world.add(1)
    world.reader.failures[partition] = RemoteAccessDeniedError("denied")

    response = await world.client().fetch([ask(partition, 300), ask(other, 1400, max_bytes=100)])

    # Beside records an empty answer brings the client back.
    assert (codes_of(response), records_of(response)) == ([0, 0], [b"", broker_run(1400, 1, 1)])
    assert not world.asked_below()


async def test_a_broker_that_is_not_understood_leaves_the_offset(world: World, partition: TopicIdPartition) -> None:
    """The probe was out of range, and then nothing is learned: whether the broker has the offset is not known."""
    await fetch(world, partition, 300)
    world.log(partition).high_watermark = world.log(partition).log_end_offset = LOCAL_START + 10
    world.client_of_ours.failure = UpstreamConnectionError("gone")

    assert codes_of(await fetch(world, partition, 300)) == [COME_AGAIN]
    assert not world.asked_below()


# --- misses and holes ---


async def test_a_miss_is_first_our_own_lag(world: World) -> None:
    partition = world.add(segments=[(100, 499)])
    world.tail.on_catch_up = lambda: world.add_segment(partition, 500, 1199)

    assert records_of(await fetch(world, partition, 700)) == [tier_run(700, 2)]
    assert world.sample(HOLES) == 0


async def test_a_miss_that_may_be_lag_comes_again(nursery: trio.Nursery) -> None:
    for delay_s, failure in ((1000.0, None), (0.0, RetriableRemoteStorageError("no topic"))):
        world = World(nursery)
        partition = world.add(segments=[(100, 499), (900, 1199)])
        world.tail.delay_s, world.tail.failure = delay_s, failure

        assert codes_of(await fetch(world, partition, 700)) == [COME_AGAIN], failure
        assert not world.asked_below(), failure
        assert world.sample(HOLES) == 0, failure


async def test_a_hole_is_stepped_over_to_the_next_segment(world: World) -> None:
    partition = world.add(segments=[(100, 499), (700, 799), (900, 1199)])

    with structlog.testing.capture_logs() as logs:
        for offset in (500, 650, 600, 500):
            assert records_of(await fetch(world, partition, offset)) == [tier_run(700, 2)]

    (line,) = [line for line in logs if line["event"] == "tier_hole_stepped_over"]
    assert (line["from_offset"], line["to_offset"]) == (500, 700)
    assert world.sample(HOLES) == 1
    assert len(world.tail.caught_up) == 1, "a hole is found out once"
    assert records_of(await fetch(world, partition, 850)) == [tier_run(900, 2)]
    assert world.sample(HOLES) == 2
    assert not world.asked_below()


async def test_a_hole_up_to_the_local_log_is_answered_with_what_that_has_first(nursery: trio.Nursery) -> None:
    for isolation_level in (0, 1):
        world = World(nursery)
        partition = world.add(segments=[(100, 499), (1050, 1199)])
        for offset in (500, 700):
            response = await fetch(world, partition, offset, isolation_level=isolation_level)
            assert (codes_of(response), records_of(response)) == ([0], [broker_run(LOCAL_START, 2)])
            assert [answer.log_start_offset for answer in response.partitions] == [100]
        assert world.sample(HOLES) == 1
        assert not world.asked_below()


async def test_where_nothing_follows_it_may_be_on_its_way(nursery: trio.Nursery) -> None:
    world = World(nursery, segment_s_max=60.0)
    partition = world.add(segments=[(100, 499)])

    assert codes_of(await fetch(world, partition, 700)) == [COME_AGAIN]
    await trio.sleep(30.0)
    assert codes_of(await fetch(world, partition, 800)) == [COME_AGAIN]
    world.add_segment(partition, 500, 799)
    assert records_of(await fetch(world, partition, 700)) == [tier_run(700, 2)]
    await trio.sleep(31.0)
    assert codes_of(await fetch(world, partition, 800)) == [COME_AGAIN], "another end has its own time"
    await trio.sleep(61.0)
    assert records_of(await fetch(world, partition, 800)) == [broker_run(LOCAL_START, 2)]
    assert not world.asked_below()


# --- READ_COMMITTED ---


async def test_a_segment_that_straddles_the_local_log_is_cut_there(world: World, partition: TopicIdPartition) -> None:
    world.reader.aborts[partition] = TierAborts([(7, 990)], LOCAL_START, is_complete=True, searched_below=1200)

    response = await world.client().fetch([ask(partition, 995, max_bytes=2000)], isolation_level=1)

    assert records_of(response) == [tier_run(995, 5)]
    assert response.partitions[0].aborted_transactions == [(7, 990)]
    uncommitted = await world.client().fetch([ask(partition, 995, max_bytes=1000)])
    assert records_of(uncommitted) == [tier_run(995, 10)]


async def test_the_broker_is_not_asked_for_aborts(world: World, partition: TopicIdPartition) -> None:
    """Failed before: a transaction was open that begins where the local log does, so the broker did not tell, and the
    client was to come again for as long as that hangs. So it was where the tier ends below the local log."""
    other = world.add(1, segments=[(100, 799)])
    for last_stable_offset in (END, LOCAL_START):
        for each, offset in ((partition, 995), (other, 300)):
            world.log(each).last_stable_offset = last_stable_offset
            world.broker.fetches.clear()
            assert records_of(await fetch(world, each, offset, isolation_level=1)) == [
                tier_run(offset, 2, each.partition)
            ]
            assert len(world.broker.fetches) == 1, "the probe alone"
    assert not world.tail.caught_up


# --- staleness: the broker has just deleted what was believed to be local ---


async def test_a_relayed_fetch_of_what_was_just_deleted_comes_again_from_the_tier(nursery: trio.Nursery) -> None:
    for version in range(4, 19):
        world = World(nursery)
        partition = world.add()
        client = SessionClient(world.client())
        request = fetch_of([ask(partition, 1050, max_bytes=100)], api_version=version, session_epoch=-1)
        assert records_of(await client.fetch(request)) == [broker_run(1050, 1)], f"version {version}"
        world.drop(partition, 1100)

        response = await client.fetch(request)

        assert client.relayed == [True, True], f"version {version}"
        assert codes_of(response) == [COME_AGAIN], f"version {version}"
        assert world.known_starts(partition) is None, f"version {version}"
        assert records_of(await client.fetch(request)) == [tier_run(1050, 1)], f"version {version}"
        assert client.relayed[-1] is False, f"version {version}"


async def test_a_relayed_session_is_looked_at_as_a_whole_after_it(nursery: trio.Nursery) -> None:
    for version in (7, 12, 13, 17):
        world = World(nursery)
        first, second = world.add(0), world.add(1)
        client = SessionClient(world.client())
        asked = [ask(first, END), ask(second, 1050, max_bytes=100)]
        opened = await client.fetch(fetch_of(asked, api_version=version, max_wait_ms=0))
        session = {"api_version": version, "session_id": opened.session_id, "max_wait_ms": 0}
        assert opened.session_id, f"version {version}"

        world.drop(second, 1100)
        response = await client.fetch(fetch_of([], session_epoch=1, **session))
        told = [(answer.partition, answer.error_code) for answer in response.partitions]
        assert told == [(1, COME_AGAIN)], f"version {version}"

        # It is not named again, and is found all the same.
        response = await client.fetch(fetch_of([], session_epoch=2, **session))
        assert client.relayed == [True, True, False], f"version {version}"
        found = {answer.partition: b"".join(answer.records) for answer in response.partitions}
        assert found[1] == tier_run(1050, 1, 1), f"version {version}"


async def test_what_is_really_out_of_range_is_told(world: World, partition: TopicIdPartition) -> None:
    client = SessionClient(world.client())

    async def code(offset: int, **fields: int) -> int:
        response = await client.fetch(fetch_of([ask(partition, offset)], session_epoch=-1, **fields))
        return codes_of(response)[0]

    assert await code(END + 1) == OUT_OF_RANGE
    assert await code(-1) == OUT_OF_RANGE
    assert await code(99) == OUT_OF_RANGE
    # Not before a recent end is known: the log may have grown past the offset, and been deleted up to there.
    await trio.sleep(1000.0)
    world.client_of_ours.latency_s = 10.0
    assert await code(END + 1) == COME_AGAIN
    world.client_of_ours.latency_s = 0.0
    await trio.sleep(20.0)
    assert await code(END + 1) == OUT_OF_RANGE


async def test_an_epoch_yet_to_come_is_out_of_range_once_the_leader_was_asked_since(nursery: trio.Nursery) -> None:
    """Before that the epoch may have come, and the offset been deleted; unless the client names the leader's epoch,
    which the broker has checked."""
    for epoch, current, learned, code in (
        (LEADER_EPOCH + 1, -1, "meanwhile", OUT_OF_RANGE),
        (LEADER_EPOCH + 1, -1, "before", COME_AGAIN),
        (LEADER_EPOCH + 1, -1, "never", COME_AGAIN),
        (LEADER_EPOCH, -1, "meanwhile", COME_AGAIN),
        (LEADER_EPOCH + 1, LEADER_EPOCH, "never", OUT_OF_RANGE),
        (LEADER_EPOCH, LEADER_EPOCH, "never", COME_AGAIN),
    ):
        world = World(nursery)
        partition = world.add()
        if learned == "before":
            await world.frontiers.refresh(NODE_ID, [partition])
            await trio.sleep(0.1)
        began_s = trio.current_time()
        if learned == "meanwhile":
            await world.frontiers.refresh(NODE_ID, [partition])
        fields = {"current_leader_epoch": current, "last_fetched_epoch": epoch}
        asked_of = partial(lambda asked, _key: asked, ask(partition, 1050, **fields))
        edits = AnswerEdits(OwnEdits(world.tier, world.tier_log_starts, NODE_ID, began_s), asked_of)

        assert edits.begin_topic(partition.topic_id)
        assert edits.edited(0, OUT_OF_RANGE, -1) == (code, -1), (epoch, current, learned)


async def test_a_name_that_nobody_knows_may_be_in_the_tier_while_the_catalog_is_read(nursery: trio.Nursery) -> None:
    for version, is_loaded in product((4, 12), (False, True)):
        world = World(nursery)
        partition = world.add(segments=[])
        world.cluster.ids.clear()
        world.tier.is_loaded = partial(bool, is_loaded)
        request = fetch_of([ask(partition, 300)], api_version=version, session_epoch=-1)

        response = await SessionClient(world.client()).fetch(request)

        assert codes_of(response) == [OUT_OF_RANGE if is_loaded else COME_AGAIN], f"version {version}, {is_loaded=}"


async def test_local_partitions_of_an_exchange_are_no_exception(world: World) -> None:
    cold, hot = world.add(0), world.add(1)
    client = world.client()
    await client.fetch([ask(cold, 300), ask(hot, 1050)])
    world.drop(hot, 1100)

    response = await client.fetch([ask(cold, 300, max_bytes=100), ask(hot, 1050)])

    assert codes_of(response) == [0, COME_AGAIN]
    response = await client.fetch([ask(cold, 300, max_bytes=100), ask(hot, 1050, max_bytes=100)])
    assert records_of(response) == [tier_run(300, 1), tier_run(1050, 1, 1)]


async def test_a_session_that_is_given_back_is_none_either(world: World, partition: TopicIdPartition) -> None:
    client = SessionClient(world.client())
    opened = await client.fetch(fetch_of([ask(partition, 300, max_bytes=100)], max_wait_ms=0))
    session = {"session_id": opened.session_id, "max_wait_ms": 0}
    log: FakePartitionLog = world.log(partition)
    await world.frontiers.refresh(NODE_ID, [partition])
    world.drop(partition, 1100)

    response = await client.fetch(fetch_of([ask(partition, 1050, max_bytes=100)], session_epoch=1, **session))

    assert (codes_of(response), log.log_start_offset) == ([COME_AGAIN], 1100)
    response = await client.fetch(fetch_of([], session_epoch=2, **session))
    assert records_of(response) == [tier_run(1050, 1)]


async def test_relayed_answers_tell_the_tiers_log_start(nursery: trio.Nursery) -> None:
    for version in (5, 11, 12, 17):
        world = World(nursery)
        local = world.add_partition("other", 0, segments=[], log_start_offset=LOCAL_START, high_watermark=END)
        client = SessionClient(world.client())
        asked = [ask(world.add(0), END), ask(local, END)]

        response = await client.fetch(fetch_of(asked, api_version=version, max_wait_ms=0))

        assert client.relayed == [True], f"version {version}"
        starts = [answer.log_start_offset for answer in response.partitions]
        assert starts == [100, LOCAL_START], f"version {version}"


async def test_while_the_metadata_is_read_nobody_can_say_that_an_offset_is_gone(nursery: trio.Nursery) -> None:
    for version in (12, 17):
        world = World(nursery)
        partition = world.add()
        world.tail.not_ready = {partition, TopicIdPartition(partition.topic_id, partition.partition, "")}
        client = SessionClient(world.client())
        request = fetch_of([ask(partition, 300, max_bytes=100)], api_version=version, session_epoch=-1)

        assert codes_of(await client.fetch(request)) == [COME_AGAIN], f"version {version}"

        world.tail.not_ready.clear()
        assert records_of(await client.fetch(request)) == [tier_run(300, 1)], f"version {version}"


async def test_an_unread_request_is_told_of_nothing_that_is_gone(world: World, partition: TopicIdPartition) -> None:
    others = [ask(topic_partition("none", number), 0) for number in range(PARTITIONS_MAX)]
    frame = bytearray(client_frame(fetch_of([ask(partition, 300), *others], session_epoch=-1)))
    client = world.client()

    relay = await client.service.handle(memoryview(frame), client.wire)

    assert isinstance(relay, Relay)
    assert relay.editor is not None
    assert relay.editor.begin_topic(partition.topic_id)
    assert relay.editor.edited(0, OUT_OF_RANGE, -1) == (COME_AGAIN, -1)


async def test_in_replica_mode_nothing_is_edited(nursery: trio.Nursery) -> None:
    world = TierWorld(nursery)
    partition = world.add_partition()
    frame = bytearray(client_frame(fetch_of([ask(partition, 1000)], session_epoch=-1)))

    assert await world.client().service.handle(memoryview(frame), world.client().wire) is RELAY


# --- brokers before 3.1, whose Fetch knows topics by name alone ---


async def test_an_older_broker_is_probed_by_name_in_the_clients_version(
    world: World, partition: TopicIdPartition
) -> None:
    """Failed before: every probe was version 13 at least, which such a broker ends the connection for."""
    world.cluster.fetch_versions[NODE_ID] = 12
    world.log(partition).aborted = [(7, 310, 1010)]
    for version, isolation_level in product((4, 11, 12), (0, 1)):
        response = await fetch(world, partition, 300, api_version=version, isolation_level=isolation_level)
        assert (codes_of(response), records_of(response)) == ([0], [tier_run(300, 2)]), version
    assert {probe.api_version for probe in world.broker.fetches} == {4, 11, 12}
    assert {asked.topic for probe in world.broker.fetches for asked in probe.partitions} == {"orders"}


async def test_a_name_that_is_another_topics_by_now_is_not_vouched_for(
    world: World, partition: TopicIdPartition
) -> None:
    """The topic was deleted and made again: the new one's good answer says nothing of the old one's records."""
    world.cluster.fetch_versions[NODE_ID] = 12
    cases: list[tuple[dict[str, bytes], Exception | None]] = [
        ({"orders": topic_partition("another").topic_id}, None),
        ({}, None),
        (world.client_of_ours.ids, UpstreamConnectionError("gone")),
    ]
    for ids, failure in cases:
        world.client_of_ours.ids, world.client_of_ours.ids_failure = ids, failure
        world.cluster.ids["orders"] = partition.topic_id
        response = await fetch(world, partition, 300, api_version=12)
        assert (codes_of(response), records_of(response)) == ([COME_AGAIN], [b""]), ids
        assert world.cluster.topic_id("orders") is None


async def test_an_error_of_a_probe_by_name_is_the_clients(world: World, partition: TopicIdPartition) -> None:
    world.cluster.fetch_versions[NODE_ID] = 12
    world.log(partition).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes_of(await fetch(world, partition, 300, api_version=12)) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
