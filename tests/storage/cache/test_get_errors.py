"""Every error of a GET has a cause that it is counted under."""

import pytest

from metrics.cache_meters import GetOutcome
from storage.cache.gets import outcome_of
from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RemoteResourceNotFoundError("404"), GetOutcome.NOT_FOUND),
        (RetriableRemoteStorageError("500"), GetOutcome.RETRIABLE),
        (ThrottledError("503"), GetOutcome.THROTTLED),
        (StalledTransferError("silence"), GetOutcome.RETRIABLE),
        (RemoteAccessDeniedError("403"), GetOutcome.DENIED),
        (CorruptObjectError("bytes"), GetOutcome.CORRUPT),
        (InvalidRangeError("416"), GetOutcome.ERROR),
        (ZeroDivisionError(), GetOutcome.ERROR),
    ],
)
def test_the_cause_is_the_errors_class(error: Exception, cause: GetOutcome) -> None:
    assert outcome_of(error) is cause
