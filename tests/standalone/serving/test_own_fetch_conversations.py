"""Whole conversations in standalone mode while the broker deletes: no client hears that the tier's offsets are gone,
and each that comes again gets its records."""

from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.fetch.messages import FetchResponse
from protocol.wire.errors import ErrorCode
from proxy.fetch.fallback import COME_AGAIN
from tests.standalone.serving.test_own_fetches import END, World
from tests.support.drawn import drawn
from tests.support.session_model import SessionClient
from tests.support.tier_world import ask, fetch_of

PARTITIONS = 3
TIER_START, TIER_END = 100, 1399
HOLE = range(600, 700)

local = st.sampled_from([1000, 1049, 1099, 1100, 1250, 1399, END])
offsets = st.one_of(local, local, local, st.sampled_from([99, 100, 599, 600, 650, 700, 999, END + 1]))
numbers = st.integers(0, PARTITIONS - 1)
wishes = st.lists(st.tuples(numbers, offsets), max_size=2)
first_wishes = st.lists(st.tuples(numbers, local), min_size=1, max_size=3)
deletions = st.lists(st.tuples(numbers, st.sampled_from([1050, 1100, 1251, 1400])), min_size=1, max_size=2)
step: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.sampled_from(["go on", "wait"]), st.just([])),
    st.tuples(st.sampled_from(["go on", "open", "sessionless"]), wishes),
    st.tuples(st.just("delete"), deletions),
)
steps = st.lists(step, min_size=3, max_size=12)


@given(st.sampled_from([4, 7, 11, 12, 13, 17]), st.integers(0, 1), first_wishes, steps)
@drawn(80)
def test_no_offset_of_the_tier_is_ever_out_of_range(
    version: int,
    isolation_level: int,
    first: list[tuple[int, int]],
    given_steps: list[tuple[str, list[tuple[int, int]]]],
) -> None:
    async def play() -> None:
        async with trio.open_nursery() as nursery:
            await Conversation(nursery, version, isolation_level).play([("open", first), *given_steps])
            nursery.cancel_scope.cancel()

    trio.run(play, clock=MockClock(autojump_threshold=0))


class Conversation:
    """One client, by sessions where its version has them; and what it last asked of each partition of its session."""

    def __init__(self, nursery: trio.Nursery, version: int, isolation_level: int) -> None:
        self.version, self.isolation_level = version, isolation_level
        self.world = World(nursery)
        segments = [(TIER_START, HOLE.start - 1), (HOLE.stop, 1049), (1050, TIER_END)]
        self.partitions = [self.world.add(number, segments) for number in range(PARTITIONS)]
        self.client = SessionClient(self.world.client())
        self.session = (0, 0)
        self.asked: dict[int, int] = {}

    async def play(self, conversation: list[tuple[str, list[tuple[int, int]]]]) -> None:
        for step, wanted in conversation:
            if step == "wait":
                await trio.sleep(2.0)
            elif step == "delete":
                for number, offset in wanted:
                    log_start = self.world.log(self.partitions[number]).log_start_offset
                    self.world.drop(self.partitions[number], max(log_start, offset))
            else:
                await self.ask(step, dict(wanted))
        for number, offset in {0: 650, 1: 1050, 2: 1250}.items():
            await self.is_served(number, offset)

    async def ask(self, step: str, wanted: dict[int, int]) -> None:
        session_id, epoch = self.session
        if step != "go on" or not session_id:
            epoch = -1 if step == "sessionless" else 0
        response = await self.fetch(wanted, session_id, epoch)
        assert not response.error_code
        judged = wanted
        if epoch >= 0 and response.session_id:
            self.asked = {**(self.asked if epoch else {}), **wanted}
            self.session, judged = (response.session_id, epoch + 1), self.asked
        else:
            self.session = (0, 0)
        for answer in response.partitions:
            offset = judged[answer.partition]
            if offset < TIER_START:
                assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            elif offset <= END:
                assert answer.error_code in (0, COME_AGAIN)
            if not answer.error_code and self.version >= 5:
                assert answer.log_start_offset == TIER_START

    async def fetch(self, wanted: dict[int, int], session_id: int, epoch: int) -> FetchResponse:
        asked = [ask(self.partitions[number], offset, max_bytes=200) for number, offset in wanted.items()]
        client = {"api_version": self.version, "isolation_level": self.isolation_level, "max_wait_ms": 0}
        return await self.client.fetch(fetch_of(asked, session_id=session_id, session_epoch=epoch, **client))

    async def is_served(self, number: int, offset: int) -> None:
        """After the broker's surprise, the records come with the next request."""
        (answer,) = (await self.fetch({number: offset}, 0, -1)).partitions
        if answer.error_code:
            (answer,) = (await self.fetch({number: offset}, 0, -1)).partitions
        records = b"".join(bytes(buffer) for buffer in answer.records)
        first = offset if offset not in HOLE else HOLE.stop
        assert records.split(b" ")[1:3] == [str(number).encode(), str(first).encode()]
