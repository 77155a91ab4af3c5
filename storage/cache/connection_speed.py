"""How fast one connection to the store is, and whether a GET under way is much slower. Pure; times in seconds.

Bytes are those in the store. Neither knows a clock: callers say when.
"""

from collections import deque

SAMPLE_BYTES_MIN = 1024 * 1024
"""The bodies of smaller GETs are in the socket's buffer when the answer begins: they tell nothing about speed."""

SAMPLE_S_MIN = 0.001

WEIGHT = 0.2
"""Of a new sample: the mean follows the last dozen GETs."""

SLOW_S_MIN = 0.5
"""So long a GET must have been slow."""

SLOW_FRACTION = 0.25
"""Slow: less than this part of a connection's usual speed."""


class ConnectionSpeed:
    """An exponentially weighted mean of what single GETs achieved, from the first byte to the last."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None

    def on_get(self, stored_bytes: float, duration_s: float) -> None:
        """A GET's body took so long."""
        if stored_bytes < SAMPLE_BYTES_MIN or duration_s < SAMPLE_S_MIN:
            return
        sample = stored_bytes / duration_s
        if self.bytes_per_s is None:
            self.bytes_per_s = sample
        else:
            self.bytes_per_s += WEIGHT * (sample - self.bytes_per_s)


class BodyProgress:
    """What one GET delivered lately."""

    def __init__(self, begun_s: float) -> None:
        self._since_s = begun_s
        self._recent: deque[tuple[float, float]] = deque()
        self._recent_bytes = 0.0

    def on_bytes(self, now_s: float, stored_bytes: float) -> None:
        """So much was delivered just now."""
        self._recent.append((now_s, stored_bytes))
        self._recent_bytes += stored_bytes

    def restart(self, now_s: float) -> None:
        """Judge anew from now on."""
        self._recent.clear()
        self._recent_bytes = 0.0
        self._since_s = now_s

    def is_slow(self, now_s: float, usual_bytes_per_s: float | None, next_bytes: float) -> bool:
        """Whether the last SLOW_S_MIN or more were slow.

        Args:
            next_bytes: the size of the block that is being received: it may be there but for its last byte, and a
                block that takes long at any speed must not look like a stall.
        """
        # The window begins with the latest delivery that lies far enough back.
        while self._recent and now_s - self._recent[0][0] >= SLOW_S_MIN:
            self._since_s, delivered_bytes = self._recent.popleft()
            self._recent_bytes -= delivered_bytes
        elapsed_s = now_s - self._since_s
        if usual_bytes_per_s is None or elapsed_s < SLOW_S_MIN:
            return False
        return self._recent_bytes + next_bytes < SLOW_FRACTION * usual_bytes_per_s * elapsed_s
