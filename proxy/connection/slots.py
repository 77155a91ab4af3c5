"""Who may have one of `proxy.connections.max` slots, and who goes when they run out: the policy, without I/O.

Rule 1. A connection begins as one that has not signed in. Such ones have half of the slots at most (rounded up): the
        other half is kept for clients that have signed in, which may have all of them. Who has signed in is known from
        outside; where brokers demand no SASL it is everybody whose TLS handshake is done.
Rule 2. A newcomer that finds its half, or all slots, taken gets the slot of the oldest connection that has not signed
        in. This is the only time limit for signing in: an honest client needs milliseconds, and a client that floods us
        with connections closes its own ones first. Where there is none, the newcomer is refused.
Rule 3. But a broker that hangs must not keep out clients of the others. A connection is *stuck* when a request has
        been unanswered for STUCK_S, with no byte of an answer meanwhile. When slots run out (and only then: a
        JoinGroup or a long poll may wait for minutes), and stuck ones hold more than half of all slots, a newcomer
        gets the slot of one of them: at the broker with most of them, the one that has waited longest. Half, because
        that many connections waiting so long at once are no rebalance; below it, the slots are full of clients that
        are served.
Rule 4. A client that has ended its side, and whose request is unanswered, is given GRACE_S from then on and from each
        part of an answer: one that still reads gets its last answer, and one that has gone keeps no slot.
Rule 5. A connection without an unanswered request on which nothing happens for `idle_s_max` is closed. One with an
        unanswered request is never idle.
Rule 6. An address over its own limits (`proxy.connection.address_limits`) is refused before anybody loses a slot to it.

Rules 3 to 5 go by a look at each connection every LOOK_S (`look_round`): requests that pass cost nothing more.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from metrics.meters import CloseCause, RefusalReason
from proxy.connection.address_limits import AddressLimits
from proxy.connection.spells import Spells

LOOK_S = 1.0

STUCK_S = 30.0
"""Java's and Kafka's own `request.timeout.ms`: most clients have given up by then."""

GRACE_S = 5.0

LOOKS_IN_A_ROW_MAX = 500
"""Then other tasks are let run: each look takes a microsecond, or three where the socket is asked."""

if TYPE_CHECKING:
    from proxy.connection.connection import ClientConnection

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """`rate_max_per_address` is in connections a second; None: no limit."""

    connections_max: int
    idle_s_max: float = 3600.0
    connections_max_per_address: int | None = None
    rate_max_per_address: int | None = None


class Slot:
    """One connection's place.

    `occupant` is set when the connection has reached its broker; before that it has time limits of its own. `broker`
    is what tells one broker from another.
    """

    __slots__ = (
        "active_at_s",
        "address",
        "answered",
        "asked",
        "broker",
        "close",
        "has_left",
        "left_at_s",
        "occupant",
        "waits_since_s",
    )

    def __init__(self, address: str, close: Callable[[CloseCause], None], has_left: Callable[[], bool]) -> None:
        self.address = address
        self.close = close
        self.has_left = has_left
        self.occupant: ClientConnection | None = None
        self.broker: Hashable = None
        self.asked = self.answered = -1
        self.active_at_s = 0.0
        self.waits_since_s: float | None = None
        self.left_at_s: float | None = None


class Slots:
    """All slots. `limits` may be replaced at any time.

    Args:
        now_s: a clock that does not go back.
    """

    def __init__(self, limits: SlotLimits, now_s: Callable[[], float], spells: Spells) -> None:
        self.limits = limits
        self._now_s = now_s
        self._spells = spells
        self.addresses = AddressLimits(now_s)
        self._slots: dict[Slot, None] = {}
        self.unsigned: dict[Slot, None] = {}
        """Those that have not signed in, oldest first."""
        self._stuck: list[Slot] = []
        """Who goes by rule 3, by the last look round; the last one goes first."""

    @property
    def taken(self) -> int:
        return len(self._slots)

    def take(
        self, address: str, close: Callable[[CloseCause], None], has_left: Callable[[], bool]
    ) -> Slot | RefusalReason:
        """A slot for a newcomer, or why it gets none. Another connection may have been closed for it.

        Args:
            address: the client's, without a port.
            close: ends the connection at once; its slot is free from then on.
            has_left: whether the client has ended its side of the connection.
        """
        limits = self.limits
        refusal = self.addresses.refusal(
            address, connections_max=limits.connections_max_per_address, rate_max=limits.rate_max_per_address
        )
        if refusal is not None:
            return refusal
        if self.taken < limits.connections_max and len(self.unsigned) < _unsigned_max(limits):
            self._spells.end(RefusalReason.FULL)
        elif self.taken > limits.connections_max or not self._make_room():
            return RefusalReason.FULL
        slot = Slot(address, close, has_left)
        self._slots[slot] = self.unsigned[slot] = None
        self.addresses.entered(address)
        return slot

    def on_signed_in(self, slot: Slot) -> None:
        """Its client has signed in."""
        self.unsigned.pop(slot, None)

    def release(self, slot: Slot) -> None:
        """The connection has ended. Idempotent: one that was closed for a newcomer has been released already."""
        if slot in self._slots:
            del self._slots[slot]
            self.unsigned.pop(slot, None)
            self.addresses.left(slot.address)

    def look_round(self) -> Iterator[None]:
        """Look at every connection, and close those that rules 4 and 5 say; yields where others may be let run."""
        stuck: list[Slot] = []
        for number, slot in enumerate(tuple(self._slots), 1):
            if slot in self._slots and self._is_stuck(slot):
                stuck.append(slot)
            if number % LOOKS_IN_A_ROW_MAX == 0:
                yield
        excess = len(stuck) - self.limits.connections_max // 2
        at_broker = Counter(slot.broker for slot in stuck)
        # Oldest waits first; sorted is stable, so that order holds among brokers' own.
        stuck.sort(key=lambda slot: slot.waits_since_s or 0)
        stuck.sort(key=lambda slot: -at_broker[slot.broker])
        self._stuck = stuck[: max(0, excess)][::-1]

    def _make_room(self) -> bool:
        oldest = next(iter(self.unsigned), None)
        if oldest is not None:
            if self._spells.begins(CloseCause.NOT_SIGNED_IN):
                _log.warning(
                    "slots_taken_from_not_signed_in",
                    connections=self.taken,
                    address=oldest.address,
                    key="proxy.connections.max",
                )
            self._close(oldest, CloseCause.NOT_SIGNED_IN)
            return True
        while self._stuck:
            slot = self._stuck.pop()
            if slot in self._slots and _still_waits(slot):
                if self._spells.begins(CloseCause.BROKER_HUNG):
                    _log.warning(
                        "slots_taken_from_hung_broker",
                        connections=self.taken,
                        broker=str(slot.broker),
                        key="proxy.connections.max",
                    )
                self._close(slot, CloseCause.BROKER_HUNG)
                return True
        return False

    def _close(self, slot: Slot, cause: CloseCause) -> None:
        self.release(slot)
        slot.close(cause)

    def _is_stuck(self, slot: Slot) -> bool:
        """Look at one connection, and close it if it is to go."""
        occupant, now_s = slot.occupant, self._now_s()
        if occupant is None:
            return False
        asked, answered = occupant.asked, occupant.answered
        moved, was_answered = (asked, answered) != (slot.asked, slot.answered), answered != slot.answered
        slot.asked, slot.answered = asked, answered
        if not occupant.has_unanswered:
            slot.waits_since_s = None
            if moved:
                slot.active_at_s = now_s
            elif now_s - slot.active_at_s >= self.limits.idle_s_max:
                self._close(slot, CloseCause.IDLE)
            return False
        slot.active_at_s = now_s
        if slot.waits_since_s is None or was_answered:
            slot.waits_since_s = now_s
            return False
        if slot.left_at_s is None and slot.has_left():
            slot.left_at_s = now_s
        if (
            slot.left_at_s is not None
            and now_s - max(slot.left_at_s, slot.waits_since_s) >= GRACE_S
            and not occupant.is_answering
        ):
            self._close(slot, CloseCause.CLIENT)
            return False
        return now_s - slot.waits_since_s >= STUCK_S


def _unsigned_max(limits: SlotLimits) -> int:
    return limits.connections_max - limits.connections_max // 2


def _still_waits(slot: Slot) -> bool:
    occupant = slot.occupant
    return occupant is not None and occupant.has_unanswered and occupant.answered == slot.answered
