"""GETs of whole small objects: manifests and indexes. Those of a segment's log are `storage.cache.gets`'."""

import time
from collections.abc import Callable
from typing import TypeVar

import trio

from metrics.get_meter import GetMeter, GetObject, GetOutcome
from storage.cache.gets import outcome_of
from storage.cache.throttle import Throttle
from storage.errors import IllegalMetadataError
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.retries import Attempts, as_retriable_if_fresh
from storage.wall_clock import wall_clock_ms

V = TypeVar("V")


class ObjectGets:
    """GETs of whole small objects: in a worker thread, counted when they end, tried again. Owned by the trio thread.

    What is tried again is `storage.object_store.retries`' to say; a segment's log is read by `storage.cache.gets`.

    Args:
        limiter: bounds how many run at once; a GET that waits for its next attempt does not count.
        throttle: shared with all other GETs of the store.
        now_ms: the clock that `event_timestamp_ms` of a segment is compared with.
    """

    def __init__(
        self,
        limiter: trio.CapacityLimiter,
        meter: GetMeter,
        throttle: Throttle,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.meter = meter
        self._limiter = limiter
        self._throttle = throttle
        self._now_ms = now_ms

    async def run(self, segment: RemoteLogSegmentMetadata, kind: GetObject | None, get: Callable[[], V]) -> V:
        """Return what `get` gives, called in a worker thread until it succeeds or is not to be tried again.

        Args:
            kind: what an attempt is counted as; None: it is no GET, or counts itself.

        Raises:
            RemoteStorageError: as the last attempt raised it.
        """
        attempts = Attempts()
        while True:
            try:
                return await self.run_once(kind, get)
            except Exception as error:  # whatever it is, `attempts` knows whether to go on
                delay_s = attempts.delay_after_s(as_retriable_if_fresh(error, segment, self._now_ms()))
                if delay_s is None:
                    raise  # as the store said it: what stays away is the broker's error too
            await trio.sleep(delay_s)
            self.meter.on_retry()

    async def run_once(self, kind: GetObject | None, get: Callable[[], V]) -> V:
        """The same with one attempt."""
        async with self._throttle.admitted():
            return await trio.to_thread.run_sync(self._counted, kind, get, limiter=self._limiter)

    def _counted(self, kind: GetObject | None, get: Callable[[], V]) -> V:
        """In the worker thread: waiting for one is no part of a GET's duration."""
        if kind is None:
            return get()
        sent_s = time.monotonic()
        try:
            value = get()
        except IllegalMetadataError:
            raise  # it names no object, so nothing was asked for
        except Exception as error:
            self.meter.on_end(kind, outcome_of(error), time.monotonic() - sent_s)
            raise
        self.meter.on_end(kind, GetOutcome.OK, time.monotonic() - sent_s)
        return value
