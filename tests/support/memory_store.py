"""An ObjectStore in a dictionary: what tests take that need no store's own ways, and many of them.

store = MemoryStore()
store.refused.add("a/b")        # a delete of it is refused
store.offset_ms = 3_600_000     # its clock is an hour ahead of ours
mortal = MortalStore(store, 3, Killed())        # its third step is its last
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from storage.errors import DeletionRefusedError, InvalidRangeError, RemoteResourceNotFoundError
from storage.object_store.object_store import ObjectHead, ObjectStore, ObjectStream, raise_undeleted


class MemoryStore:
    """The five verbs; in one thread."""

    identity = "memory"

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.refused: set[str] = set()
        self.offset_ms: int | None = None
        self._put_ms: dict[str, int] = {}

    def get(self, key: str, start: int, end: int) -> ObjectStream:
        content = self._found(key)
        if not 0 <= start < end:
            raise ValueError(f"[{start}, {end}) is not a range")
        if start >= len(content):
            raise InvalidRangeError(f"{key}: {start} is behind the end")
        return _Stream(content[start:end])

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        self._put_ms[key] = time.time_ns() // 1_000_000
        self.objects[key] = source if isinstance(source, bytes) else b"".join(source)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self.refused:
                self.objects.pop(key, None)
        raise_undeleted({key: DeletionRefusedError(f"{key}: no") for key in keys if key in self.refused}, len(keys))

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        for key in sorted(self.objects, key=str.encode):
            if key.startswith(prefix):
                yield self.head(key)

    def head(self, key: str) -> ObjectHead:
        return ObjectHead(key, len(self._found(key)), self._put_ms.get(key, 1_700_000_000_000))

    def clock_offset_ms(self) -> int | None:
        return self.offset_ms

    def warm_up(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing is held."""

    def _found(self, key: str) -> bytes:
        if key not in self.objects:
            raise RemoteResourceNotFoundError(f"{key}: not there")
        return self.objects[key]


class NullStore(MemoryStore):
    """Takes everything and keeps nothing."""

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        for _ in (source,) if isinstance(source, bytes) else source:
            pass


class Killed(BaseException):
    """The process is gone: nothing after it has an effect."""


class MortalStore:
    """Passes calls on until the `deadline`-th step: a call begins, a piece of a source is taken, or a call has ended.

    `error`: what that step raises. Killed: every step after it raises too, also those that would clean up.
    """

    def __init__(self, inner: ObjectStore, deadline: int, error: BaseException) -> None:
        self.restart(inner, deadline)
        self._error = error

    def restart(self, inner: ObjectStore, deadline: int) -> None:
        """Begin again with this, for all that hold it: to open a storage manager with key pairs takes its time."""
        self.inner = inner
        self.steps = 0
        self._deadline = deadline

    @property
    def identity(self) -> str:
        return self.inner.identity

    def get(self, key: str, start: int, end: int) -> ObjectStream:
        self._step()
        return self.inner.get(key, start, end)

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        self._step()
        self.inner.put(key, self._pieces(source))
        self._step()

    def delete_many(self, keys: Sequence[str]) -> None:
        self._step()
        for key in keys:
            self.inner.delete_many([key])
            self._step()

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        self._step()
        return self.inner.list(prefix)

    def head(self, key: str) -> ObjectHead:
        self._step()
        return self.inner.head(key)

    def clock_offset_ms(self) -> int | None:
        return self.inner.clock_offset_ms()

    def warm_up(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing is held."""

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._deadline or (self.steps > self._deadline and isinstance(self._error, Killed)):
            raise self._error

    def _pieces(self, source: bytes | Iterable[bytes]) -> Iterator[bytes]:
        for piece in (source,) if isinstance(source, bytes) else source:
            self._step()
            yield piece
        self._step()


class _Stream:
    def __init__(self, content: bytes) -> None:
        self.size_bytes = len(content)
        self._left = content

    def readinto(self, buffer: memoryview) -> None:
        if len(buffer) > len(self._left):
            raise ValueError(f"{len(buffer)} bytes of a body with {len(self._left)} left")
        buffer[:] = self._left[: len(buffer)]
        self._left = self._left[len(buffer) :]

    def close(self) -> None:
        """Nothing is held."""
