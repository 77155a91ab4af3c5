"""Trying a blocking call to the store again, by the policy that the proxy's GETs have (`storage.object_store.retries`).

Blocks the calling thread; for those who have no trio: jobs, and a data source's executors.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from storage.errors import RemoteStorageError
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.retries import Attempts, as_retriable_if_fresh

T = TypeVar("T")


def call_with_retries(call: Callable[[], T], segment: RemoteLogSegmentMetadata, wait: Callable[[float], bool]) -> T:
    """What `call`, which asks for an object of the segment, returns in the end.

    Args:
        wait: waits so many seconds, and says whether to give up: `threading.Event.wait` of an event that ends it all.

    Raises:
        RemoteStorageError: the last attempt's.
    """
    attempts = Attempts()
    while True:
        try:
            return call()
        except RemoteStorageError as error:
            treated = as_retriable_if_fresh(error, segment, time.time_ns() // 1_000_000)
            delay_s = attempts.delay_after_s(treated)
            if delay_s is None or wait(delay_s):
                raise
