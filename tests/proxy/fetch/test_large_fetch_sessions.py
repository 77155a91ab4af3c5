"""Fetch sessions of more partitions than are read, and of more than a slice."""

import pytest
import trio

from protocol.wire.errors import ErrorCode
from tests.support.session_world import EMPTY_OFFSET, Conversation, World, own_session, relayed_session
from tests.support.tier_world import ask
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


@pytest.fixture
def two_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("requests", "sessions"):
        monkeypatch.setattr(f"protocol.fetch.{module}.PARTITIONS_MAX", 2)


@for_each_run("version", [7, 12, 17])
async def test_a_session_of_too_many_is_upstreams_unread(world: World, two_at_most: None, version: int) -> None:
    conversation = Conversation(world, version)
    third = world.add_partition("orders", 2, high_watermark=EMPTY_OFFSET)
    everything = [ask(world.first, 17, max_bytes=100), ask(world.second, EMPTY_OFFSET), ask(third, EMPTY_OFFSET)]
    await conversation.send(everything)
    assert conversation.relayed
    assert world.upstream_sessions == [conversation.session[0]]
    assert world.slots.partitions == 0
    for _ in range(3):
        response = await conversation.send([ask(world.first, 18, max_bytes=100)])
        assert (conversation.relayed, response.error_code) == (True, 0)
    response = await conversation.send(everything)
    assert (conversation.relayed, response.error_code) == (True, 0)
    assert world.upstream_sessions == [conversation.session[0]]


@for_each_run("at_once", [True, False])
async def test_a_relayed_session_that_grows_too_large_is_passed(world: World, two_at_most: None, at_once: bool) -> None:
    conversation = await relayed_session(world)
    more = [world.add_partition("orders", number, high_watermark=EMPTY_OFFSET) for number in (2, 3, 4)]
    asked = [ask(partition, EMPTY_OFFSET) for partition in more]
    for request in [asked] if at_once else [asked[:1], asked[1:]]:
        assert (await conversation.send(request)).error_code == 0
    assert (await conversation.send([ask(world.first, 17)])).error_code == 0
    assert all(conversation.client.relayed)
    assert world.upstream_sessions == [conversation.session[0]]


@for_each_run("at_once", [True, False])
async def test_a_session_of_ours_that_grows_too_large_ends_and_is_upstreams_then(
    world: World, two_at_most: None, at_once: bool
) -> None:
    """Nothing of it may be relayed: upstream knows no such session."""
    conversation = await own_session(world)
    more = [world.add_partition("orders", number, high_watermark=EMPTY_OFFSET) for number in (2, 3, 4)]
    asked = [ask(partition, EMPTY_OFFSET) for partition in more]
    refused = await conversation.send(asked if at_once else asked[:1])
    assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not conversation.relayed
    assert world.headers == []
    conversation.session = (0, 0)
    assert (await conversation.send(asked)).session_id > 0
    assert conversation.relayed
