"""What is tried again, when, and when no more."""

import random

import pytest

from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
)
from storage.object_store.retries import (
    ATTEMPTS_MAX,
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    FRESH_MS,
    RETRY_AFTER_S_MAX,
    Attempts,
    as_retriable_if_fresh,
)
from tests.support.scripted_gets import FINISHED_MS, ScriptedSegment

SEGMENT = ScriptedSegment().metadata
TROUBLE = RetriableRemoteStorageError("503")
STALLED = StalledTransferError("silence")
CORRUPT = CorruptObjectError("bad tag")


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


@pytest.mark.parametrize(("asked_s", "waited_s"), [(3.0, 3.0), (3600.0, RETRY_AFTER_S_MAX)])
def test_the_store_is_left_alone_as_long_as_it_asks_within_a_cap(
    attempts: Attempts, asked_s: float, waited_s: float
) -> None:
    assert attempts.delay_after_s(RetriableRemoteStorageError("503", retry_after_s=asked_s)) == waited_s


def test_retry_after_does_not_shorten_the_back_off(attempts: Attempts) -> None:
    delay_s = attempts.delay_after_s(RetriableRemoteStorageError("503", retry_after_s=0.0))
    assert delay_s is not None
    assert delay_s >= BACKOFF_S_MIN


def test_bad_bytes_get_one_fresh_get_at_once(attempts: Attempts) -> None:
    assert [attempts.delay_after_s(CORRUPT) for _ in range(2)] == [0, None]


def test_silence_gets_one_other_get_at_once(attempts: Attempts) -> None:
    assert [attempts.delay_after_s(STALLED) for _ in range(2)] == [0, None]


def test_silence_is_one_of_the_attempts_in_all(attempts: Attempts) -> None:
    assert attempts.delay_after_s(STALLED) == 0
    assert attempts.delay_after_s(TROUBLE) is not None
    assert attempts.delay_after_s(TROUBLE) is None


def test_bad_bytes_after_trouble_still_get_their_fresh_get(attempts: Attempts) -> None:
    assert attempts.delay_after_s(TROUBLE) is not None
    assert attempts.delay_after_s(CORRUPT) == 0


@pytest.mark.parametrize(
    "error",
    [
        RemoteResourceNotFoundError("404"),
        RemoteAccessDeniedError("403"),
        InvalidRangeError("416"),
        ValueError("a bug"),
    ],
)
def test_everything_else_fails_at_once(attempts: Attempts, error: Exception) -> None:
    assert attempts.delay_after_s(error) is None


@pytest.mark.parametrize("age_ms", [-5000, 0, FRESH_MS - 1])
def test_an_object_of_a_fresh_segment_may_yet_appear(age_ms: int) -> None:
    absent = RemoteResourceNotFoundError("no key orders/0.log")
    error = as_retriable_if_fresh(absent, SEGMENT, FINISHED_MS + age_ms)
    assert isinstance(error, RetriableRemoteStorageError)
    assert "no key orders/0.log" in str(error)
    assert error.__cause__ is absent


def test_an_object_of_an_old_segment_is_gone() -> None:
    absent = RemoteResourceNotFoundError("404")
    assert as_retriable_if_fresh(absent, SEGMENT, FINISHED_MS + FRESH_MS) is absent


def test_other_errors_of_a_fresh_segment_stay_as_they_are() -> None:
    assert as_retriable_if_fresh(CORRUPT, SEGMENT, FINISHED_MS) is CORRUPT
