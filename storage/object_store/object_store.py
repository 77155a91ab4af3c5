"""The seam to an object store: ranged get, put, delete many, list, head. Synchronous and thread-safe.

Keys are whole object keys, as the store has them. Errors are `storage.errors`, made at the edge from what the SDK
raises; a message names the store and the key:

| what the store says | error |
|---|---|
| no such key | RemoteResourceNotFoundError |
| no such bucket | RemoteStoreNotFoundError, which is one of those |
| 401, 403, expired or missing credentials | RemoteAccessDeniedError |
| 416: the range begins behind the object's end | InvalidRangeError |
| 429, 503, and codes that say the same | ThrottledError |
| no byte of an answer for as long as one is waited for | StalledTransferError |
| 408, 500, 502, 504, no connection in time, resets, a body that was cut | RetriableRemoteStorageError |
| a checksum of the store's own does not hold | CorruptObjectError |
| anything else | RemoteStorageError |

A wrong configuration is StorageConfigError, raised by the constructor or, where only the store can tell, by the call.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage.errors import InvalidRangeError, RemoteResourceNotFoundError, RemoteStoreNotFoundError

NEVER_WRITTEN_NAME = "tidegate-asks-whether-the-store-answers"


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object without its bytes. `modified_ms`: milliseconds since the epoch."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStream(Protocol):
    """The body of one GET, in one thread at a time."""

    @property
    def size_bytes(self) -> int:
        """How many bytes the body has in all."""
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
            RemoteStorageError: some were not deleted; the message names the first and how many. The others are gone.
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


def ask_store(store: ObjectStore, prefix: str) -> None:
    """RemoteStorageManager.ask over a store: GET an object that is not there. That it is absent is told only to
    those whose credentials are good, who may read below the prefix and who named the right bucket; and unlike a
    listing it costs what a GET costs."""
    try:
        store.get(f"{prefix}{NEVER_WRITTEN_NAME}", 0, 1).close()
    except RemoteStoreNotFoundError:
        raise
    except (RemoteResourceNotFoundError, InvalidRangeError):
        return
