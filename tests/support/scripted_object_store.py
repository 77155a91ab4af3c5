"""An ObjectStore whose calls go wrong as a test says.

    store = ScriptedObjectStore(FileSystemStore(tmp_path))
    store.fail(RetriableRemoteStorageError("503", retry_after_s=2.0), times=2)     # the next two GETs
    store.lose("*.rsm-manifest")                                                   # 404, until healed
    store.flip_bit("*.log", position=1000, times=1)                                # in the first GET that covers it
    store.reset("*.log", after_bytes=100)                                          # each body breaks after 100 bytes
    with store.held("*.log") as gate:                                              # GETs wait before they begin …
        gate.wait_for_callers(1)                                                   # … until the block ends
    with store.stalled("*.log", after_bytes=100) as gate:                          # bodies wait after 100 bytes
        ...

Thread-safe. Faults are applied in the order they were added; each counts down by itself, one for a call that it
matches. Keys are matched by shell patterns, whole ("*" is all). A fault of a call leaves the other calls alone.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from storage.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from storage.object_store.object_store import ObjectHead, ObjectStore, ObjectStream
from tests.support.scripted_store import Gate


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


@dataclass(slots=True, eq=False)
class _Fault:
    """`before` runs before the store is asked, `at` in a body once `after_bytes` of it were given, `alter` on bytes."""

    matches: Callable[[StoreCall], bool]
    times: int | None
    before: Callable[[StoreCall], None] | None = None
    after_bytes: int = 0
    at: Callable[[StoreCall], None] | None = None
    alter: Callable[[int, memoryview], None] | None = None
    size_bytes: int | None = None


@dataclass(slots=True)
class ScriptedObjectStore:
    """The wrapper. `calls` are all calls so far in the order they began, also those that failed."""

    inner: ObjectStore
    calls: list[StoreCall] = field(default_factory=list)
    bytes_read: int = 0
    streams_open: int = 0
    _faults: list[_Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- what happened ---

    def gets(self, pattern: str = "*") -> list[tuple[str, int, int]]:
        """Key, start and end of each GET of matching keys, in the order they began."""
        with self._lock:
            return [
                (call.key, call.start, call.end)
                for call in self.calls
                if call.start is not None and call.end is not None and fnmatchcase(call.key, pattern)
            ]

    def counts(self, pattern: str = "*") -> Counter[Verb]:
        """How many calls of each verb there were for matching keys."""
        with self._lock:
            return Counter(call.verb for call in self.calls if fnmatchcase(call.key, pattern))

    # --- what shall happen ---

    def fail(self, error: Exception, pattern: str = "*", *, verb: Verb = Verb.GET, times: int | None = 1) -> None:
        """Raise `error` from matching calls, `times` times (None: for ever), before the store is asked."""

        def before(_: StoreCall) -> None:
            raise error

        self._add(_Fault(_matcher(verb, pattern), times, before=before))

    def lose(self, pattern: str, *, verbs: Sequence[Verb] = (Verb.GET, Verb.HEAD), times: int | None = None) -> None:
        """Behave as if matching objects did not exist."""

        def before(call: StoreCall) -> None:
            raise RemoteResourceNotFoundError(f"scripted store: {call.key}: no such key")

        for verb in verbs:
            self._add(_Fault(_matcher(verb, pattern), times, before=before))

    def reset(
        self, pattern: str = "*", *, after_bytes: int, error: Exception | None = None, times: int | None = 1
    ) -> None:
        """Let bodies of matching GETs break after so many bytes: reset, cut or timed out, as `error` says."""

        def at(call: StoreCall) -> None:
            message = f"scripted store: {call.key}: the body broke after {after_bytes} bytes"
            raise error if error is not None else RetriableRemoteStorageError(message)

        self._add(_Fault(_matcher(Verb.GET, pattern), times, after_bytes=after_bytes, at=at))

    def truncate(self, pattern: str, *, size_bytes: int, times: int | None = None) -> None:
        """Behave as if matching objects ended there: bodies are shorter, and say so."""
        self._add(_Fault(_matcher(Verb.GET, pattern), times, size_bytes=size_bytes))

    def flip_bit(self, pattern: str, *, position: int, bit: int = 0, times: int | None = None) -> None:
        """Flip one bit of the object's byte at `position`, in GETs that cover it."""

        def alter(start: int, view: memoryview) -> None:
            if start <= position < start + len(view):
                view[position - start] ^= 1 << bit

        self._add(_Fault(_matcher(Verb.GET, pattern, position), times, alter=alter))

    @contextmanager
    def held(self, pattern: str = "*", *, verb: Verb = Verb.GET, times: int | None = None) -> Iterator[Gate]:
        """Hold matching calls before they begin until the gate is released, at the end of the block at the latest."""
        gate = Gate()
        with self._gated(_Fault(_matcher(verb, pattern), times, before=lambda _: gate.hold()), gate):
            yield gate

    @contextmanager
    def stalled(self, pattern: str = "*", *, after_bytes: int, times: int | None = None) -> Iterator[Gate]:
        """Hold bodies of matching GETs after so many bytes until the gate is released; they then go on."""
        gate = Gate()
        fault = _Fault(_matcher(Verb.GET, pattern), times, after_bytes=after_bytes, at=lambda _: gate.hold())
        with self._gated(fault, gate):
            yield gate

    def heal(self) -> None:
        """Forget all faults; bodies that have begun keep theirs."""
        with self._lock:
            self._faults.clear()

    # --- ObjectStore ---

    @property
    def identity(self) -> str:
        return self.inner.identity

    def get(self, key: str, start: int, end: int) -> ObjectStream:
        call = StoreCall(Verb.GET, key, start, end)
        faults = self._begin(call)
        sizes = [fault.size_bytes for fault in faults if fault.size_bytes is not None]
        stream = self.inner.get(key, start, min([end, *(max(size, start + 1) for size in sizes)]))
        with self._lock:
            self.streams_open += 1
        return _ScriptedStream(self, call, stream, faults)

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        self._begin(StoreCall(Verb.PUT, key))
        self.inner.put(key, source)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._begin(StoreCall(Verb.DELETE, key))
        self.inner.delete_many(keys)

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        self._begin(StoreCall(Verb.LIST, prefix))
        return self.inner.list(prefix)

    def head(self, key: str) -> ObjectHead:
        self._begin(StoreCall(Verb.HEAD, key))
        return self.inner.head(key)

    def warm_up(self) -> None:
        self.inner.warm_up()

    def close(self) -> None:
        self.inner.close()

    def on_read(self, size_bytes: int) -> None:
        """A body gave so many bytes."""
        with self._lock:
            self.bytes_read += size_bytes

    def on_close(self) -> None:
        """A body was closed."""
        with self._lock:
            self.streams_open -= 1

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    @contextmanager
    def _gated(self, fault: _Fault, gate: Gate) -> Iterator[None]:
        self._add(fault)
        try:
            yield
        finally:
            gate.release()
            with self._lock:
                if fault in self._faults:
                    self._faults.remove(fault)

    def _begin(self, call: StoreCall) -> Sequence[_Fault]:
        """Record a call, run what comes before it, and give the faults that its body gets."""
        with self._lock:
            self.calls.append(call)
            faults = [fault for fault in self._faults if fault.matches(call)]
            for fault in faults:
                if fault.times is not None:
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
        for fault in faults:
            if fault.before is not None:
                fault.before(call)
        return faults


class _ScriptedStream:
    def __init__(
        self, store: ScriptedObjectStore, call: StoreCall, stream: ObjectStream, faults: Sequence[_Fault]
    ) -> None:
        self._store = store
        self._call = call
        self._stream = stream
        self._start = call.start or 0
        self._given_bytes = 0
        self._alters = [fault.alter for fault in faults if fault.alter is not None]
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
            self._store.on_close()
        self._stream.close()

    def _read(self, buffer: memoryview) -> None:
        if not buffer:
            return
        self._stream.readinto(buffer)
        for alter in self._alters:
            alter(self._start + self._given_bytes, buffer)
        self._given_bytes += len(buffer)
        self._store.on_read(len(buffer))


def _matcher(verb: Verb, pattern: str, position: int | None = None) -> Callable[[StoreCall], bool]:
    def matches(call: StoreCall) -> bool:
        if call.verb is not verb or not fnmatchcase(call.key, pattern):
            return False
        return position is None or (call.start or 0) <= position < (call.end or 0)

    return matches
