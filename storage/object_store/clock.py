"""How far a store's clock is from this machine's, by the Date headers of answers that come anyway.

A machine that deletes by age has to know whether its own clock is right. What was heard is carried on by the monotonic
clock, so that a clock that is set between two answers is noticed at once. A machine that slept knows better with the
next answer.

Exact to a second and to what an answer took to come: good for a clock that is wrong by minutes.
"""

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

_HALF_A_SECOND_S = 0.5
"""A Date header has whole seconds (RFC 9110 §6.6.1)."""


class StoreClock:
    """Thread-safe. Clocks are passed in, in seconds."""

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead_of_monotonic_s: float | None = None

    def heard(self, date: str | None) -> None:
        """The Date header of an answer that has just come; None, or no date: it says nothing."""
        try:
            date_s = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        self.heard_time(date_s + _HALF_A_SECOND_S)

    def heard_time(self, time_s: float) -> None:
        """An answer that has just come says that it is this time, since the epoch."""
        self._ahead_of_monotonic_s = time_s - self._monotonic()

    def offset_ms(self) -> int | None:
        """Return how far the store's clock is ahead of this machine's at this moment, negative where it is behind; None
        before the first answer."""
        ahead_s = self._ahead_of_monotonic_s
        return None if ahead_s is None else round((ahead_s + self._monotonic() - self._wall()) * 1000)
