"""Idle share of a pool of slots: 1 - busy/total, weighted by time, over the last minute.

The pool tells every change; in between the share is constant. So the busy share is integrated at each change, a
checkpoint of the integral is kept about once a second, and the mean is the integral's difference over the window.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
"""A minute, as the broker's AvgIdlePercent meters."""

CHECKPOINT_INTERVAL_S = 1.0
"""At most some 60 checkpoints are kept, however often the pool changes."""


class IdleAverage:
    """The time-weighted mean of one pool's idle share, 0 to 1. Thread-safe.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._busy_share = 0.0
        self._integral = 0.0
        self._changed_at = clock()
        self._checkpoints: deque[tuple[float, float]] = deque([(self._changed_at, 0.0)])

    def on_slots(self, busy: int, total: int) -> None:
        """From now on `busy` of `total` slots are taken; a pool without slots counts as idle."""
        with self._lock:
            self._advance()
            self._busy_share = busy / total if total > 0 else 0.0

    def idle_share(self) -> float:
        """The mean over the last minute, or over all time while that is shorter."""
        with self._lock:
            now = self._advance()
            started_at, integral = self._checkpoints[0]
            elapsed_s = now - started_at
            if elapsed_s <= 0:
                return 1.0 - self._busy_share
            return 1.0 - (self._integral - integral) / elapsed_s

    def _advance(self) -> float:
        now = self._clock()
        self._integral += self._busy_share * (now - self._changed_at)
        self._changed_at = now
        if now - self._checkpoints[-1][0] >= CHECKPOINT_INTERVAL_S:
            self._checkpoints.append((now, self._integral))
        # The oldest kept one is the last that is a whole window old, so that the window is always covered.
        while len(self._checkpoints) > 1 and now - self._checkpoints[1][0] >= WINDOW_S:
            self._checkpoints.popleft()
        return now
