"""Fetch sessions between a client and a broker: relayed, ours, and every way from one to the other."""

import pytest
import trio

from protocol.fetch.sessions import IDLE_S_MIN, SessionSlots
from protocol.wire.errors import ErrorCode
from proxy.connection.request_handlers import RELAY
from tests.support.fake_wire import tier_batch
from tests.support.for_each import for_each
from tests.support.session_model import EPOCH_MAX
from tests.support.session_world import (
    EMPTY_OFFSET,
    Conversation,
    World,
    own_session,
    relayed_session,
    returned_session,
    told,
)
from tests.support.tier_world import ask, client_frame, fetch_of, records_of
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


@pytest.fixture
async def own(world: World) -> Conversation:
    return await own_session(world)


@pytest.fixture
async def relayed(world: World) -> Conversation:
    return await relayed_session(world)


# --- relayed ---


@for_each_run("version", [7, 11, 12, 13, 17, 18])
async def test_a_session_without_tier_partitions_is_upstreams_own(world: World, version: int) -> None:
    conversation = Conversation(world, version)
    response = await conversation.send([ask(world.first, EMPTY_OFFSET), ask(world.second, EMPTY_OFFSET)])
    assert world.upstream_sessions == [response.session_id]
    assert told(response) == {0: b"", 1: b""}
    for asked in ([], [ask(world.first, 1490, max_bytes=100)], []):
        response = await conversation.send(asked)
        assert conversation.relayed
    assert told(response) == {0: b"broker"}
    session_id = response.session_id
    epochs = [header[:2] for header in world.headers]
    assert epochs == [(0, 0), (session_id, 1), (session_id, 2), (session_id, 3)]
    assert world.slots.sessions == 1


async def test_an_incremental_request_without_news_looks_up_no_partition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await relayed_session(world)

    def looked_up(*_: object) -> None:
        raise AssertionError("no partition is looked at")

    monkeypatch.setattr(world.tier, "partition", looked_up)
    monkeypatch.setattr("protocol.fetch.sessions.FetchSession.asked", looked_up)
    assert told(await conversation.send()) == {}
    assert conversation.relayed


@for_each_run("state", ["opening", "relayed"])
async def test_an_error_of_the_whole_request_ends_a_relayed_session(world: World, state: str) -> None:
    conversation = Conversation(world)
    if state == "relayed":
        conversation = await relayed_session(world)
        session_id = conversation.session[0]
        world.sessions.sessions.clear()  # upstream has evicted it
        assert (await conversation.send()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        refused = await conversation.send(session_id=session_id, session_epoch=2)
        assert (refused.error_code, conversation.relayed) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, False)
    else:
        world.sessions.gives_sessions = False
        response = await conversation.send([ask(world.first, EMPTY_OFFSET)])
        assert (response.session_id, conversation.relayed) == (0, True)
    assert world.slots.sessions == 0


async def test_what_is_named_and_forgotten_at_once_brings_no_session_to_us(world: World, relayed: Conversation) -> None:
    response = await relayed.send([ask(world.first, 17)], forgotten=[world.first])
    assert (relayed.relayed, told(response)) == (True, {})


async def test_followers_and_bootstrap_connections_have_sessions_of_their_own(world: World) -> None:
    follower = fetch_of([ask(world.first, 17)], replica_id=2, api_version=12, session_id=5, session_epoch=3)
    consumer = fetch_of([ask(world.first, 17)], session_id=5, session_epoch=3)
    bootstrap, broker = world.client(node_id=None), world.client()
    for request, fetcher in ((follower, broker), (consumer, bootstrap)):
        frame = bytearray(client_frame(request))
        assert await fetcher.service.handle(memoryview(frame), fetcher.wire) is RELAY
        assert bytes(frame) == client_frame(request)


# --- from relayed to ours ---


@for_each_run("version", [7, 12, 13, 17])
async def test_a_relayed_session_that_names_a_tier_partition_is_ours(world: World, version: int) -> None:
    conversation = await relayed_session(world, version)
    session_id = conversation.session[0]
    response = await conversation.send([ask(world.first, 17, max_bytes=100)])
    assert response.session_id == session_id
    # What upstream told of the second was not read: it is sent once more.
    assert told(response) == {0: b"tier", 1: b""}
    closing, *others = world.headers
    assert closing == (session_id, -1, [])
    assert {header[:2] for header in others} == {(0, -1)}
    assert world.upstream_sessions == []
    response = await conversation.send([ask(world.first, 18, max_bytes=100)])
    assert (response.session_id, told(response)) == (session_id, {0: b"tier"})
    assert {header[:2] for header in world.headers} == {(0, -1)}


async def test_partitions_that_are_not_named_are_answered_when_they_have_news(world: World, own: Conversation) -> None:
    world.sessions.append(world.log(world.second))
    response = await own.send(forgotten=[])
    assert told(response) == {0: b"tier", 1: b"broker"}


async def test_tier_data_that_was_not_ready_comes_with_a_later_request(world: World, own: Conversation) -> None:
    world.reader.delay_s = 0.7
    assert told(await own.send()) == {}
    world.reader.delay_s = 0.0
    response = await own.send()
    assert records_of(response) == [tier_batch(0, 17)]


async def test_a_forgotten_partition_is_silent_until_it_is_added_again(world: World, own: Conversation) -> None:
    await own.send([ask(world.second, 18, max_bytes=100)], forgotten=[world.first])
    assert told(await own.send()) == {1: b"tier"}
    response = await own.send([ask(world.first, 30, max_bytes=100)])
    assert sorted(records_of(response)) == [tier_batch(0, 30), tier_batch(1, 18)]
    response = await own.send([ask(world.first, EMPTY_OFFSET)], forgotten=[world.first])
    assert told(response) == {1: b"tier"}


async def test_partitions_that_gave_records_go_to_the_end(world: World) -> None:
    conversation = Conversation(world)
    partitions = [world.add_partition("orders", number) for number in range(2, 5)]
    asked = [ask(partition, 17, max_bytes=100) for partition in partitions]
    turns = [told(await conversation.send(asked, max_bytes=100))]
    turns += [told(await conversation.send(max_bytes=100)) for _ in range(5)]
    assert [[number for number, word in turn.items() if word] for turn in turns] == [[2], [2], [3], [4], [2], [3]]


# --- and back ---


@for_each_run("version", [7, 12, 13, 17])
async def test_a_session_with_nothing_in_the_tier_is_given_back(world: World, version: int) -> None:
    conversation = await own_session(world, version)
    session_id, epoch = conversation.session
    response = await conversation.send([ask(world.first, EMPTY_OFFSET)])
    # Nothing has changed since the client was told.
    assert (response.session_id, told(response)) == (session_id, {})
    assert world.headers[-1] == (0, 0, [0, 1])
    (upstream_id,) = world.upstream_sessions
    assert upstream_id != session_id
    for number, asked in enumerate(([], [ask(world.first, 1490, max_bytes=100)], []), start=1):
        response = await conversation.send(asked)
        assert (response.session_id, conversation.relayed) == (session_id, True)
        assert world.headers == [(upstream_id, number, [0] if asked else [])]
    assert told(response) == {0: b"broker"}
    assert conversation.session == (session_id, epoch + 4)


async def test_a_session_goes_to_and_fro_as_often_as_it_likes(world: World) -> None:
    conversation = await returned_session(world)
    session_id = conversation.session[0]
    for turn in range(3):
        response = await conversation.send([ask(world.first, 20 + turn, max_bytes=100)])
        assert told(response) == {0: b"tier", 1: b""}
        assert world.upstream_sessions == []
        assert told(await conversation.send([ask(world.first, EMPTY_OFFSET)])) == {}
        assert len(world.upstream_sessions) == 1
        assert told(await conversation.send([ask(world.second, 1490, max_bytes=100)])) == {1: b"broker"}
        assert conversation.relayed
        assert told(await conversation.send([ask(world.second, EMPTY_OFFSET)])) == {}
        assert conversation.session[0] == session_id


async def test_a_session_that_upstream_does_not_take_stays_ours(world: World) -> None:
    world.sessions.gives_sessions = False
    conversation = await own_session(world)
    for asked in ([ask(world.first, EMPTY_OFFSET)], []):
        response = await conversation.send(asked)
        assert (told(response), response.session_id) == ({}, conversation.session[0])
        assert not conversation.relayed
    world.sessions.append(world.log(world.first))
    assert told(await conversation.send()) == {0: b"broker"}
    assert {header[:2] for header in world.headers[-3:]} == {(0, 0)}


async def test_epochs_wrap_on_both_sides_by_themselves(world: World) -> None:
    conversation = await returned_session(world)
    session_id = conversation.session[0]
    (session,) = world.slots.held
    (theirs,) = world.sessions.sessions.values()
    session.epoch, session.upstream_epoch, theirs.epoch = EPOCH_MAX, EPOCH_MAX - 1, EPOCH_MAX - 1
    conversation.session = (session_id, EPOCH_MAX)
    for _ in range(3):
        assert (await conversation.send()).error_code == 0
        assert conversation.relayed
    assert [header[1] for header in world.headers] == [EPOCH_MAX - 1, EPOCH_MAX, 1]
    assert conversation.session == (session_id, 3)


# --- refused, replaced, ended ---


@for_each("make", [relayed_session, own_session, returned_session])
@for_each_run("version", [12, 13])
async def test_the_three_errors_in_the_brokers_order(world: World, make: object, version: int) -> None:
    assert callable(make)
    conversation = await make(world, version)
    session_id, epoch = conversation.session
    other_naming = 13 if version == 12 else 12
    refusals: list[tuple[int, int, int, ErrorCode]] = [
        (session_id + 1, epoch, version, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (session_id + 1, epoch + 9, other_naming, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, epoch, version, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (session_id, epoch + 1, other_naming, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session_id, -2, version, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session_id, epoch, other_naming, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ]
    for wrong_id, wrong_epoch, api_version, code in refusals:
        response = await conversation.send(
            [ask(world.first, 17)], session_id=wrong_id, session_epoch=wrong_epoch, api_version=api_version
        )
        assert (response.error_code, response.session_id, response.partitions) == (code, 0, [])
    # None of them changed the session.
    conversation.session = (session_id, epoch)
    assert (await conversation.send()).error_code == 0
    assert len(world.headers) <= 2


async def test_another_connection_does_not_have_the_session(world: World, own: Conversation) -> None:
    again = Conversation(world)
    again.session = own.session
    assert (await again.send()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    own.client.fetcher.service.close()
    assert world.slots.sessions == 0


@for_each_run("epoch", [0, -1])
async def test_a_relayed_full_fetch_closes_the_session_that_it_names(world: World, epoch: int) -> None:
    everything = [ask(world.first, EMPTY_OFFSET), ask(world.second, EMPTY_OFFSET)]
    conversation = await own_session(world)
    session_id = conversation.session[0]
    response = await conversation.send(everything, session_epoch=epoch)
    assert world.headers == [(0, epoch, [0, 1])]  # upstream never heard of it
    assert response.session_id != session_id
    world.sessions.sessions.clear()
    conversation = await returned_session(world)
    (upstream_id,) = world.upstream_sessions
    await conversation.send(everything, session_epoch=epoch)
    assert world.headers == [(upstream_id, epoch, [0, 1])]
    assert upstream_id not in world.upstream_sessions
    assert world.slots.sessions == (2 if epoch == 0 else 0)
    # One of an earlier connection: upstream may know it.
    await conversation.send(everything, session_id=77, session_epoch=epoch)
    assert world.headers == [(77, epoch, [0, 1])]


@for_each_run("epoch", [0, -1])
async def test_a_full_fetch_of_the_tier_closes_the_session_that_it_names(world: World, epoch: int) -> None:
    conversation = await relayed_session(world)
    session_id = conversation.session[0]
    response = await conversation.send([ask(world.first, 17)], session_epoch=epoch)
    assert world.headers[0] == (session_id, -1, [])
    assert world.upstream_sessions == []
    assert (response.session_id > 0) == (epoch == 0)
    refused = await conversation.send(session_id=session_id, session_epoch=1)
    if response.session_id != session_id:
        assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_upstreams_id_is_translated_if_the_connection_has_it_already(world: World, relayed: Conversation) -> None:
    session_id = relayed.session[0]
    await relayed.send([ask(world.first, 17)])  # ours now, and its number is free upstream
    world.sessions.number_from(session_id)
    world.headers.clear()
    second = Conversation(world)
    second.client = relayed.client
    response = await second.send([ask(world.second, EMPTY_OFFSET)])
    assert (second.relayed, world.upstream_sessions) == (True, [session_id])
    assert response.session_id not in (0, session_id)
    assert told(await second.send([ask(world.second, 1490, max_bytes=100)])) == {1: b"broker"}
    assert [header[:2] for header in world.headers] == [(0, 0), (session_id, 1)]


# --- limits ---


async def test_without_room_a_client_goes_on_without_a_session(world: World) -> None:
    world.slots = SessionSlots(sessions_max=1)
    holder = await own_session(world)
    for offset in (17, EMPTY_OFFSET):
        late = Conversation(world)
        response = await late.send([ask(world.first, offset, max_bytes=100)])
        assert (response.session_id, response.error_code, len(response.partitions)) == (0, 0, 1)
    assert world.upstream_sessions == []
    assert (await holder.send()).error_code == 0
    await trio.sleep(IDLE_S_MIN)
    assert (await Conversation(world).send([ask(world.first, 17)])).session_id > 0
    assert (await holder.send()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_that_grows_too_large_is_no_more(world: World) -> None:
    world.slots = SessionSlots(partitions_max=2)
    conversation = await relayed_session(world)
    third = world.add_partition("orders", 2)
    response = await conversation.send([ask(third, 17)])
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert world.slots.partitions == 0
