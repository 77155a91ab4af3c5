"""Which fault of the tier is which Kafka error code (spec/kafka-remote.md §3.5). One table.

What may pass is retriable for clients (9); what will not is what the broker itself answers when its plug-in
fails (−1). OFFSET_OUT_OF_RANGE is not in it: clients jump on it, so only a broker's word leads to it (design L2).
"""

from protocol.errors import ErrorCode
from proxy.upstream.errors import UpstreamError
from storage.errors import (
    CorruptObjectError,
    MetadataNotReadyError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)

KAFKA_STORAGE_ERROR_VERSION_MIN = 6

_ERROR_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (RetriableRemoteStorageError, ErrorCode.REPLICA_NOT_AVAILABLE),
    (MetadataNotReadyError, ErrorCode.REPLICA_NOT_AVAILABLE),
    (UpstreamError, ErrorCode.REPLICA_NOT_AVAILABLE),  # the lineage could not be learned
    (RemoteResourceNotFoundError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (RemoteAccessDeniedError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (CorruptObjectError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (RemoteStorageError, ErrorCode.UNKNOWN_SERVER_ERROR),
)


def error_code_of(fault: Exception) -> ErrorCode:
    """The code that a client gets for a fault; a fault of our own is UNKNOWN_SERVER_ERROR."""
    for kind, code in _ERROR_CODES:
        if isinstance(fault, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def code_for_version(error_code: int, api_version: int) -> int:
    """A broker's error code of a newer Fetch version, as it would have put it in the client's own."""
    if error_code == ErrorCode.KAFKA_STORAGE_ERROR and api_version < KAFKA_STORAGE_ERROR_VERSION_MIN:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error_code
