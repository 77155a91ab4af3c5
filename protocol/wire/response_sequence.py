"""Keeps responses in request order on one connection.

Kafka clients match responses to requests by order as well as by correlation id (KIP-74 relies on it; librdkafka
and the Java client both drop a connection that answers out of order). Relayed responses come in order by
themselves; answers that Tidegate makes must wait their turn.

Rule 1. `allocate` hands out turns in request order.
Rule 2. Exactly one turn is current: the lowest that was neither completed nor skipped.
Rule 3. A turn is completed or skipped (Produce with acks=0 has no response) exactly once; in any order.
"""

from collections import deque

from protocol.wire.errors import LocalProtocolError


class Turn:
    """One request's place in the order of responses."""

    __slots__ = ("_sequencer", "is_done")

    def __init__(self, sequencer: "ResponseSequencer") -> None:
        self._sequencer = sequencer
        self.is_done = False

    @property
    def is_current(self) -> bool:
        """Return whether this response may be written now."""
        return self._sequencer.current is self

    def complete(self) -> None:
        """The response is written, or there is none to write.

        Raises:
            LocalProtocolError: it was completed before.
        """
        if self.is_done:
            raise LocalProtocolError("a turn is completed once")
        self.is_done = True
        self._sequencer.advance()


class ResponseSequencer:
    """The turns of one connection; `in_flight` is what the connection's limit is held against."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: deque[Turn] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._turns)

    @property
    def current(self) -> Turn | None:
        return self._turns[0] if self._turns else None

    def allocate(self) -> Turn:
        """The next turn, in request order."""
        turn = Turn(self)
        self._turns.append(turn)
        return turn

    def advance(self) -> None:
        """Drop finished turns from the front."""
        while self._turns and self._turns[0].is_done:
            self._turns.popleft()
