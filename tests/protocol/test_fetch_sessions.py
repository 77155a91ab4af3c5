"""Session tables against a second model of KIP-227, and what keeps them small."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.api_01_fetch import NO_TAGS, FetchPartition, FetchRequest, PartitionAnswer, key_of
from protocol.errors import ErrorCode
from protocol.fetch_sessions import (
    CONNECTION_SESSIONS_MAX,
    IDLE_S_MIN,
    FetchSession,
    SessionSlots,
    SessionTable,
    next_epoch,
)
from tests.support.segments import topic_partition
from tests.support.session_model import EPOCH_MAX, ModelEntry, ModelSession
from tests.support.tier_world import ask, fetch_of

DIVERGING = b"\x01\x00\x0d" + (4).to_bytes(4, "big") + (10).to_bytes(8, "big") + b"\x00"
OTHER_TAG = b"\x01\x01\x01\x00"

numbers = st.integers(0, 5)
named = st.lists(st.tuples(numbers, st.integers(0, 50)), max_size=4)
answered = st.fixed_dictionaries(
    {},
    optional={
        "high_watermark": st.integers(-1, 2),
        "log_start_offset": st.integers(-1, 1),
        "error_code": st.sampled_from([0, 0, 0, 1, 6]),
        "preferred_read_replica": st.sampled_from([-1, -1, 2]),
        "records": st.sampled_from([(), (b"",), (b"r", b"s")]),
        "tags": st.sampled_from([NO_TAGS, OTHER_TAG, DIVERGING]),
    },
)


def asks(wanted: Sequence[tuple[int, int]], version: int = 17) -> list[FetchPartition]:
    partitions = [ask(topic_partition("orders", number), offset) for number, offset in wanted]
    if version >= 13:
        return [replace(asked, topic=None) for asked in partitions]
    return [replace(asked, topic_id=None) for asked in partitions]


def answer_of(asked: FetchPartition, **fields: object) -> PartitionAnswer:
    answer = PartitionAnswer(asked.topic, asked.topic_id, asked.partition, 0, 1, 1, 0)
    for name, value in fields.items():
        setattr(answer, name, value)
    return answer


def request_of(version: int, session: tuple[int, int], wanted: Sequence[tuple[int, int]] = ()) -> FetchRequest:
    session_id, epoch = session
    return fetch_of(asks(wanted, version), api_version=version, session_id=session_id, session_epoch=epoch)


class SessionConversation(RuleBasedStateMachine):
    """One connection's table beside the model, told the same requests and answers."""

    def __init__(self) -> None:
        super().__init__()
        ids = itertools.count(1)
        self.slots = SessionSlots()
        self.table = SessionTable(self.slots, lambda: next(ids))
        self.model: dict[int, ModelSession] = {}
        self.found: dict[int, FetchSession] = {}

    @rule(version=st.sampled_from([7, 12, 13, 17]), wanted=named, closes=numbers, told=st.data())
    def open(self, version: int, wanted: list[tuple[int, int]], closes: int, told: st.DataObject) -> None:
        request = request_of(version, (closes, 0), wanted)
        assert (self.table.close(closes) is not None) == (self.model.pop(closes, None) is not None)
        session = self.table.begin(request, 0.0)
        assert session is not None
        model = ModelSession(version >= 13, [])
        model.merge(request)
        answers = [answer_of(asked, **told.draw(answered)) for asked in session.asked()]
        session.told_all(answers)
        for answer in answers:
            entry = model.find(key_of(answer))
            assert entry is not None
            entry.told = answer.high_watermark, answer.log_start_offset
        self.table.give_id(session)
        self.model[session.session_id] = model
        self.found[session.session_id] = session

    @precondition(lambda self: self.model)
    @rule(which=st.data(), wanted=named, forgotten=st.lists(numbers, max_size=3), told=st.data())
    def go_on(
        self, which: st.DataObject, wanted: list[tuple[int, int]], forgotten: list[int], told: st.DataObject
    ) -> None:
        session_id = which.draw(st.sampled_from(sorted(self.model)))
        model = self.model[session_id]
        request = request_of(17 if model.by_id else 12, (session_id, model.epoch), wanted)
        request.forgotten = [key_of(asked) for asked in asks([(n, 0) for n in forgotten], request.api_version)]
        session = self.table.find(request)
        assert isinstance(session, FetchSession)
        assert self.table.note(session, request, 0.0)
        model.merge(request)
        if not model.entries:
            del self.model[session_id]
            return
        model.epoch = 1 if model.epoch == EPOCH_MAX else model.epoch + 1
        kept = {key_of(entry.asked) for entry in model.entries}
        assert session.still_named(request) == [asked for asked in request.partitions if key_of(asked) in kept]
        answers = [answer_of(asked, **told.draw(answered)) for asked in session.asked()]
        assert session.changed(answers) == model.cut(answers)

    @precondition(lambda self: self.model)
    @rule(which=st.data(), version=st.sampled_from([7, 17]), session_id=numbers, epoch=st.integers(-5, 5))
    def refuse(self, which: st.DataObject, version: int, session_id: int, epoch: int) -> None:
        found = self.table.find(request_of(version, (session_id, epoch), [(0, 0)]))
        model = self.model.get(session_id)
        if model is None:
            assert found == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        elif model.epoch != epoch:
            assert found == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        elif model.by_id != (version >= 13):
            assert found == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        else:
            assert found is self.found[session_id]

    @precondition(lambda self: self.model)
    @rule(which=st.data())
    def come_to_the_last_epoch(self, which: st.DataObject) -> None:
        session_id = which.draw(st.sampled_from(sorted(self.model)))
        self.model[session_id].epoch = self.found[session_id].epoch = EPOCH_MAX

    @invariant()
    def both_hold_the_same(self) -> None:
        for session_id, model in self.model.items():
            session = self.found[session_id]
            assert session.asked() == [entry.asked for entry in model.entries]
            assert session.epoch == model.epoch
        assert self.slots.sessions == len(self.model)
        assert self.slots.partitions == sum(len(model.entries) for model in self.model.values())


TestSessionConversation = SessionConversation.TestCase


# --- what is told ---


def test_each_partition_is_told_once_after_a_session_became_ours() -> None:
    session = FetchSession(request_of(17, (0, 0), [(0, 0), (1, 0)]))
    answers = [answer_of(asked) for asked in session.asked()]
    session.told_all(answers)
    assert session.changed(answers) == []
    session.become_relayed(7)
    session.become_ours()
    assert session.changed(answers) == answers
    assert session.changed(answers) == []


def test_after_an_error_the_high_watermark_is_told_again_though_it_is_the_same() -> None:
    session = FetchSession(request_of(17, (0, 0), [(0, 0)]))
    good = [answer_of(asked) for asked in session.asked()]
    bad = [answer_of(asked, error_code=56) for asked in session.asked()]
    session.told_all(good)
    assert [session.changed(answers) for answers in (good, bad, bad, good, good)] == [[], bad, bad, good, []]


def test_an_answer_for_a_partition_that_was_not_asked_for_is_not_passed_on() -> None:
    session = FetchSession(request_of(17, (0, 0), [(0, 0)]))
    assert session.changed([answer_of(asks([(1, 0)])[0])]) == []
    session.told_all([answer_of(asks([(1, 0)])[0])])
    assert len(session) == 1


@given(st.lists(st.tuples(numbers, st.sampled_from([NO_TAGS, OTHER_TAG, DIVERGING]))))
def test_a_diverging_epoch_is_told_each_time(tagged: list[tuple[int, bytes]]) -> None:
    session = FetchSession(request_of(17, (0, 0), [(number, 0) for number in range(6)]))
    session.told_all([answer_of(asked) for asked in session.asked()])
    for number, tags in tagged:
        (asked,) = asks([(number, 0)])
        assert len(session.changed([answer_of(asked, tags=tags)])) == (tags == DIVERGING)


def test_a_relayed_partition_that_moved_on_goes_to_the_end() -> None:
    session = FetchSession(request_of(17, (0, 0), [(0, 5), (1, 5), (2, 5)]))
    session.become_relayed(7)
    session.update(asks([(0, 5), (1, 6)]), ())
    assert [asked.partition for asked in session.asked()] == [0, 2, 1]


@pytest.mark.parametrize(("epoch", "following"), [(1, 2), (EPOCH_MAX - 1, EPOCH_MAX), (EPOCH_MAX, 1)])
def test_epochs_wrap_to_one(epoch: int, following: int) -> None:
    assert next_epoch(epoch) == following


# --- limits ---


def test_a_full_cache_gives_no_session_until_one_is_idle() -> None:
    counts: list[int] = []
    slots = SessionSlots(sessions_max=2, on_changed=counts.append)
    tables = [SessionTable(slots) for _ in range(3)]
    first, second = (table.begin(request_of(17, (0, 0), [(0, 0)]), 0.0) for table in tables[:2])
    assert first is not None
    assert second is not None
    for table, session in zip(tables, (first, second), strict=False):
        table.give_id(session)
    assert tables[0].note(first, request_of(17, (first.session_id, 1)), 60.0)
    late = request_of(17, (0, 0), [(0, 0)])
    assert tables[2].begin(late, IDLE_S_MIN - 1) is None
    assert tables[2].begin(late, IDLE_S_MIN) is not None
    gone = tables[1].find(request_of(17, (second.session_id, 1)))
    assert gone == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert tables[0].find(request_of(17, (first.session_id, 2))) is first
    assert counts[-1] == slots.sessions == 2


def test_partitions_are_counted_in_all_sessions_together() -> None:
    slots = SessionSlots(partitions_max=5)
    tables = [SessionTable(slots) for _ in range(2)]
    first = tables[0].begin(request_of(17, (0, 0), [(n, 0) for n in range(3)]), 0.0)
    assert first is not None
    assert tables[1].begin(request_of(17, (0, 0), [(n, 0) for n in range(3)]), 0.0) is None
    assert tables[1].begin(request_of(17, (0, 0), [(n, 0) for n in range(2)]), 0.0) is not None
    assert slots.partitions == 5
    tables[0].give_id(first)
    grown = request_of(17, (first.session_id, 1), [(4, 0)])
    assert not tables[0].note(first, grown, 1.0)
    assert tables[0].find(grown) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (slots.sessions, slots.partitions) == (1, 2)


def test_a_connection_that_opens_session_after_session_keeps_the_latest_ones() -> None:
    slots = SessionSlots()
    table = SessionTable(slots)
    opening = request_of(17, (0, 0), [(0, 0)])
    for number in range(CONNECTION_SESSIONS_MAX):
        assert table.begin(opening, float(number)) is not None
    assert table.begin(opening, 40.0) is None
    assert table.begin(opening, IDLE_S_MIN) is not None
    assert slots.sessions == CONNECTION_SESSIONS_MAX
    table.clear()
    assert (slots.sessions, slots.partitions) == (0, 0)


def test_an_id_that_is_taken_is_not_given_again() -> None:
    ids = iter([7, 7, 8])
    table = SessionTable(SessionSlots(), lambda: next(ids))
    given_ids = []
    for wanted_id in (0, 7, 9):
        session = table.begin(request_of(17, (0, 0), [(0, 0)]), 0.0)
        assert session is not None
        table.give_id(session, wanted_id)
        given_ids.append(session.session_id)
    assert given_ids == [7, 8, 9]


def test_a_session_that_was_dropped_gets_no_id() -> None:
    slots = SessionSlots()
    table = SessionTable(slots)
    session = table.begin(request_of(17, (0, 0), [(0, 0)]), 0.0)
    assert session is not None
    table.drop(session)
    table.drop(session)
    table.give_id(session, 9)
    assert table.find(request_of(17, (9, 1))) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_model_knows_an_entry_by_its_key() -> None:
    """The model is what others are compared with, so it is compared with plain expectations itself."""
    model = ModelSession(by_id=True, entries=[ModelEntry(asked) for asked in asks([(0, 0), (1, 0)])])
    request = request_of(17, (1, 1), [(1, 5), (2, 0), (2, 9)])
    request.forgotten = [key_of(asks([(0, 0)])[0])]
    model.merge(request)
    assert [(entry.asked.partition, entry.asked.fetch_offset) for entry in model.entries] == [(1, 5), (2, 9)]
