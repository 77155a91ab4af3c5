"""A RemoteStorageManager whose fetches go wrong as a test says.

    store = ScriptedStore(LocalTieredStorage({"dir": str(tier_dir)}))
    store.fail(RetriableRemoteStorageError("503"), times=2)              # the next two log fetches
    store.flip_bit(segment, position=1000, times=1)                      # in the first fetch that covers that byte
    store.truncate(size_bytes=10, segment=segment)                       # every fetch of that segment, from now on
    with store.held() as gate:                                           # fetches wait, in their threads …
        ...
        gate.wait_for_callers(1)                                         # … until the block ends
    store.break_body(RetriableRemoteStorageError("reset"), after_bytes=100)    # the next body, where it has given 100
    store.fail(RemoteResourceNotFoundError("no manifest"), manifest=True)      # the next opening of a segment

Thread-safe. Faults are applied in the order they were added; each counts down by itself. Opening a segment is
matched by `manifest`, index fetches by `index_type`, log fetches by `segment` and the range of positions; None matches
all. A stream is one log fetch, matched when it is opened; `fetch_log_segment` is another.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from storage.model import CustomMetadata, IndexType, LogSegmentData, RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import (
    OpenedSegment,
    RemoteStorageManager,
    SegmentInspection,
    SegmentStream,
    StoredObject,
)
from tests.support.opened_bytes import StreamOfBytes

HOLD_S_MAX = 30.0
"""A held fetch gives up after this long: a failing test must not leave threads behind."""


@dataclass(frozen=True, slots=True)
class FetchCall:
    """One fetch; positions are None for an index, `index_type` is None for the log. `end_position` is inclusive.

    `manifest`: the opening of a segment, whether or not its format has a manifest.
    """

    segment_id: Uuid
    start_position: int | None = None
    end_position: int | None = None
    index_type: IndexType | None = None
    manifest: bool = False


class Gate:
    """Holds fetches until `release`."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._arrived = threading.Semaphore(0)

    def wait_for_callers(self, count: int) -> None:
        """Block until `count` more fetches are held."""
        for _ in range(count):
            if not self._arrived.acquire(timeout=HOLD_S_MAX):
                raise TimeoutError("no fetch came")

    def release(self) -> None:
        self._opened.set()

    def hold(self) -> None:
        self._arrived.release()
        if not self._opened.wait(HOLD_S_MAX):
            raise TimeoutError("the gate was never released")


@dataclass(slots=True, eq=False)
class _Fault:
    """`act` gets what the store gave and gives what the caller sees; `before` runs before the store is asked;
    `body` before the body's first so many bytes are handed over."""

    matches: Callable[[FetchCall], bool]
    times: int | None
    act: Callable[[FetchCall, bytes], bytes] | None = None
    before: Callable[[], None] | None = None
    body: Callable[[int], None] | None = None


@dataclass(slots=True)
class ScriptedStore:
    """The wrapper. `calls` are all fetches so far in the order they began, also those that failed."""

    inner: RemoteStorageManager
    calls: list[FetchCall] = field(default_factory=list)
    _faults: list[_Fault] = field(default_factory=list)
    _streams_open: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- what happened ---

    def log_fetches(self, segment: RemoteLogSegmentMetadata | None = None) -> list[tuple[int, int | None]]:
        """Ranges fetched of a segment's log (of all), both ends inclusive."""
        with self._lock:
            return [
                (call.start_position, call.end_position)
                for call in self.calls
                if call.start_position is not None and (segment is None or call.segment_id == segment.segment_id.id)
            ]

    def index_fetches(self, index_type: IndexType | None = None) -> int:
        """How many fetches of indexes there were, of one type or all."""
        with self._lock:
            found = [call.index_type for call in self.calls if call.index_type is not None]
        return len(found) if index_type is None else found.count(index_type)

    def opens(self, segment: RemoteLogSegmentMetadata | None = None) -> int:
        """How often a segment (any) was opened."""
        with self._lock:
            return sum(
                call.manifest and (segment is None or call.segment_id == segment.segment_id.id) for call in self.calls
            )

    def streams_open(self) -> int:
        """How many streams are not closed yet."""
        with self._lock:
            return self._streams_open

    # --- what shall happen ---

    def fail_at_random(
        self, source: random.Random, one_in: int, errors: Sequence[Exception], index_errors: Sequence[Exception]
    ) -> None:
        """Raise one of `errors` from one fetch in so many, and of an index one of `index_errors`, from now on."""

        def add(is_index: bool, choices: Sequence[Exception]) -> None:
            def matches(call: FetchCall) -> bool:
                return (call.index_type is not None) == is_index and source.randrange(one_in) == 0

            def before() -> None:
                raise source.choice(choices)

            self._faults.append(_Fault(matches, None, before=before))

        with self._lock:
            add(False, errors)
            add(True, index_errors)

    def fail(
        self,
        error: Exception,
        *,
        segment: RemoteLogSegmentMetadata | None = None,
        positions: range | None = None,
        index_type: IndexType | None = None,
        manifest: bool = False,
        times: int | None = 1,
    ) -> None:
        """Raise `error` from matching fetches, `times` times (None: for ever)."""

        def before() -> None:
            raise error

        self._add(_Fault(_matcher(segment, positions, index_type, manifest), times, before=before))

    def flip_bit(
        self, segment: RemoteLogSegmentMetadata, position: int, *, bit: int = 0, times: int | None = None
    ) -> None:
        """Flip one bit of the byte at `position` of a segment's log, in fetches that cover it."""

        def act(call: FetchCall, data: bytes) -> bytes:
            at = position - (call.start_position or 0)
            return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] if at < len(data) else data

        self._add(_Fault(_matcher(segment, range(position, position + 1), None), times, act=act))

    def truncate(
        self,
        size_bytes: int,
        *,
        segment: RemoteLogSegmentMetadata | None = None,
        index_type: IndexType | None = None,
        times: int | None = None,
    ) -> None:
        """Give the first `size_bytes` of what a fetch should give."""
        self._add(_Fault(_matcher(segment, None, index_type), times, act=lambda _, data: data[:size_bytes]))

    def cut_log(self, segment: RemoteLogSegmentMetadata, size_bytes: int, *, times: int | None = None) -> None:
        """Behave as if the segment's log object had only `size_bytes`."""

        def act(call: FetchCall, data: bytes) -> bytes:
            return data[: max(0, size_bytes - (call.start_position or 0))]

        self._add(_Fault(_matcher(segment, None, None), times, act=act))

    def replace(
        self,
        content: bytes,
        *,
        index_type: IndexType,
        segment: RemoteLogSegmentMetadata | None = None,
        times: int | None = None,
    ) -> None:
        """Give other bytes for an index."""
        self._add(_Fault(_matcher(segment, None, index_type), times, act=lambda _call, _data: content))

    def delay(self, seconds: float, *, segment: RemoteLogSegmentMetadata | None = None) -> None:
        """Let every matching fetch of the log take at least this long, in its thread; real time."""
        never = threading.Event()

        def before() -> None:
            never.wait(seconds)

        self._add(_Fault(_matcher(segment, None, None), None, before=before))

    def break_body(
        self,
        error: Exception,
        *,
        after_bytes: int,
        segment: RemoteLogSegmentMetadata | None = None,
        positions: range | None = None,
        times: int | None = 1,
    ) -> None:
        """Raise `error` from the read that goes beyond a body's first `after_bytes`."""

        def body(end_bytes: int) -> None:
            if end_bytes > after_bytes:
                raise error

        self._add(_Fault(_matcher(segment, positions, None), times, body=body))

    @contextmanager
    def stall_body(
        self,
        after_bytes: int,
        *,
        segment: RemoteLogSegmentMetadata | None = None,
        positions: range | None = None,
        times: int | None = None,
    ) -> Iterator[Gate]:
        """Hold reads that go beyond a body's first `after_bytes` until the gate is released, as `held` does."""
        gate = Gate()

        def body(end_bytes: int) -> None:
            if end_bytes > after_bytes:
                gate.hold()

        with self._while_held(gate, _Fault(_matcher(segment, positions, None), times, body=body)):
            yield gate

    @contextmanager
    def held(
        self,
        *,
        segment: RemoteLogSegmentMetadata | None = None,
        positions: range | None = None,
        index_type: IndexType | None = None,
        manifest: bool = False,
        times: int | None = None,
    ) -> Iterator[Gate]:
        """Hold matching fetches until the gate is released, at the end of the block at the latest."""
        gate = Gate()
        fault = _Fault(_matcher(segment, positions, index_type, manifest), times, before=gate.hold)
        with self._while_held(gate, fault):
            yield gate

    def heal(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._faults.clear()

    # --- RemoteStorageManager ---

    @property
    def identity(self) -> str:
        return self.inner.identity

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        faults = self._begin(FetchCall(metadata.segment_id.id, manifest=True))
        _before(faults)
        return _ScriptedSegment(self, metadata, self.inner.open_log_segment(metadata))

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> CustomMetadata | None:
        return self.inner.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        call = FetchCall(metadata.segment_id.id, start_position, end_position)
        return self._fetch(call, lambda: self.inner.fetch_log_segment(metadata, start_position, end_position))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        call = FetchCall(metadata.segment_id.id, index_type=index_type)
        return self._fetch(call, lambda: self.inner.fetch_index(metadata, index_type))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.inner.delete_log_segment_data(metadata)

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        _before(self._begin(FetchCall(metadata.segment_id.id, manifest=True)))
        inspection = self.inner.inspect_segment(metadata)
        if inspection.opened is None:
            return inspection
        return replace(inspection, opened=_ScriptedSegment(self, metadata, inspection.opened))

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        return self.inner.list_objects(topic)

    @property
    def has_manifests(self) -> bool:
        return self.inner.has_manifests

    def warm_up(self) -> None:
        self.inner.warm_up()

    def ask(self) -> None:
        self.inner.ask()

    def close(self) -> None:
        self.inner.close()

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    @contextmanager
    def _while_held(self, gate: Gate, fault: _Fault) -> Iterator[None]:
        self._add(fault)
        try:
            yield
        finally:
            gate.release()
            with self._lock:
                if fault in self._faults:
                    self._faults.remove(fault)

    def _begin(self, call: FetchCall) -> list[_Fault]:
        """Record the call; the faults that it meets, each counted down."""
        with self._lock:
            self.calls.append(call)
            faults = [fault for fault in self._faults if fault.matches(call)]
            for fault in faults:
                if fault.times is not None:
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
        return faults

    def _fetch(self, call: FetchCall, fetch: Callable[[], bytes]) -> bytes:
        faults = self._begin(call)
        _before(faults)
        data = _acted(faults, call, fetch())
        for fault in faults:
            if fault.body is not None:
                fault.body(len(data))
        return data

    def _open_stream(
        self, metadata: RemoteLogSegmentMetadata, opened: OpenedSegment, start: int, end: int
    ) -> SegmentStream:
        call = FetchCall(metadata.segment_id.id, start, end - 1)
        faults = self._begin(call)
        _before(faults)
        stream = opened.open_stream(start, end)
        if any(fault.act is not None for fault in faults):
            with closing(stream):
                data = bytes(stream.read(end - start))
            stream = StreamOfBytes(_acted(faults, call, data), metadata, start, end)
        self._count_streams(1)
        return _ScriptedStream(stream, faults, lambda: self._count_streams(-1))

    def _count_streams(self, change: int) -> None:
        with self._lock:
            self._streams_open += change


@dataclass(frozen=True, slots=True)
class _ScriptedSegment:
    """An OpenedSegment whose fetches go through the store's script."""

    store: ScriptedStore
    metadata: RemoteLogSegmentMetadata
    inner: OpenedSegment

    @property
    def chunk_bytes(self) -> int:
        return self.inner.chunk_bytes

    @property
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return self.inner.stored_bytes(start_position, end_position)

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        return self.store._open_stream(self.metadata, self.inner, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return self.inner.fetches_index(index_type)

    def fetch_index(self, index_type: IndexType) -> bytes:
        call = FetchCall(self.metadata.segment_id.id, index_type=index_type)
        return self.store._fetch(call, lambda: self.inner.fetch_index(index_type))


class _ScriptedStream:
    """A SegmentStream whose body meets the faults."""

    def __init__(self, inner: SegmentStream, faults: list[_Fault], on_close: Callable[[], None]) -> None:
        self._inner = inner
        self._faults = faults
        self._on_close: Callable[[], None] | None = on_close
        self._read_bytes = 0

    def read(self, size_bytes: int) -> bytes | bytearray:
        for fault in self._faults:
            if fault.body is not None:
                fault.body(self._read_bytes + size_bytes)
        data = self._inner.read(size_bytes)
        self._read_bytes += size_bytes
        return data

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
        self._inner.close()


def _before(faults: list[_Fault]) -> None:
    for fault in faults:
        if fault.before is not None:
            fault.before()


def _acted(faults: list[_Fault], call: FetchCall, data: bytes) -> bytes:
    for fault in faults:
        if fault.act is not None:
            data = fault.act(call, data)
    return data


def _matcher(
    segment: RemoteLogSegmentMetadata | None,
    positions: range | None,
    index_type: IndexType | None,
    manifest: bool = False,
) -> Callable[[FetchCall], bool]:
    def matches(call: FetchCall) -> bool:
        if call.index_type is not index_type or call.manifest is not manifest:
            return False
        if segment is not None and call.segment_id != segment.segment_id.id:
            return False
        if positions is None or call.start_position is None:
            return True
        return call.start_position < positions.stop and (
            call.end_position is None or positions.start <= call.end_position
        )

    return matches
