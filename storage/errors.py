"""Errors of the tier, one tree. Each docstring says when it is raised.

What becomes of a read that fails with one is `proxy.fetch.fallback`'s to say; nothing here knows the wire.
"""

from collections.abc import Mapping
from types import MappingProxyType


class TierError(Exception):
    """The tier cannot be looked at. The message says why, and what to do."""


class RemoteStorageError(Exception):
    """Root of every error that `storage` raises.

    `undeleted`: of a delete, the reason for each object that is left, by key.
    """

    undeleted: Mapping[str, str] = MappingProxyType({})


class RemoteResourceNotFoundError(RemoteStorageError):
    """An object, an index or a segment's metadata that should exist does not."""


class IndexLostError(RemoteResourceNotFoundError):
    """The manifest gives an index some bytes, and the object that should hold them does not exist.

    An index that can be rebuilt counts as absent then; a transaction index that is lost is corruption.
    """


class RemoteStoreNotFoundError(RemoteResourceNotFoundError):
    """It is not one object that is absent: the bucket, or the folder in its place, does not exist."""


class RetriableRemoteStorageError(RemoteStorageError):
    """The store or the metadata log failed in a way that a later attempt may not: a timeout, a reset, a 503.

    `retry_after_s`: how long the store asked to be left alone, in seconds; None if it did not say.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ThrottledError(RetriableRemoteStorageError):
    """The store is up and asks for fewer requests: HTTP 429, SlowDown, ThrottlingException and their like."""


class StalledTransferError(RetriableRemoteStorageError):
    """No byte of a GET's answer came for as long as one is waited for; its connection was given up.

    A read fails with it when the second GET, sent at once for what was missing, has stalled as well.
    """


class RemoteAccessDeniedError(RemoteStorageError):
    """The store refused our credentials; the message names the store and the object."""


class DeletionRefusedError(RemoteAccessDeniedError):
    """The store does not let these credentials delete: a right is missing, the object is locked or under a retention
    rule, or the store knows no DELETE. Writing may go on; another attempt soon is refused as well."""


class InvalidRangeError(RemoteStorageError):
    """A GET of a range that begins at or behind the object's end (HTTP 416)."""


class CorruptObjectError(RemoteStorageError):
    """An object's bytes break its format or a checksum; the message names object and position."""


class TruncatedObjectError(CorruptObjectError):
    """An object ends before bytes that it should have. `object_end`: its last byte lies before this position; at most
    the first position that was asked for, where that is all that is known. None: nothing is."""

    def __init__(self, message: str, object_end: int | None = None) -> None:
        super().__init__(message)
        self.object_end = object_end


class MetadataNotReadyError(RemoteStorageError):
    """A metadata lookup before its metadata partition has caught up, or after the manager was closed."""


class MetadataRecordError(RemoteStorageError):
    """A record of the metadata topic that cannot be decoded (docs/kafka-tier.md#metadata-records)."""


class MetadataBatchError(RemoteStorageError):
    """A record batch of the metadata topic cannot be read; the message names offset and reason."""


class CorruptMetadataBatchError(MetadataBatchError):
    """The batch's bytes are wrong: length, magic, CRC or a record's layout. Another fetch may give the right ones."""


class UnsupportedMetadataCompressionError(MetadataBatchError):
    """The batch is right, but compressed in a way that no writer of the metadata topic uses."""


class IllegalMetadataError(RemoteStorageError, ValueError):
    """A caller's metadata breaks KIP-405's rules: a first state other than COPY_SEGMENT_STARTED, a bad range."""


class MetadataLogError(RemoteStorageError):
    """The metadata event log cannot be read or written and retrying will not help; the message says why."""


class MetadataTopicAbsentError(MetadataLogError):
    """There is no metadata topic, or we may not know of it; the message says who makes it."""


class MetadataOffsetOutOfRange(RemoteStorageError):
    """A fetch of the metadata topic asked for an offset below its log's start or beyond its end."""


class IcebergSegmentError(RemoteStorageError):
    """Aiven's plug-in wrote the segment in Iceberg mode: there is no log object, and only a broker can read it."""


class StorageConfigError(RemoteStorageError, ValueError):
    """A configuration value of a storage plug-in is missing or wrong; the message names the key."""
