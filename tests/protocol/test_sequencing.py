"""Responses leave in the order of their requests, whatever the order in which they are made."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.wire.errors import LocalProtocolError
from protocol.wire.response_sequence import ResponseSequencer, Turn


class SequencerMachine(RuleBasedStateMachine):
    """The sequencer against a list of turn numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.sequencer = ResponseSequencer()
        self.turns: dict[int, Turn] = {}
        self.waiting: list[int] = []
        self.done: set[int] = set()

    @rule()
    def allocate(self) -> None:
        number = len(self.turns)
        self.turns[number] = self.sequencer.allocate()
        self.waiting.append(number)

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
        assert self.sequencer.current is (self.turns[current[0]] if current else None)
        assert {number for number, turn in self.turns.items() if turn.is_done} == self.done
        assert self.sequencer.in_flight == len(self.waiting)


TestSequencer = SequencerMachine.TestCase
