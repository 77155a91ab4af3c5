"""What the store gives, and what follows from it: how many GETs at once, how large, and when one is late. Pure.

Connections share a link. More of them than fill it make each slower and bring nothing sooner, but what is needed next
comes later: so the number of GETs follows what connections achieve, and no number is right for every link.

Rule 1. GETS_START at first. A GET that ends while all are in use adds a third of one as long as connections are as fast
        as they were at best in the last minute, less when they are slower, and takes one away in parts once they are
        slower than FULL of it: then they share a link that is full, or a processor.
Rule 2. GETs grow with what their stream has read: the first bytes of a stream are waited for, and a long one shall cost
        few GETs. None is so large that it lasts longer than GET_S, or that so many do not fit into the windows.
Rule 3. A GET is late when what comes next of it, its answer or its next bytes, takes LATE times as long as is usual.
        Then a second one asks for what is missing, and the first to bring it goes on. Each GET gets one, so that a
        store that is slow for everybody is asked twice at most, until that is what is usual.

Sizes are bytes in the store, times seconds by the caller's clock.
"""

import math
import sys
from collections import deque

MIB = 1024 * 1024

GETS_START = 16
"""As many threads as those take who read with a store's SDK: a link that one connection does not fill by far is used
from the first second on, and one that fewer fill is crowded for as long as the first GETs last."""

GETS_MIN = 4
"""One that stalls, and one that is about to end, leave two that bring something."""

FULL = 0.75
"""Part of the best speed at which connections fill what they share. With less they crowd it and what is needed next
comes later; with more, those that differ by nature leave it idle."""

BEST_PERIOD_S = 30.0
"""The best is that of this period and the one before it: a link that has become slower for good is full at another
speed."""

SMALL_BYTES = 1 * MIB
"""The bodies of smaller GETs are in the socket's buffer when the answer begins: they tell nothing about speed. Nor is
any GET of read-ahead smaller: the first byte's delay would outweigh the transfer on any link."""

WEIGHT = 0.2
"""Weight of a new sample: means follow the last dozen GETs."""

GET_BYTES = 16 * MIB
"""60 of them make a GB: a larger one would save nothing that shows in a bill."""

GET_BYTES_MIN = 4 * MIB
"""A stream's first: sixteen of them are what two new readers may have under way."""

GET_PART = 24
"""A GET is one part in so many of what its stream has asked for before: of full size after 400 MB. With 12 a GB of what
the memory cache does not hold takes a tenth less processor time, but reads of some hundred MB get 0.02 to 0.06 less of
the link (simulation)."""

GET_S = 0.5
"""For so long the last GETs of a read leave the other connections idle; an answer's delay is a tenth of it."""

LATE = 4
"""Times what is usual: connections differ by half, and answers by twice. What is later still may not come at all."""

LATE_S_MIN = 0.25
"""A second GET costs a thread and a request: not worth it for less. Nearly all of the five seconds that a reader
waits are left to it."""

MINUTE_S = 60
TICK_S = 1e-6  # no clock tells less apart: a body that took less was there at once, and tells of no connection
NEVER = -1


class Pace:
    """Owned by the trio thread.

    Args:
        gets_max: GETs under way at once, at most.
        second_gets_per_minute_min: no second GET for a late answer while fewer GETs were sent in the last minute: a
            store that is hardly used is slow to answer for other reasons. −1: no second GET at all.
    """

    def __init__(self, gets_max: int, second_gets_per_minute_min: int = NEVER) -> None:
        self._gets_max = gets_max
        self.gets = min(GETS_START, gets_max)
        """GETs of read-ahead that fill the link."""
        self._gets = float(self.gets)
        self._usual_first_byte_s: float | None = None
        self.connection_bytes_per_s: float | None = None
        """What one connection usually achieves; None: not known yet."""
        self._best = _Best()
        self.sends_seconds = second_gets_per_minute_min != NEVER
        """Tells whether what is late ever gets a second GET."""
        # When the last GETs were sent: as many as there have to be in a minute.
        self._last_sent_s: deque[float] = deque(maxlen=max(0, second_gets_per_minute_min))

    @property
    def delay_bytes(self) -> int:
        """Return what a connection would have brought in the time that an answer takes to begin: below it, reading on
        costs less than another GET."""
        if self.connection_bytes_per_s is None or self._usual_first_byte_s is None:
            return 0
        return round(self.connection_bytes_per_s * self._usual_first_byte_s)

    def get_bytes(self, asked_bytes: int, windows_bytes: int = sys.maxsize) -> int:
        """Return what the next GET of a stream that has asked for so much is to transfer.

        Args:
            windows_bytes: that all streams together may have under way; all GETs are to fit into it.
        """
        size_bytes = max(GET_BYTES_MIN, min(GET_BYTES, asked_bytes // GET_PART, windows_bytes // self.gets))
        if self.connection_bytes_per_s is None:
            return size_bytes
        return min(size_bytes, max(SMALL_BYTES, round(self.connection_bytes_per_s * GET_S)))

    def on_sent(self, now_s: float) -> None:
        """A GET is sent."""
        self._last_sent_s.append(now_s)

    def on_begun(self, first_byte_s: float) -> None:
        """An answer began so long after its GET was sent; also one that came second."""
        self._usual_first_byte_s = _mean(self._usual_first_byte_s, first_byte_s)

    def on_end(self, now_s: float, stored_bytes: float, body_s: float, *, all_in_use: bool) -> None:
        """A GET's body took so long, from its first byte to its last.

        Args:
            all_in_use: as many GETs as `gets` were under way.
        """
        if stored_bytes < SMALL_BYTES or body_s < TICK_S:
            return
        mean = self.connection_bytes_per_s = _mean(self.connection_bytes_per_s, stored_bytes / body_s)
        step = mean / (FULL * self._best.of(now_s, mean)) - 1
        if all_in_use or step < 0:
            self._gets = min(float(self._gets_max), max(float(GETS_MIN), self._gets + step))
            self.gets = math.floor(self._gets)

    def late_after_s(self, now_s: float, has_begun: bool, next_bytes: float) -> float | None:
        """Return how long after a GET was last heard of (or sent) it is late; None: never.

        Args:
            next_bytes: what is being received: it may be there but for its last byte.
        """
        if not self.sends_seconds:
            return None
        if has_begun:
            speed = self.connection_bytes_per_s
            return None if speed is None else max(LATE_S_MIN, LATE * next_bytes / speed)
        sent_s = self._last_sent_s
        is_used = len(sent_s) == sent_s.maxlen and (not sent_s or sent_s[0] > now_s - MINUTE_S)
        if self._usual_first_byte_s is None or not is_used:
            return None
        return max(LATE_S_MIN, LATE * self._usual_first_byte_s)


class _Best:
    """The largest value of this period and the one before it."""

    def __init__(self) -> None:
        self._since_s = -math.inf
        self._now = self._before = 0.0

    def of(self, now_s: float, value: float) -> float:
        if now_s - self._since_s >= BEST_PERIOD_S:
            # Only this period and the one before it are remembered.
            self._before = self._now if now_s - self._since_s < 2 * BEST_PERIOD_S else 0.0
            self._since_s, self._now = now_s, 0.0
        self._now = max(self._now, value)
        return max(self._now, self._before)


def _mean(mean: float | None, sample: float) -> float:
    return sample if mean is None else mean + WEIGHT * (sample - mean)
