"""KIP-405's RemoteStorageManager: where segment objects are. Synchronous and thread-safe, as Kafka's SPI is.

Implementations live in `storage.formats`; `storage.config.registry` finds one by the class name in the broker's file.

A reader that comes back for more opens a segment once (`open_log_segment`: a manifest, where the format has one) and
keeps what it got; `fetch_log_segment` and `fetch_index` are KIP-405's own calls, each complete by itself.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from storage.model import CustomMetadata, IndexType, LogSegmentData, RemoteLogSegmentId, RemoteLogSegmentMetadata


class SegmentStream(Protocol):
    """One GET of a segment's log under way, in one thread at a time. Its answer has begun: the store has the object."""

    def read(self, size_bytes: int) -> bytes | bytearray:
        """The next size_bytes of plaintext: a buffer of that very size that nobody else holds or changes.

        Raises:
            CorruptObjectError: the object is shorter than its metadata says, or its bytes break the format.
            RetriableRemoteStorageError: the body stalled, was cut or reset.
        """
        ...

    def close(self) -> None:
        """End the GET, also before its end. Idempotent."""
        ...


class OpenedSegment(Protocol):
    """A segment whose layout is known. Thread-safe; holds no connection; may be kept and dropped at will."""

    @property
    def chunk_bytes(self) -> int:
        """Plaintext bytes of the format's chunks, the unit that can be decoded by itself; 1 if there are none."""
        ...

    @property
    def memory_bytes(self) -> int:
        """About what it costs to keep this object."""
        ...

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        """Bytes in the store of the chunks that hold plaintext [start, end): what a GET of it transfers."""
        ...

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        """Begin one GET of plaintext [start, end), end exclusive and at most the segment's size; blocks until the
        store's answer begins. What whole chunks hold beyond that range is decoded and dropped.

        Raises:
            RemoteStorageError: as the store answers.
        """
        ...

    def fetches_index(self, index_type: IndexType) -> bool:
        """Return whether `fetch_index` asks the store; False: the manifest says that the index is absent or empty."""
        ...

    def fetch_index(self, index_type: IndexType) -> bytes:
        """One whole index, as RemoteStorageManager.fetch_index.

        Raises:
            IndexLostError: a manifest says that there are bytes of it, and the store does not have them.
        """
        ...


class ObjectContent(enum.Enum):
    """What an object of a segment is for."""

    LOG = "log"
    INDEXES = "indexes"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """An object that a segment has or should have. Sizes are bytes in the store.

    `name`: for messages. `size_bytes` is None when there is no such object, `expected_bytes` when nothing says how
    large it has to be. `index_types`: what lies in it, of INDEXES only.
    """

    name: str
    content: ObjectContent
    size_bytes: int | None
    expected_bytes: int | None = None
    is_required: bool = True
    index_types: tuple[IndexType, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentInspection:
    """What a segment has in the store, looked at without reading its log.

    `manifest_problem`: one sentence when the manifest breaks its format or is not this segment's; None otherwise, and
    of a format without manifests. `opened` reads the segment; None when the manifest is absent or has a problem.
    `manifest`: what it says, for people: names of plain values, no secret among them; empty when there is none.
    """

    objects: tuple[SegmentObject, ...]
    opened: OpenedSegment | None
    manifest_problem: str | None = None
    manifest: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that is in the store. `name`: for messages. `modified_ms`: since the epoch.

    `segment_id`: whose it is by its key; None when its key is none that the format would have written.
    """

    name: str
    size_bytes: int
    modified_ms: int
    segment_id: RemoteLogSegmentId | None


class SegmentOpener(Protocol):
    """What is needed of a manager to read segments."""

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        """As RemoteStorageManager.open_log_segment."""
        ...


class RemoteStorageManager(Protocol):
    """The objects of remote log segments.

    Every method but copy is handed the metadata *with* the custom metadata that copy returned.
    Errors are `storage.errors`: RemoteResourceNotFoundError for an absent object, RetriableRemoteStorageError
    for trouble that may pass, RemoteAccessDeniedError, CorruptObjectError.
    """

    @property
    def identity(self) -> str:
        """Names format, store and prefix: equal for two managers just when an id means the same bytes to both."""
        ...

    @property
    def has_manifests(self) -> bool:
        """Return whether `open_log_segment` costs a GET."""
        ...

    def clock_offset_ms(self) -> int | None:
        """Return how far the store's clock is ahead of this machine's, negative where it is behind, by the store's last
        answer to anything but a GET of bytes that are there. None: it has not answered yet, or it has no clock of its
        own, as a folder has none. Exact to seconds. Asks the store nothing; `ask` does, and its answer counts."""
        ...

    def warm_up(self) -> None:
        """Load and open what the first GET would otherwise wait for. Asks the store nothing; may take seconds.

        Raises:
            StorageConfigError: the configuration turns out wrong only now.
        """
        ...

    def ask(self) -> None:
        """One cheap question that is answered only where reading would be: by that endpoint, for those credentials,
        in that bucket or folder. Returns when the store has answered, also if it holds nothing yet.

        Raises:
            RemoteStoreNotFoundError: there is no such bucket or folder.
            RemoteStorageError: as the store answers.
        """
        ...

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> CustomMetadata | None:
        """Upload a segment and its indexes. Idempotent: a repeat for the same id overwrites.

        What it returns must come back in the metadata of every later call for this segment.
        """
        ...

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        """Return what reads the segment. A format with a manifest fetches it here; others may find out later that there
        is no object.

        Raises:
            RemoteResourceNotFoundError: there is no manifest.
            CorruptObjectError: it breaks its format, or is not this segment's.
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

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        """Which objects the segment has and should have. An absent or broken object is a part of the answer, no error.

        Raises:
            RetriableRemoteStorageError, RemoteAccessDeniedError: as the store answers.
            RemoteStorageError: this configuration cannot read the segment, a key pair is missing for instance.
        """
        ...

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        """Everything in the store where this manager keeps segments, page by page, in no order that matters.

        Args:
            topic: only objects of topics of that name, whatever their ids; then none without a segment id.

        Raises:
            RemoteStorageError: while iterating, as the store answers; RemoteStoreNotFoundError if the bucket, or the
                folder in its place, does not exist. One that holds nothing is no error.
        """
        ...

    def close(self) -> None:
        """Release what the manager holds. Calls under way fail at once if they wait for a network; calls after it are
        a caller's bug. Idempotent."""
        ...
