"""GETs of whole small objects, manifests and indexes: in a worker thread, counted when they fail, tried again.

What is tried again is `storage.cache.retries`' to say; a segment's log is read by `storage.cache.fills`.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

from metrics.cache_probes import GetProbe
from storage.cache.get_errors import cause_of
from storage.cache.retries import Attempts, as_retriable_if_fresh
from storage.errors import IllegalMetadataError
from storage.model import RemoteLogSegmentMetadata

V = TypeVar("V")


class ObjectGets:
    """Runs GETs. Owned by the trio thread.

    Args:
        limiter: bounds how many run at once; a GET that waits for its next attempt does not count.
        now_ms: the clock that `event_timestamp_ms` of a segment is compared with.
    """

    def __init__(self, limiter: trio.CapacityLimiter, probe: GetProbe, now_ms: Callable[[], int]) -> None:
        self._limiter = limiter
        self._probe = probe
        self._now_ms = now_ms

    async def run(self, segment: RemoteLogSegmentMetadata, get: Callable[[], V]) -> V:
        """What `get` gives, called in a worker thread until it succeeds or is not to be tried again.

        Raises:
            RemoteStorageError: as the last attempt raised it.
        """
        attempts = Attempts()
        while True:
            try:
                return await self.run_once(get)
            except Exception as error:  # whatever it is, `attempts` knows whether to go on
                delay_s = attempts.delay_after_s(as_retriable_if_fresh(error, segment, self._now_ms()))
                if delay_s is None:
                    raise  # as the store said it: what stays away is the broker's error too
            await trio.sleep(delay_s)
            self._probe.on_retry()

    async def run_once(self, get: Callable[[], V]) -> V:
        """The same with one attempt."""
        try:
            return await trio.to_thread.run_sync(get, limiter=self._limiter)
        except IllegalMetadataError:
            raise  # it names no object, so nothing was asked for
        except Exception as error:
            self._probe.on_error(cause_of(error))
            raise
