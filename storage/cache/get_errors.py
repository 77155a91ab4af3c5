"""What a failed GET is counted under. Pure."""

from metrics.cache_probes import GetErrorCause
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)

_CAUSES: tuple[tuple[type[Exception], GetErrorCause], ...] = (
    (RemoteResourceNotFoundError, GetErrorCause.NOT_FOUND),
    (RetriableRemoteStorageError, GetErrorCause.RETRIABLE),
    (RemoteAccessDeniedError, GetErrorCause.ACCESS_DENIED),
    (CorruptObjectError, GetErrorCause.CORRUPT),
)


def cause_of(error: Exception) -> GetErrorCause:
    """The cause by the error's class."""
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), GetErrorCause.OTHER)
