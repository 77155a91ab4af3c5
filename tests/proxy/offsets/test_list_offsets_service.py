"""ListOffsets: what is relayed, what rides on which question, and whose word wins."""

from typing import Any

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError, UpstreamUnsupportedError
from protocol.list_offsets import LIST_OFFSETS_VERSION_MAX, LIST_OFFSETS_VERSION_MIN
from protocol.wire.errors import ErrorCode
from proxy.fetch.fallback import COME_AGAIN_S_MIN, SPELL_S_MIN
from proxy.offsets.service import LOOKUP_TIMEOUT_S
from storage import errors
from storage.log.batch_records import ScanLimitError
from storage.reading.timestamp_search import FoundTimestamp
from tests.support.fake_wire import BROKERS_OWN
from tests.support.offsets_world import OffsetsWorld, request_of
from tests.support.segments import uuid_of
from tests.support.tier_world import LEADER_EPOCH
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump

FOUND = FoundTimestamp(4000, 17, 3)
OURS = (0, 4000, 17, 3)
BROKERS = (0, *BROKERS_OWN, LEADER_EPOCH)
NOT_FOUND = (0, -1, -1, -1)
TIMED_OUT = (ErrorCode.REQUEST_TIMED_OUT, -1, -1, -1)
LATEST, EARLIEST = -1, -2


@pytest.fixture
def world(nursery: trio.Nursery) -> OffsetsWorld:
    return OffsetsWorld(nursery)


# --- relayed ---


@for_each_run("time", [-1, -2, -3, -4, -5, -6, -7])
async def test_what_is_no_time_is_relayed_and_costs_nothing(world: OffsetsWorld, time: int) -> None:
    world.add()
    assert await world.is_relayed([("orders", 0, time)])
    assert not world.client_of_ours.offsets_asked
    assert not world.search.searched


@for_each_run(
    "questions, fields",
    [
        ([("orders", 0, 4000)], {"replica_id": 1}),
        ([("orders", 0, 4000)], {"replica_id": -2}),
        ([("orders", 0, 4000), ("orders", 0, 4000)], {}),
        ([("orders", 0, 4000), ("orders", 0, LATEST)], {}),
        ([("unheard-of", 0, 4000)], {}),
        ([("orders", 7, 4000)], {}),
        ([("orders", 0, 9001)], {}),
    ],
)
async def test_what_is_not_the_tiers_is_relayed(world: OffsetsWorld, questions: Any, fields: dict[str, int]) -> None:
    world.add()
    assert await world.is_relayed(questions, **fields)
    assert not world.broker.offset_requests


async def test_a_segment_that_the_broker_has_too_is_the_brokers(world: OffsetsWorld) -> None:
    partition = world.add(local_log_start_offset=500)
    world.search.results[partition] = FOUND
    assert await world.is_relayed([("orders", 0, 6000)])
    assert await world.answers([("orders", 0, 4000)]) == [OURS]


@for_each_run("trouble", ["no answer", "slow", "refused", "too old"])
async def test_where_the_broker_does_not_tell_its_log_start_all_is_relayed(world: OffsetsWorld, trouble: str) -> None:
    partition = world.add()
    await world.frontiers.refresh(1, [partition])
    await trio.sleep(0.1)
    client = world.client_of_ours
    if trouble == "no answer":
        client.failure = UpstreamConnectionError("down")
    elif trouble == "too old":
        client.failure = UpstreamUnsupportedError("ListOffsets v8 is needed")
    elif trouble == "slow":
        client.latency_s = 60.0
    else:
        world.log(partition).offsets_error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    started_s = trio.current_time()
    for _ in range(3):
        assert await world.is_relayed([("orders", 0, 4000)])
    assert trio.current_time() - started_s <= (3.0 if trouble == "slow" else 0.0)
    if trouble == "too old":
        assert len(client.offsets_asked) == 2, "it is not asked again"


async def test_without_a_lineage_it_is_relayed(world: OffsetsWorld) -> None:
    world.add()
    world.client_of_ours.epoch_error_codes = [ErrorCode.UNKNOWN_LEADER_EPOCH] * 2
    assert await world.is_relayed([("orders", 0, 4000)])


# --- answered ---


@for_each_run("version", range(LIST_OFFSETS_VERSION_MIN, LIST_OFFSETS_VERSION_MAX + 1))
async def test_the_record_is_the_answer_in_every_version(world: OffsetsWorld, version: int) -> None:
    world.search.results[world.add()] = FOUND
    epoch = 3 if version >= 4 else -1
    assert await world.answers([("orders", 0, 4000)], api_version=version) == [(0, 4000, 17, epoch)]
    assert world.broker.offsets_asked == [[("orders", 0, LATEST)]]
    assert world.search.searched == [(0, 4000, 0)]


async def test_the_request_goes_upstream_as_it_was_but_for_those_timestamps(world: OffsetsWorld) -> None:
    world.search.results[world.add()] = FOUND
    world.add("other", segments=())
    questions = [("other", 0, 300), ("orders", 0, 4000), ("orders", 1, EARLIEST)]
    request = request_of(questions, isolation_level=1, timeout_ms=4321, tags=b"\x01\x63\x01\x07")
    for each in request.partitions:
        each.current_leader_epoch = 5
    fields = {"isolation_level": 1, "timeout_ms": 4321, "tags": request.tags, "partitions": request.partitions}
    answers = await world.answers(questions, **fields)
    assert answers[:2] == [BROKERS, OURS]
    assert answers[2][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (sent,) = world.broker.offset_requests
    assert [each.timestamp for each in sent.partitions] == [300, LATEST, EARLIEST]
    assert {each.current_leader_epoch for each in sent.partitions} == {5}
    assert (sent.client_id, sent.replica_id) == ("a-client", -1)
    assert (sent.isolation_level, sent.timeout_ms, sent.tags) == (1, 4321, request.tags)


async def test_the_log_start_is_asked_of_the_broker_each_time(world: OffsetsWorld) -> None:
    partition = world.add()
    world.search.results[partition] = FOUND
    await world.answers([("orders", 0, 4000)])
    world.log(partition).log_start_offset = 300
    await world.answers([("orders", 0, 4000)])
    world.log(partition).log_start_offset = 500
    await world.answers([("orders", 0, 4000)])
    assert world.search.searched == [(0, 4000, 0), (0, 4000, 300), (500, 4000, 500)]


async def test_a_segment_that_came_after_the_lineage_has_it_built_anew(world: OffsetsWorld) -> None:
    partition = world.add(segments=[(0, 499, 5000)])
    world.search.results[partition] = FOUND
    world.log(partition).epoch_ends[LEADER_EPOCH] = (LEADER_EPOCH, 600)
    await world.answers([("orders", 0, 4000)])
    world.log(partition).epoch_ends[LEADER_EPOCH] = (LEADER_EPOCH, 1500)
    world.add_segment(partition, 500, 999, newest_ms=9000)
    assert await world.answers([("orders", 0, 8000)]) == [OURS]
    assert world.search.searched[-1] == (500, 8000, 0)


@for_each_run("isolation, answer", [(0, (0, 4000, 1450, 3)), (1, NOT_FOUND)])
async def test_what_may_not_be_fetched_yet_is_not_found(
    world: OffsetsWorld, isolation: int, answer: tuple[int, int, int, int]
) -> None:
    partition = world.add()
    world.log(partition).last_stable_offset = 1450
    world.search.results[partition] = FoundTimestamp(4000, 1450, 3)
    assert await world.answers([("orders", 0, 4000)], isolation_level=isolation) == [answer]
    world.search.results[partition] = FoundTimestamp(4000, 1500, 3)
    assert await world.answers([("orders", 0, 4000)], isolation_level=isolation) == [NOT_FOUND]
    assert len(world.broker.offset_requests) == 2


async def test_what_the_tier_does_not_have_is_asked_of_the_broker(world: OffsetsWorld) -> None:
    one, _ = world.add("orders", 0), world.add("orders", 1)
    world.search.results[one] = FOUND
    world.broker.throttle_times_ms = [30, 70]
    response = await world.list_offsets([("orders", 0, 4000), ("orders", 1, 3000)])
    assert [(each.timestamp, each.offset) for each in response.partitions] == [(4000, 17), BROKERS_OWN]
    assert world.broker.offsets_asked == [[("orders", 0, LATEST), ("orders", 1, LATEST)], [("orders", 1, 3000)]]
    assert response.throttle_time_ms == 70


async def test_a_partition_that_the_broker_leaves_out_is_left_out(world: OffsetsWorld) -> None:
    partition = world.add()
    world.search.results[partition] = FOUND
    world.broker.left_out.add(partition)
    assert (await world.list_offsets([("orders", 0, 4000)])).partitions == []


# --- errors ---


@for_each_run(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ],
)
async def test_the_brokers_error_wins_and_is_not_waited_for(world: OffsetsWorld, code: ErrorCode) -> None:
    refused, other = world.add("orders", 0), world.add("orders", 1)
    world.search.results = {refused: FOUND, other: FOUND}
    world.search.delays_s[refused] = 1000.0
    world.log(refused).error_code = code
    assert await world.answers([("orders", 0, 4000), ("orders", 1, 4000)]) == [(code, -1, -1, -1), OURS]
    assert trio.current_time() < 1.0
    assert len(world.broker.offset_requests) == 1


async def test_the_tier_is_searched_for_what_the_broker_allowed_and_not_before(world: OffsetsWorld) -> None:
    """Failed before: a client without rights had indexes and logs fetched, and used up the try after trouble."""
    refused, allowed = world.add("orders", 0), world.add("orders", 1, segments=[(5, 999, 9000)], log_start_offset=5)
    world.search.results = {refused: errors.CorruptObjectError("garbage"), allowed: FOUND}
    assert await world.answers([("orders", 0, 4000)]) == [BROKERS]  # from here on the tier is left alone
    world.search.results[refused] = FOUND
    await trio.sleep(SPELL_S_MIN)
    world.log(refused).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.search.searched.clear()
    world.broker.latency_s = 1.0
    with trio.move_on_after(0.9):
        await world.answers([("orders", 0, 4000), ("orders", 1, 4000)])
    assert world.search.searched == []
    answers = await world.answers([("orders", 0, 4000), ("orders", 1, 4000)])
    assert answers == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1), OURS]
    assert [start_offset for start_offset, *_ in world.search.searched] == [5]
    world.log(refused).error_code = 0
    assert await world.answers([("orders", 0, 4000)]) == [OURS]


@for_each_run("code", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE])
async def test_a_high_watermark_that_lags_is_no_answer_to_a_time(world: OffsetsWorld, code: ErrorCode) -> None:
    partition = world.add()
    world.search.results[partition] = FOUND
    world.log(partition).latest_error_code = code
    assert await world.answers([("orders", 0, 4000)]) == [BROKERS]
    assert world.broker.offsets_asked == [[("orders", 0, LATEST)], [("orders", 0, 4000)]]


@for_each_run(
    "fault",
    [errors.RemoteResourceNotFoundError("gone"), errors.CorruptObjectError("garbage"), KeyError("a fault of ours")],
)
async def test_a_look_up_that_fails_is_the_brokers_and_so_are_the_next(world: OffsetsWorld, fault: Exception) -> None:
    """Failed before: the client got UNKNOWN_SERVER_ERROR for as long as the fault lasted."""
    bad, good = world.add("orders", 0), world.add("orders", 1)
    world.search.results = {bad: fault, good: FOUND}
    assert await world.answers([("orders", 0, 4000), ("orders", 1, 4000)]) == [BROKERS, OURS]
    world.search.results[bad] = FOUND
    assert await world.answers([("orders", 0, 4000)]) == [BROKERS]
    await trio.sleep(SPELL_S_MIN)
    assert await world.answers([("orders", 0, 4000)]) == [OURS]


@for_each_run("fault", [errors.RetriableRemoteStorageError("reset"), errors.ThrottledError("503")])
async def test_a_look_up_that_fails_for_a_moment_is_to_come_again_later(world: OffsetsWorld, fault: Exception) -> None:
    bad, good = world.add("orders", 0), world.add("orders", 1)
    world.search.results = {bad: fault, good: FOUND}
    come_again = (ErrorCode.REPLICA_NOT_AVAILABLE, -1, -1, -1)
    assert await world.answers([("orders", 0, 4000), ("orders", 1, 4000)]) == [come_again, OURS]
    assert trio.current_time() >= COME_AGAIN_S_MIN


@for_each_run(
    "version, timeout_ms, waited_s",
    [(11, 250, 0.25), (11, 2**31 - 1, LOOKUP_TIMEOUT_S), (10, 0, LOOKUP_TIMEOUT_S), (9, 0, LOOKUP_TIMEOUT_S)],
)
async def test_a_search_that_misses_the_deadline_timed_out(
    world: OffsetsWorld, version: int, timeout_ms: int, waited_s: float
) -> None:
    """Failed before: a client that named a day had a day."""
    slow, quick = world.add("orders", 0), world.add("orders", 1)
    world.search.results = {slow: FOUND, quick: FOUND}
    world.search.delays_s[slow] = 1000.0
    questions = [("orders", 0, 4000), ("orders", 1, 4000)]
    answers = await world.answers(questions, api_version=version, timeout_ms=timeout_ms)
    assert answers == [TIMED_OUT, OURS]
    assert trio.current_time() == pytest.approx(waited_s)


async def test_a_search_that_is_too_much_work_is_asked_of_the_broker(world: OffsetsWorld) -> None:
    much, little = world.add("orders", 0), world.add("orders", 1)
    world.search.results = {much: ScanLimitError("too many records"), little: FOUND}
    assert await world.answers([("orders", 0, 4000), ("orders", 1, 4000)]) == [BROKERS, OURS]
    assert world.broker.offsets_asked == [[("orders", 0, LATEST), ("orders", 1, LATEST)], [("orders", 0, 4000)]]
    assert world.fallback.reads_tier(much)


# --- names ---


async def test_a_topic_made_anew_under_its_name_gets_no_old_offset(world: OffsetsWorld) -> None:
    old, other = world.add("orders", 0), world.add("other", 0)
    world.search.results = {old: FOUND, other: FOUND}
    world.search.delays_s[old] = 1000.0
    world.client_of_ours.ids["orders"] = uuid_of("created again")
    assert await world.answers([("orders", 0, 4000), ("other", 0, 4000)]) == [BROKERS, OURS]
    assert world.broker.offsets_asked[1] == [("orders", 0, 4000)]
    assert trio.current_time() < 1.0
    assert world.tier.topic_id("orders") is None


@for_each_run("failure", [None, UpstreamConnectionError("down")])
async def test_a_name_that_the_broker_does_not_confirm_is_the_brokers_to_answer(
    world: OffsetsWorld, failure: Exception | None
) -> None:
    world.search.results[world.add()] = FOUND
    world.client_of_ours.ids.clear()
    world.client_of_ours.ids_failure = failure
    assert await world.answers([("orders", 0, 4000)]) == [BROKERS]


async def test_a_name_is_confirmed_after_the_brokers_answer_and_only_where_it_matters(world: OffsetsWorld) -> None:
    partition = world.add()
    world.search.results[partition] = FOUND
    world.broker.latency_s = 1.0
    requests_before: list[int] = []
    client = world.client_of_ours
    real = client.topic_ids

    async def noted(node_id: int, names: Any) -> dict[str, bytes]:
        requests_before.append(len(world.broker.offset_requests))
        assert trio.current_time() == 1.0
        return await real(node_id, names)

    client.topic_ids = noted  # type: ignore[method-assign]  # to see when it is asked
    await world.answers([("orders", 0, 4000)])
    assert requests_before == [1]
    world.log(partition).error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    await world.answers([("orders", 0, 4000)])
    assert requests_before == [1]
