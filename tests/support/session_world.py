"""A world with two partitions, and clients that go through Fetch sessions in it."""

from collections.abc import Sequence

import trio

from protocol.fetch.messages import FetchPartition, FetchResponse
from storage.model import TopicIdPartition
from tests.support.session_model import EPOCH_MAX, SessionBroker, SessionClient
from tests.support.tier_world import TierWorld, ask, fetch_of, records_of

EMPTY_OFFSET = 1500
"""The high watermark: nothing to read."""


class World(TierWorld):
    """Two partitions; each has its tier below 1000 and its end at 1500."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.sessions = SessionBroker()
        super().__init__(nursery, broker=self.sessions)
        self.sessions.waits = False
        self.first = self.add_partition("orders", 0, high_watermark=EMPTY_OFFSET)
        self.second = self.add_partition("orders", 1, high_watermark=EMPTY_OFFSET)

    @property
    def upstream_sessions(self) -> list[int]:
        return sorted(self.sessions.sessions)

    @property
    def headers(self) -> list[tuple[int, int, list[int]]]:
        """Session id, epoch and partitions of each request that upstream has heard since this was last looked at."""
        heard = [
            (request.session_id, request.session_epoch, [asked.partition for asked in request.partitions])
            for request in self.sessions.requests
        ]
        self.sessions.requests.clear()
        return heard


class Conversation:
    """A client that goes through a session as clients do. Answers go by partition number."""

    def __init__(self, world: World, version: int = 17) -> None:
        self.client = SessionClient(world.client())
        self.version = version
        self.session = (0, 0)

    async def send(
        self, asked: Sequence[FetchPartition] = (), *, forgotten: Sequence[TopicIdPartition] = (), **fields: object
    ) -> FetchResponse:
        fields = {"session_id": self.session[0], "session_epoch": self.session[1], "max_wait_ms": 100, **fields}
        fields = {"api_version": self.version, **fields}
        by_id = fields["api_version"] in range(13, 99)
        keys = [(None, gone.topic_id, 0) if by_id else (gone.topic, None, 0) for gone in forgotten]
        keys = [(*key[:2], gone.partition) for key, gone in zip(keys, forgotten, strict=True)]
        response = await self.client.fetch(fetch_of(asked, forgotten=keys, **fields))
        if response.error_code:
            self.session = (self.session[0], 0)
        elif response.session_id:
            epoch = self.session[1]
            self.session = (response.session_id, 1 if epoch == EPOCH_MAX else epoch + 1)
        return response

    @property
    def relayed(self) -> bool:
        """Return whether the last request was."""
        return self.client.relayed[-1]


def told(response: FetchResponse) -> dict[int, bytes]:
    """First word of the records of each partition in the answer: who has them."""
    words = [records.split(b" ")[0] for records in records_of(response)]
    return {answer.partition: word for answer, word in zip(response.partitions, words, strict=True)}


async def relayed_session(world: World, version: int = 17) -> Conversation:
    conversation = Conversation(world, version)
    await conversation.send([ask(world.first, EMPTY_OFFSET), ask(world.second, EMPTY_OFFSET)])
    assert conversation.relayed
    assert world.headers
    return conversation


async def own_session(world: World, version: int = 17) -> Conversation:
    conversation = Conversation(world, version)
    response = await conversation.send([ask(world.first, 17, max_bytes=100), ask(world.second, EMPTY_OFFSET)])
    assert told(response) == {0: b"tier", 1: b""}
    assert response.session_id > 0
    assert not world.upstream_sessions
    world.headers.clear()
    return conversation


async def returned_session(world: World, version: int = 17) -> Conversation:
    """One that was ours, and was given back to upstream."""
    conversation = await own_session(world, version)
    await conversation.send([ask(world.first, EMPTY_OFFSET)])
    assert not conversation.relayed
    assert world.upstream_sessions != [conversation.session[0]]
    assert world.headers
    return conversation
