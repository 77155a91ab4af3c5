"""Keeps responses in request order on one connection.

Kafka clients match responses to requests by order as well as by correlation id (KIP-74 relies on it; librdkafka
and the Java client both drop a connection that answers out of order). Relayed responses come in order by
themselves; answers that Tidegate makes must wait their turn.

Rule 1. `allocate` hands out turns in request order.
Rule 2. Exactly one turn is current: the lowest that was neither completed nor skipped.
Rule 3. A turn is completed or skipped (Produce with acks=0 has no response) exactly once; in any order.
"""

from collections import deque
from collections.abc import Callable

from protocol.wire.errors import LocalProtocolError


class Turn:
    """One request's place in the order of responses."""

    __slots__ = ("_done", "_on_current", "_sequencer")

    def __init__(self, sequencer: "ResponseSequencer") -> None:
        self._sequencer = sequencer
        self._done = False
        self._on_current: Callable[[], None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether this response may be written now."""
        return self._sequencer.current is self

    def when_current(self, callback: Callable[[], None]) -> None:
        """Call back once when this turn becomes current: at once if it is."""
        if self.is_current:
            callback()
        else:
            self._on_current = callback

    def complete(self) -> None:
        """The response is written, or there is none to write.

        Raises:
            LocalProtocolError: it was completed before.
        """
        if self._done:
            raise LocalProtocolError("a turn is completed once")
        self._done = True
        self._sequencer.advance()

    @property
    def is_done(self) -> bool:
        return self._done

    def became_current(self) -> None:
        """Told by the sequencer."""
        callback, self._on_current = self._on_current, None
        if callback is not None:
            callback()


class ResponseSequencer:
    """The turns of one connection; `in_flight` is what the connection's limit is held against."""

    __slots__ = ("_is_advancing", "_turns")

    def __init__(self) -> None:
        self._is_advancing = False
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
        """Drop finished turns from the front and wake the one that is current then.

        A callback may complete its own turn at once: the outermost call goes on with the next, so that a long
        row of such turns does not become a deep stack.
        """
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._turns and self._turns[0].is_done:
                self._turns.popleft()
                following = self.current
                if following is not None and not following.is_done:
                    following.became_current()
        finally:
            self._is_advancing = False
