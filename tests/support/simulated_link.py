"""A link to an object store: bodies that flow like water (a fluid model). Pure; times in seconds, sizes in bytes.

Rule 1. A GET waits for its first byte; then its body flows, at most `connection_bytes_per_s`, all bodies together at
        most `link_bytes_per_s`. What is scarce is shared evenly, and what one cannot use the others get (max-min).
Rule 2. A body flows as far ahead of what was asked for as the receive buffer reaches, and no further.
Rule 3. A connection that is to be silent, slow or late is so whatever the others do (`Manner`).
Rule 4. With a seed, connections differ as a real store's do: in first byte and in speed, about the profile's own.

What is left out: TCP's slow start, the time of a request on the link, and errors.
"""

import math
import random
from dataclasses import dataclass

BUFFER_BYTES = 256 * 1024
"""What a socket takes before its reader asks for it."""

SILENCE_S_MAX = 3.0
"""A body that brings no byte for so long while it is read is given up by the store's client, as ours does."""

EXACT_BYTES = 1e-3
"""Amounts closer than this are equal: at a TB a second that is a femtosecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """What a link can do."""

    first_byte_s: float
    connection_bytes_per_s: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How one connection misbehaves. `stalls_at_bytes`: of its body; then nothing comes any more."""

    first_byte_s: float | None = None
    rate_factor: float = 1.0
    stalls_at_bytes: float = math.inf


NORMAL = Manner()
STALLED = Manner(stalls_at_bytes=1_500_000)
SLOW = Manner(rate_factor=0.1)
LATE = Manner(first_byte_s=2.0)


class Connection:
    """One GET. `received_bytes` came over the link, `wanted_bytes` are asked for so far, both from the body's start."""

    def __init__(
        self, number: int, sent_s: float, begins_s: float, size_bytes: int, rate_max: float, manner: Manner
    ) -> None:
        self.number = number
        self.sent_s = sent_s
        self.begins_s = begins_s
        self.size_bytes = size_bytes
        self.rate_max = rate_max
        self.received_bytes = 0.0
        self.wanted_bytes = 0
        self.is_closed = False
        self.has_begun = False
        self.is_silent = False
        self._end_bytes = min(size_bytes, manner.stalls_at_bytes)
        self._heard_s = begins_s

    @property
    def is_open(self) -> bool:
        """Return whether it is in flight: sent, and neither closed nor at its end."""
        return not self.is_closed and self.received_bytes < self.size_bytes

    @property
    def has_wanted(self) -> bool:
        """Return whether what was asked for is here."""
        return self.received_bytes >= self.wanted_bytes

    @property
    def limit_bytes(self) -> float:
        """Return how far the body may flow (rule 2)."""
        return min(self._end_bytes, self.wanted_bytes + BUFFER_BYTES)

    @property
    def flows(self) -> bool:
        return self.has_begun and not self.is_closed and self.received_bytes < self.limit_bytes

    def want(self, end_bytes: int, now_s: float) -> None:
        """Ask for the body's bytes up to there."""
        assert end_bytes <= self.size_bytes, (end_bytes, self.size_bytes)
        self.wanted_bytes = max(self.wanted_bytes, end_bytes)
        self._heard_s = max(self._heard_s, now_s)

    def next_event_s(self, now_s: float, rate: float) -> float:
        """When it begins, has what was asked for, has to stop, or is given up."""
        if self.is_closed:
            return math.inf
        if not self.has_begun:
            return self.begins_s
        if self.flows:
            goal = self.limit_bytes if self.has_wanted else min(self.wanted_bytes, self.limit_bytes)
            return now_s + (goal - self.received_bytes) / rate
        return math.inf if self.has_wanted or self.is_silent else self._heard_s + SILENCE_S_MAX

    def flow(self, seconds: float, now_s: float, rate: float) -> None:
        """Let so much time pass at that rate; it is now_s."""
        if rate > 0:
            received = self.received_bytes + rate * seconds
            goals = (self.wanted_bytes, self.limit_bytes)
            exact = (goal for goal in goals if abs(goal - received) < EXACT_BYTES)
            self.received_bytes = min(next(exact, received), self.limit_bytes)
            self._heard_s = now_s
        elif self.has_begun and not self.has_wanted and now_s >= self._heard_s + SILENCE_S_MAX:
            self.is_silent = True
        if now_s >= self.begins_s:
            self.has_begun = True


class SimulatedLink:
    """All connections. An EventSource of tests.support.simulated_time."""

    def __init__(self, profile: LinkProfile, seed: int | None = None) -> None:
        self.profile = profile
        self._random = None if seed is None else random.Random(seed)
        self.now_s = 0.0
        self.sent = 0
        self.open_max = 0
        """The most GETs that were in flight at once."""
        self._open: list[Connection] = []

    def open(self, size_bytes: int, manner: Manner = NORMAL) -> Connection:
        """Send a GET now, for a body of so many bytes."""
        later, faster = self._factors()
        first_byte_s = self.profile.first_byte_s * later if manner.first_byte_s is None else manner.first_byte_s
        rate_max = self.profile.connection_bytes_per_s * faster * manner.rate_factor
        connection = Connection(self.sent, self.now_s, self.now_s + first_byte_s, size_bytes, rate_max, manner)
        self.sent += 1
        self._open = [other for other in self._open if other.is_open]
        self._open.append(connection)
        self.open_max = max(self.open_max, len(self._open))
        return connection

    def _factors(self) -> tuple[float, float]:
        """Return what a connection has of the first byte, with a long tail, and of the speed; 1 in the mean."""
        if self._random is None:
            return 1.0, 1.0
        return 0.5 + self._random.expovariate(2), self._random.uniform(0.75, 1.25)

    def rates(self) -> dict[Connection, float]:
        """Return what flows now, in bytes a second (rule 1)."""
        flowing = sorted((other for other in self._open if other.flows), key=lambda other: other.rate_max)
        left, rates = self.profile.link_bytes_per_s, {}
        for at, connection in enumerate(flowing):
            rates[connection] = min(connection.rate_max, left / (len(flowing) - at))
            left -= rates[connection]
        return rates

    def next_event_s(self) -> float:
        """When something happens to a connection: later than now, if only by the smallest step there is."""
        rates = self.rates()
        events = (connection.next_event_s(self.now_s, rates.get(connection, 0.0)) for connection in self._open)
        return max(math.nextafter(self.now_s, math.inf), min(events, default=math.inf))

    def advance(self, now_s: float) -> None:
        """It is now_s; events on the way happen in their order."""
        while self.now_s < now_s:
            until_s = min(now_s, self.next_event_s())
            seconds, self.now_s = until_s - self.now_s, until_s
            rates = self.rates()
            for connection in self._open:
                connection.flow(seconds, until_s, rates.get(connection, 0.0))
            self._open = [other for other in self._open if other.is_open]
