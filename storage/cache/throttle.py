"""How many GETs may be in flight once the store has asked for fewer: one limit for all of them (AIMD).

Rule 1. Before the first complaint there is no limit here: slots and threads bound the GETs.
Rule 2. A throttled GET (`storage.errors.ThrottledError`) halves the limit, from what is in flight. One that was sent
        before the last halving says nothing new: so the limit is halved at most once for each round trip.
Rule 3. A GET that succeeds adds 1/limit, so that a round of them adds one, as TCP does (RFC 5681 §3.1). At `gets_max`
        the limit is gone.
Rule 4. A Retry-After in any answer of the store holds all GETs back until it has passed.

Each GET waits on its own besides, before it is tried again (`retries`): that keeps one GET from repeating itself, and
this keeps all of them together from being too many.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from metrics.get_meter import GetMeter
from storage.errors import ThrottledError
from storage.object_store.retries import RETRY_AFTER_S_MAX


class Throttle:
    """The limit. Owned by the trio thread.

    Args:
        gets_max: what the limit grows back to.
    """

    def __init__(self, gets_max: int, meter: GetMeter) -> None:
        self._most = gets_max
        self._meter = meter
        self._in_flight = trio.CapacityLimiter(math.inf)
        self._halved_s = -math.inf
        self._not_before_s = -math.inf
        self._set(math.inf)

    @property
    def is_on(self) -> bool:
        """Return whether the store has complained, and has not yet been found well again."""
        return self._limit < math.inf

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Send one GET in this block, and let its error out. Waits until it may be sent; first come, first served.

        Cancellation: it is not in flight.
        """
        async with self._in_flight:
            while self._not_before_s > trio.current_time():  # noqa: ASYNC110  # it may have moved on meanwhile
                await trio.sleep_until(self._not_before_s)
            sent_s = trio.current_time()
            try:
                yield
            except ThrottledError as error:
                self._on_throttled(sent_s, error.retry_after_s or 0.0)
                raise
            if self.is_on and sent_s > self._halved_s:
                self._set(self._limit + 1 / self._limit)

    def _on_throttled(self, sent_s: float, retry_after_s: float) -> None:
        now_s = trio.current_time()
        self._not_before_s = max(self._not_before_s, now_s + min(retry_after_s, RETRY_AFTER_S_MAX))
        if sent_s > self._halved_s:
            self._halved_s = now_s
            self._set(max(1.0, min(self._limit, self._in_flight.borrowed_tokens) // 2))

    def _set(self, limit: float) -> None:
        self._limit = limit if limit < self._most else math.inf
        self.gets_max = math.floor(min(limit, self._most))
        """GETs that may be in flight."""
        self._in_flight.total_tokens = self.gets_max if self.is_on else math.inf
        self._meter.on_limit(self.gets_max)
