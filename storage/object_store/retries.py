"""Which failures of a GET are tried again, and when (docs/formats.md#missing-objects, docs/protocol.md#l5).

`Attempts` is the one policy of all who ask the store; `call_with_retries` drives it for those who have no trio.

- RetriableRemoteStorageError: ATTEMPTS_MAX in all, with exponential back-off and jitter, and not before the store
  wants to be asked again.
- StalledTransferError: one other GET at once, over another connection and for what is missing; what has been silent
  twice is not waited for a third time, since the waiter can ask the broker by then.
- CorruptObjectError: one fresh GET at once; the bytes may have been hurt on their way.
- RemoteResourceNotFoundError soon after the segment was FINISHED is tried like the first: object stores may lag
  behind the metadata topic. If it is still absent after that, the error says so, as the broker's does.
- Everything else is not tried again.

A library for retries would want to own the loop; here an attempt may succeed in part, which changes what the next
one asks for and gives it its attempts back.
"""

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from storage.backoff import Backoff
from storage.errors import (
    CorruptObjectError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StalledTransferError,
)
from storage.model import RemoteLogSegmentMetadata
from storage.wall_clock import wall_clock_ms

ATTEMPTS_MAX = 3
PATIENT_ATTEMPTS_MAX = 8
"""For an audit: no client waits for it, and what it could not look at is a finding. The waits are 7 s together."""

STALLED_ATTEMPTS_MAX = 2
CORRUPT_ATTEMPTS_MAX = 2

BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 2.0
JITTER = 0.2

RETRY_AFTER_S_MAX = 5.0
"""Longer than a reader waits at all (docs/protocol.md#l3): then it may as well get the error."""

FRESH_MS = 60_000
"""So long after FINISHED an object that is not found may still appear."""

T = TypeVar("T")

Wait = Callable[[float], bool | None]
"""Waits so many seconds, and says whether to give up: `threading.Event.wait` of an event that ends it all."""

wait_in_thread: Wait = threading.Event().wait
"""Waits; nobody ends it early."""


class Attempts:
    """The attempts of one GET.

    Args:
        attempts_max: of trouble that may pass, the first attempt included; 1: nothing is tried again.
    """

    def __init__(self, source: random.Random | None = None, *, attempts_max: int = ATTEMPTS_MAX) -> None:
        self._source = source
        self._attempts_max = attempts_max
        self._backoff: Backoff | None = None
        self._failures = 0
        self._stalled = 0
        self._corrupt = 0

    def on_progress(self) -> None:
        """Something was delivered: the store works, and what comes next has its own attempts."""
        self._failures = self._stalled = self._corrupt = 0
        self._backoff = None

    def delay_after_s(self, error: Exception) -> float | None:
        """Seconds until the next attempt after this one failed; None: there is none."""
        if isinstance(error, CorruptObjectError):
            self._corrupt += 1
            return 0.0 if self._corrupt < min(CORRUPT_ATTEMPTS_MAX, self._attempts_max) else None
        self._failures += 1
        if not isinstance(error, RetriableRemoteStorageError) or self._failures >= self._attempts_max:
            return None
        if isinstance(error, StalledTransferError):
            self._stalled += 1
            return 0.0 if self._stalled < STALLED_ATTEMPTS_MAX else None
        if self._backoff is None:  # a generator of random numbers is dear, and hardly any GET fails
            self._backoff = Backoff(
                first_s=BACKOFF_S_MIN / (1 - JITTER),
                max_s=BACKOFF_S_MAX / (1 + JITTER),
                jitter=JITTER,
                source=self._source or random.Random(),
            )
        return max(self._backoff.next_delay_s(), min(error.retry_after_s or 0.0, RETRY_AFTER_S_MAX))


def call_with_retries(
    call: Callable[[], T],
    segment: RemoteLogSegmentMetadata | None,
    wait: Wait = wait_in_thread,
    *,
    attempts_max: int = ATTEMPTS_MAX,
) -> T:
    """Return what `call` returns in the end. Blocks the calling thread; for jobs, and a data source's executors.

    Args:
        segment: whose object is asked for; None: no segment's.

    Raises:
        RemoteStorageError: the last attempt's.
    """
    attempts = Attempts(attempts_max=attempts_max)
    while True:
        try:
            return call()
        except RemoteStorageError as error:
            treated: Exception = error
            if segment is not None:
                treated = as_retriable_if_fresh(error, segment, wall_clock_ms())
            delay_s = attempts.delay_after_s(treated)
            if delay_s is None or wait(delay_s):
                raise


def as_retriable_if_fresh(error: Exception, segment: RemoteLogSegmentMetadata, now_ms: int) -> Exception:
    """The error as it is to be treated: an object of a fresh segment that is not there may appear yet.

    `now_ms`: the time of day. A segment from the future (clocks differ) is fresh.
    """
    is_fresh = now_ms - segment.event_timestamp_ms < FRESH_MS
    if not is_fresh or not isinstance(error, RemoteResourceNotFoundError):
        return error
    retriable = RetriableRemoteStorageError(f"{error} (finished less than {FRESH_MS // 1000} s ago)")
    retriable.__cause__ = error
    return retriable
