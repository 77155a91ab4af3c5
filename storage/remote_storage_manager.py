"""KIP-405's RemoteStorageManager: where segment objects are. Synchronous and thread-safe, as Kafka's SPI is.

Implementations live in `storage.formats`; `storage.registry` finds one by the class name in the broker's file.
"""

from typing import Protocol

from storage.model import CustomMetadata, IndexType, LogSegmentData, RemoteLogSegmentMetadata


class RemoteStorageManager(Protocol):
    """The objects of remote log segments.

    Every method but copy is handed the metadata *with* the custom metadata that copy returned.
    Errors are `storage.errors`: RemoteResourceNotFoundError for an absent object, RetriableRemoteStorageError
    for trouble that may pass, RemoteAccessDeniedError, CorruptObjectError.
    """

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> CustomMetadata | None:
        """Upload a segment and its indexes. Idempotent: a repeat for the same id overwrites.

        What it returns must come back in the metadata of every later call for this segment.
        """
        ...

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        """The segment's bytes from start_position to end_position, both inclusive; None: to the end.

        An end beyond the object is cut to it; a start at or beyond it gives b"". A negative start, or an end
        before the start, is a caller's bug: ValueError.
        """
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """One whole index. An absent one raises RemoteResourceNotFoundError: the transaction index and the
        producer snapshot are optional, any other is missing."""
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete all objects of the segment. Idempotent: what is absent already is no error."""
        ...

    def close(self) -> None:
        """Release what the manager holds. Calls after it are a caller's bug."""
        ...
