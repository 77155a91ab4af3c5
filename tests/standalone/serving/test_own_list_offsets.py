"""ListOffsets where the tier is our own: whose offset it is, whose error wins, and what is never the broker's."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError
from protocol.fetch.messages import PARTITIONS_MAX
from protocol.wire.errors import ErrorCode, PeerProtocolError
from proxy.fetch.fallback import COME_AGAIN_S_MIN
from proxy.offsets.service import LOOKUP_TIMEOUT_S
from storage import errors
from storage.log.batch_records import ScanLimitError
from storage.model import TopicIdPartition
from storage.reading.timestamp_search import FoundTimestamp
from tests.support.fake_wire import BROKERS_OWN
from tests.support.offsets_world import OffsetsWorld
from tests.support.segments import topic_partition, uuid_of
from tests.support.tier_world import LEADER_EPOCH

pytestmark = pytest.mark.autojump

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING = -1, -2, -3, -4, -5, -6
NOT_FOUND = (0, -1, -1, -1)
COME_AGAIN = (ErrorCode.REPLICA_NOT_AVAILABLE, -1, -1, -1)
TIMED_OUT = (ErrorCode.REQUEST_TIMED_OUT, -1, -1, -1)
BROKERS = (0, *BROKERS_OWN, LEADER_EPOCH)
DOWN = UpstreamConnectionError("down")


@pytest.fixture
def world(nursery: trio.Nursery) -> OffsetsWorld:
    return OffsetsWorld(nursery, owns_tier=True)


# --- where the log starts ---


async def test_earliest_is_the_tiers_log_start(nursery: trio.Nursery) -> None:
    for version in range(1, 12):
        world = OffsetsWorld(nursery, owns_tier=True)
        partition = world.add_own(segments=[(100, 499, 5000), (500, 999, 9000)])
        epoch = LEADER_EPOCH if version >= 4 else -1
        for start in (100, 600):
            world.log_starts.raised[partition] = start
            answers = await world.answers([("orders", 0, EARLIEST)], api_version=version)
            assert answers == [(0, -1, start, epoch)], f"version {version}"
        assert world.broker.offsets_asked == [[("orders", 0, EARLIEST)]] * 2, f"version {version}"


async def test_a_young_tier_brings_back_what_the_broker_has_deleted(world: OffsetsWorld) -> None:
    """What was deleted on purpose does not come back."""
    partition = world.add_own(segments=())
    world.is_catalog_loaded = True
    assert await world.is_relayed([("orders", 0, EARLIEST)])  # and answered with 1000
    world.add_segment(partition, 500, 999)
    assert await world.answers([("orders", 0, EARLIEST)]) == [(0, -1, 500, LEADER_EPOCH)]
    await world.log_starts.raise_all({partition: 700})
    world.add_segment(partition, 200, 499)
    assert await world.answers([("orders", 0, EARLIEST)]) == [(0, -1, 700, LEADER_EPOCH)]


async def test_its_leader_epoch_is_the_one_that_it_was_written_in(world: OffsetsWorld) -> None:
    partition = world.add_own(epochs={1: 0, 3: 400, 4: 700})
    for start, epoch in ((0, 1), (399, 1), (400, 3), (999, 4)):
        world.log_starts.raised[partition] = start
        assert await world.answers([("orders", 0, EARLIEST)]) == [(0, -1, start, epoch)]


async def test_a_tier_that_begins_no_lower_than_the_local_log_has_no_say(world: OffsetsWorld) -> None:
    partition = world.add_own()
    for raised in (1000, 1200):
        world.log_starts.raised[partition] = raised
        assert await world.answers([("orders", 0, EARLIEST)]) == [(0, -1, 1000, LEADER_EPOCH)]
        assert not world.client_of_ours.offsets_asked


async def test_without_a_lineage_the_offset_is_told_all_the_same(world: OffsetsWorld) -> None:
    world.add_own()
    world.client_of_ours.epoch_error_codes = [ErrorCode.UNKNOWN_LEADER_EPOCH] * 9
    assert await world.answers([("orders", 0, EARLIEST)]) == [(0, -1, 0, -1)]


async def test_what_the_local_log_alone_decides_is_relayed(world: OffsetsWorld) -> None:
    world.add_own()
    for time in (LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, -7):
        assert await world.is_relayed([("orders", 0, time)]), f"time {time}"
    for time, version in ((LATEST_TIERED, 8), (PENDING, 10)):  # the version does not have it
        assert await world.is_relayed([("orders", 0, time)], api_version=version), f"time {time}"
    for replica_id in (-2, 1):
        assert await world.is_relayed([("orders", 0, EARLIEST)], replica_id=replica_id), f"replica {replica_id}"
    assert not world.broker.offset_requests


async def test_topics_that_were_never_in_the_tier_are_relayed_without_a_question(world: OffsetsWorld) -> None:
    world.add_own()
    world.add_own("local", segments=())
    assert await world.is_relayed([("local", 0, EARLIEST), ("local", 0, 4000)])
    assert not world.client_of_ours.ids_asked
    world.is_catalog_loaded = False
    world.tail.not_ready.add(topic_partition("local", 0))
    assert await world.answers([("local", 0, EARLIEST)]) == [COME_AGAIN]


# --- the broker's word ---


async def test_the_brokers_error_wins(nursery: trio.Nursery) -> None:
    for time, code in product((EARLIEST, LATEST_TIERED, PENDING, 4000), (3, 6, 29, 74, 75)):
        world = OffsetsWorld(nursery, owns_tier=True)
        partition = world.add_own()
        world.search.results[partition] = FoundTimestamp(4000, 17, 3)
        world.log(partition).error_code = code
        ((found, *offsets),) = await world.answers([("orders", 0, time)])
        assert (found, offsets) == (code, [-1, -1, -1]), f"time {time}, code {code}"
        assert not world.search.searched, f"time {time}, code {code}"
        assert not world.client_of_ours.ids_asked, f"time {time}, code {code}"


async def test_while_the_high_watermark_lags_the_local_log_is_not_asked(nursery: trio.Nursery) -> None:
    for code in (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE):
        world = OffsetsWorld(nursery, owns_tier=True)
        world.log(world.add_own()).latest_error_code = code
        assert [answer[0] for answer in await world.answers([("orders", 0, 4000)])] == [code]
        assert await world.answers([("orders", 0, EARLIEST)]) == [(0, -1, 0, LEADER_EPOCH)]
        assert world.broker.offsets_asked == [[("orders", 0, LATEST)], [("orders", 0, EARLIEST)]]


async def test_a_partition_that_is_named_twice_is_the_brokers_and_the_others_are_not(world: OffsetsWorld) -> None:
    world.add_own("orders", 0)
    world.add_own("orders", 1)
    questions = [("orders", 0, EARLIEST), ("orders", 0, 4000), ("orders", 1, EARLIEST)]
    answers = await world.answers(questions)
    assert [answer[2] for answer in answers] == [1000, BROKERS_OWN[1], 0]
    assert world.broker.offsets_asked == [questions]


async def test_a_topic_that_was_made_anew_gets_no_old_offset(world: OffsetsWorld) -> None:
    world.add_own()
    world.client_of_ours.ids["orders"] = uuid_of("another topic")
    questions = [("orders", 0, EARLIEST), ("other", 0, 4000)]
    world.add_own("other")
    world.client_of_ours.ids["other"] = uuid_of("another one")
    answers = await world.answers(questions)
    assert answers == [(0, -1, 1000, LEADER_EPOCH), BROKERS]
    assert not world.search.searched


# --- what is not known ---


TROUBLES: dict[str, Callable[[OffsetsWorld, TopicIdPartition], object]] = {
    "no ids": lambda world, _: setattr(world.client_of_ours, "ids_failure", DOWN),
    "not told": lambda world, _: world.client_of_ours.ids.clear(),
    "not read yet": lambda world, orders: world.tail.not_ready.add(orders),
    "no room": lambda world, orders: world.catalog.contents().refused.add((orders.topic_id, 0)),
}


async def test_what_may_be_in_the_tier_is_never_left_to_the_broker(nursery: trio.Nursery) -> None:
    for trouble, time in product(TROUBLES, (EARLIEST, LATEST_TIERED, PENDING, 4000)):
        world = OffsetsWorld(nursery, owns_tier=True)
        TROUBLES[trouble](world, world.add_own())
        started_s = trio.current_time()
        assert await world.answers([("orders", 0, time)]) == [COME_AGAIN], f"{trouble}, time {time}"
        assert trio.current_time() - started_s >= COME_AGAIN_S_MIN, f"{trouble}, time {time}"


async def test_without_local_log_start_or_lineage_it_comes_again(nursery: trio.Nursery) -> None:
    for time in (LATEST_TIERED, PENDING, 4000):
        world = OffsetsWorld(nursery, owns_tier=True)
        world.add_own()
        client = world.client_of_ours
        client.failure = DOWN
        assert await world.answers([("orders", 0, time)]) == [COME_AGAIN], f"time {time}"
        client.failure = None
        client.epoch_error_codes = [ErrorCode.UNKNOWN_LEADER_EPOCH] * 2
        assert await world.answers([("orders", 0, time)]) == [COME_AGAIN], f"time {time}"


async def test_a_request_that_is_too_large_to_read_ends_the_connection(world: OffsetsWorld) -> None:
    questions = [("orders", number, EARLIEST) for number in range(PARTITIONS_MAX + 1)]
    with pytest.raises(PeerProtocolError, match="10,000"):
        await world.answers(questions)


# --- borders of the tier ---


async def test_latest_tiered_is_the_highest_offset_on_the_lineage(world: OffsetsWorld) -> None:
    partition = world.add_own(epochs={1: 0, 3: 400})
    assert await world.answers([("orders", 0, LATEST_TIERED)]) == [(0, -1, 999, 3)]
    # From a branch that was cut: the broker answers with another epoch.
    world.add_segment(partition, 900, 1200, epochs={4: 900})
    world.log(partition).epoch_ends[4] = (3, 1000)
    assert await world.answers([("orders", 0, LATEST_TIERED)]) == [(0, -1, 999, 3)]
    world.log(partition).epoch_ends[3] = (3, 950)
    world.lineages.forget(partition)
    assert await world.answers([("orders", 0, LATEST_TIERED)]) == [(0, -1, 949, 3)]
    world.log_starts.raised[partition] = 960
    assert await world.answers([("orders", 0, LATEST_TIERED)]) == [(0, -1, 949, -1)]


async def test_pending_upload_is_what_follows_and_its_epoch_may_be_the_brokers(world: OffsetsWorld) -> None:
    partition = world.add_own(segments=[(0, 499, 5000)])
    assert await world.answers([("orders", 0, PENDING)]) == [(0, -1, 500, LEADER_EPOCH)]
    world.log_starts.raised[partition] = 700
    assert await world.answers([("orders", 0, PENDING)]) == [(0, -1, 700, LEADER_EPOCH)]
    other = world.add_own("other", epochs={1: 0, 3: 400})
    world.log(other).epoch_ends |= {4: (3, 1000), 5: (5, 1500)}
    assert await world.answers([("other", 0, PENDING)]) == [(0, -1, 1000, 5)]


async def test_what_is_copied_up_to_the_high_watermark_leaves_nothing_pending(world: OffsetsWorld) -> None:
    partition = world.add_own(segments=[(0, 1499, 5000)])
    assert await world.answers([("orders", 0, PENDING)]) == [NOT_FOUND]
    world.log(partition).last_stable_offset = 1499
    assert await world.answers([("orders", 0, LATEST_TIERED)], isolation_level=1) == [NOT_FOUND]
    assert await world.answers([("orders", 0, LATEST_TIERED)]) == [(0, -1, 1499, LEADER_EPOCH)]


# --- by time ---


async def test_a_time_is_looked_for_in_the_tier_first_from_its_log_start_on(world: OffsetsWorld) -> None:
    partition = world.add_own()
    world.search.results[partition] = FoundTimestamp(4000, 217, 3)
    world.log_starts.raised[partition] = 200
    assert await world.answers([("orders", 0, 4000)]) == [(0, 4000, 217, 3)]
    assert world.search.searched == [(0, 4000, 200)]
    assert world.broker.offsets_asked == [[("orders", 0, LATEST)]]


async def test_what_one_segment_does_not_have_the_next_one_may(world: OffsetsWorld) -> None:
    partition = world.add_own(segments=[(0, 299, 5000), (300, 599, 6000), (600, 999, 4500)])

    def in_the_last() -> None:
        if len(world.search.searched) == 2:
            world.search.results[partition] = FoundTimestamp(4700, 350, 3)

    world.search.on_search = in_the_last
    assert await world.answers([("orders", 0, 4600)]) == [(0, 4700, 350, 3)]
    assert [start for start, _, _ in world.search.searched] == [0, 300]


async def test_what_the_tier_does_not_have_is_the_brokers(world: OffsetsWorld) -> None:
    world.add_own()
    assert await world.answers([("orders", 0, 4000)]) == [BROKERS]
    assert [start for start, _, _ in world.search.searched] == [0, 500]
    assert world.broker.offsets_asked == [[("orders", 0, LATEST)], [("orders", 0, 4000)]]
    world.search.searched.clear()
    assert await world.answers([("orders", 0, 9001)]) == [BROKERS]
    assert not world.search.searched


async def test_a_search_that_fails_is_not_the_brokers(nursery: trio.Nursery) -> None:
    failures: dict[Any, Any] = {
        errors.RetriableRemoteStorageError("reset"): COME_AGAIN,
        errors.RemoteResourceNotFoundError("no log"): COME_AGAIN,
        errors.CorruptObjectError("bad"): COME_AGAIN,
        ValueError("a fault of ours"): COME_AGAIN,
        ScanLimitError("too many records"): TIMED_OUT,
    }
    for failure, answer in failures.items():
        world = OffsetsWorld(nursery, owns_tier=True)
        one, other = world.add_own("orders", 0), world.add_own("orders", 1)
        world.search.results |= {one: failure, other: FoundTimestamp(4000, 17, 3)}
        answers = await world.answers([("orders", 0, 4000), ("orders", 1, 4000)])
        assert answers == [answer, (0, 4000, 17, 3)], failure
        assert len(world.broker.offset_requests) == 1, failure


async def test_a_search_that_misses_the_deadline_timed_out(world: OffsetsWorld) -> None:
    world.search.delays_s[world.add_own()] = 100.0
    for timeout_ms, waited_s in ((0, LOOKUP_TIMEOUT_S), (2000, 2.0)):
        started_s = trio.current_time()
        assert await world.answers([("orders", 0, 4000)], timeout_ms=timeout_ms) == [TIMED_OUT]
        assert trio.current_time() - started_s == pytest.approx(waited_s), f"timeout {timeout_ms} ms"


async def test_a_look_up_counts_the_holes_that_it_steps_over(world: OffsetsWorld) -> None:
    """Failed before: only reads did, and who looks up times may never read there."""
    segments = [(0, 199, 1000), (300, 399, 2000), (400, 499, 3000), (600, 999, 9000)]
    partition = world.add_own(segments=segments)
    world.search.results[partition] = FoundTimestamp(9000, 700, LEADER_EPOCH)
    for time, holes in ((500, 0), (2000, 1), (8000, 2), (8000, 2)):
        (answer,) = await world.answers([("orders", 0, time)])
        assert answer[0] == 0
        assert world.sample("tidegate_tier_holes_stepped_over_total") == holes, f"time {time}"
