"""An ObjectStore whose calls go wrong as a test says.

    store = ScriptedObjectStore(FileSystemStore(tmp_path))
    store.fail(RetriableRemoteStorageError("503", retry_after_s=2.0), times=2)     # the next two GETs
    store.lose("*.rsm-manifest")                                                   # 404, until healed
    store.flip_bit("*.log", position=1000, times=1)                                # in the first GET that covers it
    store.reset("*.log", after_bytes=100)                                          # each body breaks after 100 bytes
    with store.held("*.log") as gate:                                              # GETs wait before they begin …
        gate.wait_for_callers(1)                                                   # … until the block ends

Thread-safe; tests.support.faults says how faults are applied. Keys are matched by shell patterns, whole ("*" is all). A
fault of a call leaves the other calls alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from storage.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from storage.object_store.object_store import ObjectHead, ObjectStore, ObjectStream
from tests.support.faults import Fault, Faults, Gate, acted, flipping, raising


class Verb(StrEnum):
    GET = "get"
    PUT = "put"
    DELETE = "delete"
    LIST = "list"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call, of a delete one for each key; `key` of a list is its prefix; the range [start, end) is a GET's."""

    verb: Verb
    key: str
    start: int | None = None
    end: int | None = None


class ScriptedObjectStore(Faults[StoreCall]):
    """The wrapper."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__()
        self.inner = inner

    # --- what happened ---

    def gets(self, pattern: str = "*") -> list[tuple[str, int, int]]:
        """Key, start and end of each GET of matching keys, in the order they began."""
        with self._lock:
            return [
                (call.key, call.start, call.end)
                for call in self.calls
                if call.start is not None and call.end is not None and fnmatchcase(call.key, pattern)
            ]

    # --- what shall happen ---

    def fail(self, error: Exception, pattern: str = "*", *, verb: Verb = Verb.GET, times: int | None = 1) -> None:
        """Raise `error` from matching calls, `times` times (None: for ever), before the store is asked."""
        self.add(Fault(_matcher(verb, pattern), times, before=raising(error)))

    def lose(self, pattern: str) -> None:
        """Behave as if matching objects did not exist, until healed."""
        for verb in (Verb.GET, Verb.HEAD):
            self.fail(
                RemoteResourceNotFoundError(f"scripted store: {pattern}: no such key"), pattern, verb=verb, times=None
            )

    def reset(
        self, pattern: str = "*", *, after_bytes: int, error: Exception | None = None, times: int | None = 1
    ) -> None:
        """Let bodies of matching GETs break after so many bytes: reset, cut or timed out, as `error` says."""

        def at(call: StoreCall) -> None:
            message = f"scripted store: {call.key}: the body broke after {after_bytes} bytes"
            raise error if error is not None else RetriableRemoteStorageError(message)

        self.add(Fault(_matcher(Verb.GET, pattern), times, after_bytes=after_bytes, at=at))

    def flip_bit(self, pattern: str, *, position: int, bit: int = 0, times: int | None = None) -> None:
        """Flip one bit of the object's byte at `position`, in GETs that cover it."""
        self.add(Fault(_matcher(Verb.GET, pattern, position), times, act=flipping(position, bit)))

    def held(
        self, pattern: str = "*", *, verb: Verb = Verb.GET, times: int | None = None
    ) -> AbstractContextManager[Gate]:
        """Hold matching calls before they begin until the gate is released, at the end of the block at the latest."""
        gate = Gate()
        return self.gated(gate, Fault(_matcher(verb, pattern), times, before=lambda _: gate.hold()))

    # --- ObjectStore ---

    @property
    def identity(self) -> str:
        return self.inner.identity

    def get(self, key: str, start: int, end: int) -> ObjectStream:
        call = StoreCall(Verb.GET, key, start, end)
        faults = self.begin(call)
        stream = self.inner.get(key, start, end)
        self.count_streams(1)
        return _ScriptedStream(self, call, stream, faults)

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        self.begin(StoreCall(Verb.PUT, key))
        self.inner.put(key, source)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.begin(StoreCall(Verb.DELETE, key))
        self.inner.delete_many(keys)

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        self.begin(StoreCall(Verb.LIST, prefix))
        return self.inner.list(prefix)

    def head(self, key: str) -> ObjectHead:
        self.begin(StoreCall(Verb.HEAD, key))
        return self.inner.head(key)

    def clock_offset_ms(self) -> int | None:
        return self.inner.clock_offset_ms()

    def warm_up(self) -> None:
        self.inner.warm_up()

    def close(self) -> None:
        self.inner.close()


class _ScriptedStream:
    def __init__(
        self, store: ScriptedObjectStore, call: StoreCall, stream: ObjectStream, faults: list[Fault[StoreCall]]
    ) -> None:
        self._store = store
        self._call = call
        self._stream = stream
        self._start = call.start or 0
        self._given_bytes = 0
        self._acting = [fault for fault in faults if fault.act is not None]
        self._stops = sorted((fault for fault in faults if fault.at is not None), key=lambda fault: fault.after_bytes)
        self._closed = False

    @property
    def size_bytes(self) -> int:
        return self._stream.size_bytes

    def readinto(self, buffer: memoryview) -> None:
        if len(buffer) > self.size_bytes - self._given_bytes:
            self._stream.readinto(buffer)  # the inner stream knows how to refuse it
        while self._stops and self._stops[0].after_bytes < self._given_bytes + len(buffer):
            stop = self._stops.pop(0)
            piece_bytes = max(0, stop.after_bytes - self._given_bytes)
            self._read(buffer[:piece_bytes])
            buffer = buffer[piece_bytes:]
            if stop.at is not None:
                stop.at(self._call)
        self._read(buffer)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._store.count_streams(-1)
        self._stream.close()

    def _read(self, buffer: memoryview) -> None:
        if not buffer:
            return
        self._stream.readinto(buffer)
        if self._acting:
            buffer[:] = acted(self._acting, self._start + self._given_bytes, bytes(buffer))
        self._given_bytes += len(buffer)


def _matcher(verb: Verb, pattern: str, position: int | None = None) -> Callable[[StoreCall], bool]:
    def matches(call: StoreCall) -> bool:
        if call.verb is not verb or not fnmatchcase(call.key, pattern):
            return False
        return position is None or (call.start or 0) <= position < (call.end or 0)

    return matches
