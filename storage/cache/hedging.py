"""When a GET whose answer is late gets a second one beside it (design §8). Pure, but for the clock handed in.

Rule 1. Late: later than 95 in 100 of the last answers.
Rule 2. Never below a configured rate of GETs: a store that is hardly used is slow to answer for other reasons, and a
        p95 of few answers means little.
Rule 3. At most one GET in 20 is hedged, whatever the store does: one that is slow for everybody must not be asked
        twice as much.
"""

import math
import time
from collections import deque
from collections.abc import Callable

SEEN_MAX = 200
SEEN_MIN = 20
"""First-byte times that the p95 is taken from."""

DELAY_S_MIN = 0.005
"""A hedge costs a thread and a request: not worth it for less."""

GETS_PER_HEDGE = 20
HEDGES_SAVED_MAX = 10
"""Hedges that a calm time saves up for a bad one: as many as SEEN_MAX GETs earn."""

MINUTE_S = 60
NEVER = -1


class Hedging:
    """The policy. Not thread-safe.

    Args:
        gets_per_minute_min: off while fewer GETs were sent in the last minute; −1: always off.
    """

    def __init__(self, gets_per_minute_min: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._gets_per_minute_min = gets_per_minute_min
        self._clock = clock
        self._first_byte_s: deque[float] = deque(maxlen=SEEN_MAX)
        self._saved = 0
        # GETs by second, so that a minute costs at most 61 entries at any rate.
        self._gets: deque[list[int]] = deque()
        self._gets_in_minute = 0

    def on_get(self) -> None:
        """A GET that may be hedged is sent."""
        self._saved = min(self._saved + 1, HEDGES_SAVED_MAX * GETS_PER_HEDGE)
        second = math.floor(self._clock())
        self._drop_old(second)
        if self._gets and self._gets[-1][0] == second:
            self._gets[-1][1] += 1
        else:
            self._gets.append([second, 1])
        self._gets_in_minute += 1

    def on_first_byte(self, duration_s: float) -> None:
        """An answer began so long after its GET was sent; also one that had lost to a hedge."""
        self._first_byte_s.append(duration_s)

    def delay_s(self) -> float | None:
        """How long to wait for an answer before the second GET; None: for ever."""
        if self._gets_per_minute_min == NEVER or len(self._first_byte_s) < SEEN_MIN:
            return None
        self._drop_old(math.floor(self._clock()))
        if self._gets_in_minute < self._gets_per_minute_min:
            return None
        ranked = sorted(self._first_byte_s)
        return max(DELAY_S_MIN, ranked[math.ceil(0.95 * len(ranked)) - 1])

    def take(self) -> bool:
        """Whether one more GET may be hedged now; counts it."""
        if self._saved < GETS_PER_HEDGE:
            return False
        self._saved -= GETS_PER_HEDGE
        return True

    def _drop_old(self, second: int) -> None:
        while self._gets and self._gets[0][0] <= second - MINUTE_S:
            self._gets_in_minute -= self._gets.popleft()[1]
