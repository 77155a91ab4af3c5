"""Every error of a GET has a cause that it is counted under."""

import pytest

from metrics.cache_probes import GetErrorCause
from storage.cache.get_errors import cause_of
from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RemoteResourceNotFoundError("404"), GetErrorCause.NOT_FOUND),
        (RetriableRemoteStorageError("503"), GetErrorCause.RETRIABLE),
        (RemoteAccessDeniedError("403"), GetErrorCause.ACCESS_DENIED),
        (CorruptObjectError("bytes"), GetErrorCause.CORRUPT),
        (InvalidRangeError("416"), GetErrorCause.OTHER),
        (ZeroDivisionError(), GetErrorCause.OTHER),
    ],
)
def test_the_cause_is_the_errors_class(error: Exception, cause: GetErrorCause) -> None:
    assert cause_of(error) is cause
