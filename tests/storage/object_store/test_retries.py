"""What is tried again, when, and when no more."""

import dataclasses
import random

import pytest

from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StalledTransferError,
)
from storage.object_store.retries import (
    ATTEMPTS_MAX,
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    CORRUPT_ATTEMPTS_MAX,
    PATIENT_ATTEMPTS_MAX,
    RETRY_AFTER_S_MAX,
    Attempts,
    call_with_retries,
)
from tests.support.for_each import for_each
from tests.support.scripted_gets import ScriptedSegment

SEGMENT = ScriptedSegment().metadata
TROUBLE = RetriableRemoteStorageError("503")
STALLED = StalledTransferError("silence")
CORRUPT = CorruptObjectError("bad tag")
ABSENT = RemoteResourceNotFoundError("404")


@pytest.fixture
def attempts() -> Attempts:
    return Attempts(random.Random(1))


def test_passing_trouble_is_tried_three_times_in_all(attempts: Attempts) -> None:
    delays = [attempts.delay_after_s(TROUBLE) for _ in range(ATTEMPTS_MAX)]
    assert delays[-1] is None
    first, second = delays[:-1]
    assert first is not None
    assert second is not None
    assert BACKOFF_S_MIN <= first <= second <= BACKOFF_S_MAX


def test_progress_gives_the_attempts_back(attempts: Attempts) -> None:
    for _ in range(20):
        assert attempts.delay_after_s(TROUBLE) is not None
        assert attempts.delay_after_s(CORRUPT) == 0
        assert attempts.delay_after_s(STALLED) == 0
        attempts.on_progress()


@for_each("asked_s, waited_s", [(3.0, 3.0), (3600.0, RETRY_AFTER_S_MAX)])
def test_the_store_is_left_alone_as_it_asks_within_a_cap(asked_s: float, waited_s: float) -> None:
    attempts = Attempts(random.Random(1))
    assert attempts.delay_after_s(RetriableRemoteStorageError("503", retry_after_s=asked_s)) == waited_s


@for_each("error", [CORRUPT, STALLED])
def test_bad_bytes_and_silence_get_one_other_get_at_once(error: Exception) -> None:
    attempts = Attempts(random.Random(1))
    assert [attempts.delay_after_s(error) for _ in range(2)] == [0, None]


@for_each("error", [ABSENT, RemoteAccessDeniedError("403"), InvalidRangeError("416"), ValueError("a bug")])
def test_everything_else_fails_at_once(error: Exception) -> None:
    attempts = Attempts(random.Random(1))
    assert attempts.delay_after_s(error) is None


# --- the blocking driver ---


class Script:
    """Fails as told, then succeeds; `waits` are the seconds in between."""

    def __init__(self, *failures: RemoteStorageError) -> None:
        self._failures = list(failures)
        self.calls = 0
        self.waits: list[float] = []

    def call(self) -> str:
        self.calls += 1
        if self._failures:
            raise self._failures.pop(0)
        return "done"

    def wait(self, delay_s: float) -> bool:
        self.waits.append(delay_s)
        return False


def test_trouble_that_may_pass_is_waited_out() -> None:
    script = Script(TROUBLE, RetriableRemoteStorageError("503", retry_after_s=3.0))

    assert call_with_retries(script.call, SEGMENT, script.wait) == "done"
    assert 0 < script.waits[0] < script.waits[1]
    assert script.waits[1] >= 3.0


@for_each("attempts_max", [1, ATTEMPTS_MAX, PATIENT_ATTEMPTS_MAX])
@for_each(
    "error, calls_max",
    [(TROUBLE, 100), (CORRUPT, CORRUPT_ATTEMPTS_MAX), (RemoteAccessDeniedError("no"), 1), (ABSENT, 1)],
)
def test_trouble_that_stays_is_told(error: RemoteStorageError, calls_max: int, attempts_max: int) -> None:
    script = Script(*[error] * 10)

    with pytest.raises(type(error)):
        call_with_retries(script.call, SEGMENT, script.wait, attempts_max=attempts_max)
    assert script.calls == min(calls_max, attempts_max)


def test_an_object_of_a_fresh_segment_may_appear_yet_and_one_of_none_does_not() -> None:
    # From the future, which is fresh too: a time taken at import is old when the test's turn comes.
    fresh = dataclasses.replace(SEGMENT, event_timestamp_ms=2**62)
    assert call_with_retries(Script(ABSENT).call, fresh, Script().wait) == "done"
    with pytest.raises(RemoteResourceNotFoundError):
        call_with_retries(Script(ABSENT).call, None, Script().wait)


def test_who_gives_up_waiting_gets_the_error() -> None:
    script = Script(TROUBLE)

    with pytest.raises(RetriableRemoteStorageError):
        call_with_retries(script.call, SEGMENT, lambda _: True)
    assert script.calls == 1
