"""Responses leave in the order of their requests, whatever the order in which they are made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.wire.errors import LocalProtocolError
from protocol.wire.sequencing import ResponseSequencer, Turn


def test_the_first_turn_is_current_at_once() -> None:
    sequencer = ResponseSequencer()
    first, second = sequencer.allocate(), sequencer.allocate()
    called: list[str] = []

    first.when_current(lambda: called.append("first"))
    second.when_current(lambda: called.append("second"))

    assert called == ["first"]
    assert first.is_current
    assert not second.is_current
    assert sequencer.current is first


def test_a_turn_becomes_current_when_the_one_before_is_complete() -> None:
    sequencer = ResponseSequencer()
    first, second = sequencer.allocate(), sequencer.allocate()
    called: list[str] = []
    second.when_current(lambda: called.append("second"))

    first.complete()

    assert called == ["second"]
    assert second.is_current
    assert first.is_done
    assert sequencer.in_flight == 1


def test_a_turn_completed_before_it_was_current_is_passed_over() -> None:
    """Produce with acks=0 behind a long Fetch: there is nothing to write."""
    sequencer = ResponseSequencer()
    fetch, produce, metadata = (sequencer.allocate() for _ in range(3))
    called: list[str] = []
    produce.when_current(lambda: called.append("produce"))
    metadata.when_current(lambda: called.append("metadata"))

    produce.complete()
    assert sequencer.current is fetch
    assert sequencer.in_flight == 3
    fetch.complete()

    assert called == ["metadata"]
    assert sequencer.current is metadata
    assert sequencer.in_flight == 1


def test_a_turn_is_completed_once() -> None:
    turn = ResponseSequencer().allocate()
    turn.complete()

    with pytest.raises(LocalProtocolError):
        turn.complete()


def test_nothing_is_current_when_nothing_is_in_flight() -> None:
    sequencer = ResponseSequencer()
    assert sequencer.current is None
    assert sequencer.in_flight == 0

    sequencer.allocate().complete()

    assert sequencer.current is None
    assert sequencer.allocate().is_current


def test_a_callback_may_complete_its_turn_and_ask_for_the_next() -> None:
    sequencer = ResponseSequencer()
    first, second = sequencer.allocate(), sequencer.allocate()
    called: list[str] = []

    def write_and_go_on() -> None:
        called.append("second")
        second.complete()
        sequencer.allocate().when_current(lambda: called.append("third"))

    second.when_current(write_and_go_on)
    first.complete()

    assert called == ["second", "third"]
    assert sequencer.in_flight == 1


def test_a_long_row_of_turns_that_complete_at_once_is_no_deep_stack() -> None:
    # Failed before with RecursionError: each turn woke the next from within its own completion.
    sequencer = ResponseSequencer()
    turns = [sequencer.allocate() for _ in range(5000)]
    for turn in turns[1:]:
        turn.when_current(turn.complete)

    turns[0].complete()

    assert sequencer.in_flight == 0


def test_a_callback_that_fails_does_not_stop_the_turns_after_it() -> None:
    sequencer = ResponseSequencer()
    first, second, third = (sequencer.allocate() for _ in range(3))

    def fail() -> None:
        raise OSError("socket gone")

    second.when_current(fail)
    with pytest.raises(OSError, match="socket gone"):
        first.complete()

    second.complete()
    assert third.is_current


@given(st.permutations(range(8)))
def test_responses_made_in_any_order_leave_in_request_order(order: list[int]) -> None:
    sequencer = ResponseSequencer()
    turns = [sequencer.allocate() for _ in order]
    written: list[int] = []

    def write(index: int) -> None:
        written.append(index)
        turns[index].complete()

    for index in order:
        turns[index].when_current(lambda index=index: write(index))  # type: ignore[misc]  # binds the loop's value

    assert written == sorted(order)


class SequencerMachine(RuleBasedStateMachine):
    """The sequencer against a list of turn numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.sequencer = ResponseSequencer()
        self.turns: dict[int, Turn] = {}
        self.waiting: list[int] = []
        self.done: set[int] = set()
        self.told: list[int] = []
        self.asked: set[int] = set()

    @rule(ask=st.booleans())
    def allocate(self, ask: bool) -> None:
        number = len(self.turns)
        self.turns[number] = self.sequencer.allocate()
        self.waiting.append(number)
        if ask:
            self.asked.add(number)
            self.turns[number].when_current(lambda: self.told.append(number))

    @precondition(lambda self: len(self.turns) > len(self.done))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(set(self.turns) - self.done)))
        self.done.add(number)
        self.turns[number].complete()
        while self.waiting and self.waiting[0] in self.done:
            self.waiting.pop(0)

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def completing_again_is_our_error(self, data: st.DataObject) -> None:
        if self.done:
            with pytest.raises(LocalProtocolError):
                self.turns[data.draw(st.sampled_from(sorted(self.done)))].complete()

    @invariant()
    def exactly_the_lowest_unfinished_turn_is_current(self) -> None:
        current = [number for number, turn in self.turns.items() if turn.is_current]
        assert current == self.waiting[:1]
        assert self.sequencer.in_flight == len(self.waiting)

    @invariant()
    def turns_are_told_once_and_in_order(self) -> None:
        assert self.told == sorted(set(self.told))
        if self.waiting and self.waiting[0] in self.asked:
            assert self.told[-1] == self.waiting[0]


TestSequencer = SequencerMachine.TestCase
