"""Whole conversations through a FetchService against the same ones with the broker itself, all made up."""

from dataclasses import replace
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.fetch.messages import FetchRequest, FetchResponse, PartitionAnswer
from protocol.fetch.response import decode_response
from tests.support.drawn import drawn
from tests.support.segments import topic_partition
from tests.support.session_model import SessionBroker, SessionClient
from tests.support.tier_world import TierWorld, ask, client_frame, fetch_of

PARTITIONS = 4
END = 1500

offsets = st.sampled_from([0, 17, 500, 999, 1000, 1200, END - 1, END, END, END, END + 1, -1])
wishes = st.lists(st.tuples(st.integers(0, PARTITIONS), offsets), max_size=3)
incremental = st.tuples(st.just("go on"), wishes, st.lists(st.integers(0, PARTITIONS), max_size=2))
others: list[st.SearchStrategy[Any]] = [
    st.tuples(st.sampled_from(kinds), wishes, st.just([]))
    for kinds in (["open", "close"], ["wrong epoch", "wrong id"], ["append", "tier moves", "throttle", "fail"])
]
steps = st.lists(st.one_of(incremental, incremental, incremental, *others), max_size=15)


@given(st.sampled_from([7, 11, 12, 13, 17]), wishes, steps)
@drawn(150)
def test_a_client_cannot_tell_our_sessions_from_the_brokers(
    version: int, first: list[tuple[int, int]], given_steps: list[tuple[str, list[tuple[int, int]], list[int]]]
) -> None:
    async def play() -> None:
        async with trio.open_nursery() as nursery:
            await Both(nursery, version).play([("open", first, []), *given_steps])
            nursery.cancel_scope.cancel()

    trio.run(play, clock=MockClock(autojump_threshold=0))


class Both:
    """The broker alone, and Tidegate before another one that has the same."""

    def __init__(self, nursery: trio.Nursery, version: int) -> None:
        self.version = version
        self.alone, behind = SessionBroker(), SessionBroker()
        self.world = TierWorld(nursery, broker=behind, frontier_age_s_max=0.0)
        self.partitions = [self.world.add_partition("orders", n, high_watermark=END) for n in range(PARTITIONS)]
        for partition in self.partitions:
            self.alone.add(partition, high_watermark=END)
        self.brokers = (self.alone, behind)
        for broker in self.brokers:
            broker.waits = False
        self.client = SessionClient(self.world.client())
        self.sessions = [(0, 0), (0, 0)]
        self.unknown = topic_partition("none", 0)

    async def play(self, conversation: list[tuple[str, list[tuple[int, int]], list[int]]]) -> None:
        for step, wanted, forgotten in conversation:
            if step in ("append", "tier moves", "throttle", "fail"):
                self.change(step, [number for number, _ in wanted if number < PARTITIONS])
            else:
                await self.ask_both(step, wanted, forgotten)

    def change(self, step: str, numbers: list[int]) -> None:
        for broker in self.brokers:
            if step == "throttle":
                broker.throttle_time_ms = 0 if broker.throttle_time_ms else 100
            for number in numbers:
                log = broker.logs[self.partitions[number].topic_id, number]
                if step == "append":
                    broker.append(log)
                elif step == "fail":
                    log.error_code = 0 if log.error_code else 56
                elif step == "tier moves":
                    log.local_log_start_offset = 500 if log.local_log_start_offset == 1000 else 1000

    async def ask_both(self, step: str, wanted: list[tuple[int, int]], forgotten: list[int]) -> None:
        was_relayed = not self.client.relayed or self.client.relayed[-1]
        (theirs_id, theirs_epoch), (ours_id, ours_epoch) = self.sessions
        expected = await self.ask_alone(self.request(step, wanted, forgotten, theirs_id, theirs_epoch))
        found = await self.client.fetch(self.request(step, wanted, forgotten, ours_id, ours_epoch))
        assert (found.error_code, found.throttle_time_ms) == (expected.error_code, expected.throttle_time_ms)
        assert (found.session_id > 0) == (expected.session_id > 0)
        self.compare(expected, found, may_repeat=was_relayed and not self.client.relayed[-1])
        if step in ("open", "go on"):
            self.sessions = [
                _following(session, response)
                for session, response in zip(self.sessions, (expected, found), strict=True)
            ]
        elif step == "close":
            self.sessions = [(session_id, 0) for session_id, _ in self.sessions]

    def compare(self, expected: FetchResponse, found: FetchResponse, *, may_repeat: bool) -> None:
        theirs, ours = (
            {(each.topic, each.topic_id, each.partition): each for each in response.partitions}
            for response in (expected, found)
        )
        assert len(ours) == len(found.partitions)
        assert theirs.keys() <= ours.keys()
        if not may_repeat:
            assert theirs.keys() == ours.keys()
        for key, answer in ours.items():
            if key in theirs:
                assert _fields(answer) == _fields(theirs[key])
            else:
                assert not answer.records
                assert not answer.error_code

    def request(
        self, step: str, wanted: list[tuple[int, int]], forgotten: list[int], session_id: int, epoch: int
    ) -> FetchRequest:
        everything = [*self.partitions, self.unknown]
        keys = [everything[number] for number in forgotten]
        named = [(gone.topic, None) if self.version < 13 else (None, gone.topic_id) for gone in keys]
        request = fetch_of(
            [ask(everything[number], offset, max_bytes=100) for number, offset in wanted],
            api_version=self.version,
            forgotten=[(*name, gone.partition) for name, gone in zip(named, keys, strict=True)],
            session_id=session_id,
            session_epoch=epoch,
        )
        changes = {"open": 0, "close": -1, "wrong epoch": epoch + 5}
        if step == "wrong id":
            return replace(request, session_id=2**31 - 1, session_epoch=max(epoch, 1))
        return replace(request, session_epoch=changes.get(step, epoch))

    async def ask_alone(self, request: FetchRequest) -> FetchResponse:
        frame = await self.alone.answer(client_frame(request))
        return decode_response(memoryview(frame), request.api_version)


def _following(session: tuple[int, int], response: FetchResponse) -> tuple[int, int]:
    """Return what a client sends next: as the Java client does."""
    session_id, epoch = session
    if response.error_code:
        return session_id, 0
    if not response.session_id:
        return 0, 0
    return response.session_id, epoch + 1 if response.session_id == session_id and epoch else 1


def _fields(answer: PartitionAnswer) -> tuple[object, ...]:
    """Return what must be equal; the broker's and the tier's records differ in their first word only."""
    records = [bytes(record).split(b" ", 1)[1].rstrip(b".") for record in _batches(answer)]
    offsets = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
    return answer.error_code, *offsets, answer.preferred_read_replica, answer.tags, tuple(records)


def _batches(answer: PartitionAnswer) -> list[bytes]:
    whole = b"".join(bytes(buffer) for buffer in answer.records)
    return [whole[at : at + 100] for at in range(0, len(whole), 100)]
