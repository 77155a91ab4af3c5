"""The seam to an object store: ranged get, put, delete many, list, head. Synchronous and thread-safe.

Keys are whole object keys, as the store has them. Errors are `storage.errors`, made at the edge from what the SDK
raises; a message names the store and the key:

| what the store says | error |
|---|---|
| no such key | RemoteResourceNotFoundError |
| no such bucket | RemoteStoreNotFoundError, which is one of those |
| 401, 403, expired or missing credentials | RemoteAccessDeniedError |
| the same to a DELETE alone, a locked object, a store without DELETE | DeletionRefusedError, which is one of those |
| 416: the range begins behind the object's end | InvalidRangeError |
| 429, and codes that say the same | ThrottledError |
| no byte of an answer for as long as one is waited for | StalledTransferError |
| 408, 500, 502, 503, 504, no connection in time, resets, a body that was cut | RetriableRemoteStorageError |
| a checksum of the store's own does not hold | CorruptObjectError |
| anything else | RemoteStorageError |

A wrong configuration is StorageConfigError, raised by the constructor or, where only the store can tell, by the call.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from storage.buffers import unfilled
from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
)

NEVER_WRITTEN_NAME = "tidegate-asks-whether-the-store-answers"

LIFECYCLE_HINT = (
    "what failed uploads leave is billed until somebody drops it: give the bucket a lifecycle rule with "
    "AbortIncompleteMultipartUpload, or this account s3:AbortMultipartUpload"
)

UNDELETED_NAMED_MAX = 20
"""Objects that a failed delete names in its error's notes; `undeleted` has all."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object without its bytes. `modified_ms`: milliseconds since the epoch."""

    key: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """An upload that was begun and neither finished nor given up.

    `key`: of the object that it would become; None where the store cannot tell. `handle`: what the store calls it.
    """

    key: str | None
    handle: str
    started_ms: int


class ObjectStream(Protocol):
    """The body of one GET, in one thread at a time."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the body has in all."""
        ...

    def readinto(self, buffer: memoryview) -> None:
        """Fill the whole buffer with the next bytes.

        Raises:
            StalledTransferError: no byte came for too long.
            RetriableRemoteStorageError: the body was reset, or ended before its size.
            ValueError: the buffer is larger than what is left of `size_bytes`: a caller's bug.
        """
        ...

    def close(self) -> None:
        """End the GET, also before its end: the connection is given up then. Idempotent."""
        ...


class ObjectStore(Protocol):
    """The five verbs."""

    @property
    def identity(self) -> str:
        """Names kind, endpoint and bucket (or folder): equal for two stores just when a key means the same object."""
        ...

    def warm_up(self) -> None:
        """Load and open what the first verb would otherwise wait for. Asks the store nothing; may take seconds."""
        ...

    def clock_offset_ms(self) -> int | None:
        """Return how far the store's clock is ahead of this machine's, by its last answer to anything but a GET of
        bytes that are there; None: it has not answered yet, or it has no clock of its own. Asks the store nothing."""
        ...

    def get(self, key: str, start: int, end: int) -> ObjectStream:
        """Begin a GET of bytes [start, end); blocks until the store's answer begins. end > start.

        The body is shorter when the object ends first.
        """
        ...

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        """Create or replace an object. An iterable is uploaded in parts as it comes, never held whole, or at once if it
        is a LocalFile and small enough for that; when it raises, no object is left and no upload is left open, and its
        error is raised on."""
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects; what is absent already is no error.

        Raises:
            RemoteStorageError: some were not deleted; `undeleted` has each with its reason. The others are gone.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        """All objects whose key begins with `prefix`, in ascending order of key (UTF-8), page by page."""
        ...

    def head(self, key: str) -> ObjectHead:
        """One object's size and age."""
        ...

    def close(self) -> None:
        """Release what the store holds. What another thread still waits for of it fails at once, if it comes over a
        network."""
        ...


@runtime_checkable
class KeepsUploads(Protocol):
    """A store that keeps unfinished uploads until somebody drops them. Others drop them by themselves within a week:
    Google's resumable uploads and Azure's uncommitted blocks, neither of which can be listed."""

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """All unfinished uploads of keys that begin with `prefix`, page by page, in no order that matters."""
        ...

    def abort_upload(self, upload: PendingUpload) -> None:
        """Drop one and what it holds; one that is gone already is no error."""
        ...


@runtime_checkable
class BeginsUploads(KeepsUploads, Protocol):
    """One whose uploads in parts are a thing of their own, with a verb to begin one."""

    def begin_upload(self, key: str) -> PendingUpload:
        """Begin an upload of this object; nothing of it is seen."""
        ...


def raise_undeleted(failures: Mapping[str, RemoteStorageError], count: int) -> None:
    """Raise for `delete_many` of so many keys if objects are left, an error of the first one's kind."""
    if not failures:
        return
    first, *others = dict.fromkeys(failures.values())
    error = type(first)(f"{len(failures)} of {count} objects were not deleted, the first: {first}")
    if isinstance(error, RetriableRemoteStorageError) and isinstance(first, RetriableRemoteStorageError):
        error.retry_after_s = first.retry_after_s
    error.undeleted = {key: str(failure) for key, failure in failures.items()}
    for other in others[: UNDELETED_NAMED_MAX - 1]:
        error.add_note(f"not deleted either: {other}")
    raise error from first


def delete_present(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete those of the objects that are there. Who writes under a new id finds none: so a store that does not let us
    delete can be written to."""
    present = []
    for key in keys:
        with suppress(RemoteResourceNotFoundError):
            present.append(store.head(key).key)
    if present:
        store.delete_many(present)


def ask_store(store: ObjectStore, prefix: str) -> None:
    """RemoteStorageManager.ask over a store: GET an object that is not there. A store says that it is absent only to
    callers whose credentials are good, who may read below the prefix and who named the right bucket; and unlike a
    listing it costs what a GET costs."""
    try:
        store.get(f"{prefix}{NEVER_WRITTEN_NAME}", 0, 1).close()
    except RemoteStoreNotFoundError:
        raise
    except (RemoteResourceNotFoundError, InvalidRangeError):
        return


def read_whole(body: ObjectStream, name: str, bytes_max: int) -> bytearray:
    """All of a body, which is closed then. `name`: the object's, for the message.

    Raises:
        CorruptObjectError: it is larger than `bytes_max`; found before any byte is read.
    """
    try:
        if body.size_bytes > bytes_max:
            raise CorruptObjectError(f"{name}: more than {bytes_max} bytes")
        data = unfilled(body.size_bytes)
        with memoryview(data) as view:
            body.readinto(view)
        return data
    finally:
        body.close()


class PlainStream:
    """A SegmentStream of what needs no decoding: the body of one GET."""

    def __init__(self, body: ObjectStream) -> None:
        self._body = body
        self._left_bytes = body.size_bytes

    def read(self, size_bytes: int) -> bytearray:
        """As SegmentStream.read."""
        check_read(size_bytes, self._left_bytes)
        data = unfilled(size_bytes)
        with memoryview(data) as view:
            self._body.readinto(view)
        self._left_bytes -= size_bytes
        return data

    def close(self) -> None:
        """End the GET."""
        self._body.close()


def check_read(size_bytes: int, left_bytes: int) -> None:
    """Refuse a read beyond the end of a stream, a caller's bug, with ValueError."""
    if not 0 <= size_bytes <= left_bytes:
        raise ValueError(f"{size_bytes} bytes of a stream with {left_bytes} left")
