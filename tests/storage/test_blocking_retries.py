"""call_with_retries: the proxy's policy, waiting in place."""

import dataclasses

import pytest

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from storage.object_store.blocking_retries import call_with_retries
from storage.object_store.retries import ATTEMPTS_MAX, CORRUPT_ATTEMPTS_MAX
from tests.support.segments import filled_segment, metadata_of, topic_partition

SEGMENT = metadata_of(topic_partition(), filled_segment())
FRESH = dataclasses.replace(SEGMENT, event_timestamp_ms=2**62)
"""From the future, which is fresh too: a time taken at import is old when the test's turn comes."""


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
    script = Script(RetriableRemoteStorageError("503"), RetriableRemoteStorageError("503", retry_after_s=3.0))

    assert call_with_retries(script.call, SEGMENT, script.wait) == "done"
    assert 0 < script.waits[0] < script.waits[1]
    assert script.waits[1] >= 3.0


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (RetriableRemoteStorageError("503"), ATTEMPTS_MAX),
        (CorruptObjectError("cut"), CORRUPT_ATTEMPTS_MAX),
        (RemoteAccessDeniedError("no"), 1),
        (RemoteResourceNotFoundError("gone"), 1),
    ],
)
def test_trouble_that_stays_is_told(error: RemoteStorageError, calls: int) -> None:
    script = Script(*[error] * 10)

    with pytest.raises(type(error)):
        call_with_retries(script.call, SEGMENT, script.wait)
    assert script.calls == calls


def test_an_object_of_a_fresh_segment_may_appear_yet() -> None:
    script = Script(RemoteResourceNotFoundError("not yet"))

    assert call_with_retries(script.call, FRESH, script.wait) == "done"


def test_who_gives_up_waiting_gets_the_error() -> None:
    script = Script(RetriableRemoteStorageError("503"))

    with pytest.raises(RetriableRemoteStorageError):
        call_with_retries(script.call, SEGMENT, lambda _: True)
    assert script.calls == 1
