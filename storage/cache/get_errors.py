"""What a failed GET is counted under. Pure."""

from metrics.get_probe import GetOutcome
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    ThrottledError,
)

_OUTCOMES: tuple[tuple[type[Exception], GetOutcome], ...] = (
    (RemoteResourceNotFoundError, GetOutcome.NOT_FOUND),
    (ThrottledError, GetOutcome.THROTTLED),
    (RetriableRemoteStorageError, GetOutcome.RETRIABLE),
    (RemoteAccessDeniedError, GetOutcome.DENIED),
    (CorruptObjectError, GetOutcome.CORRUPT),
)


def outcome_of(error: Exception) -> GetOutcome:
    """The outcome by the error's class."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), GetOutcome.ERROR)
