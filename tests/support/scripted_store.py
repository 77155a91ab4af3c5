"""A RemoteStorageManager whose fetches go wrong as a test says.

    store = ScriptedStore(LocalTieredStorage({"dir": str(tier_dir)}))
    store.fail(RetriableRemoteStorageError("503"), times=2)              # the next two log fetches
    store.flip_bit(segment, position=1000, times=1)                      # in the first fetch that covers that byte
    store.cut_log(segment, 10)                                           # every fetch of that segment, from now on
    with store.held() as gate:                                           # fetches wait, in their threads …
        ...
        gate.wait_for_callers(1)                                         # … until the block ends
    store.break_body(error, after_bytes=100, segment=segment)            # the next body, where it has given 100
    store.fail(RemoteResourceNotFoundError("no manifest"), manifest=True)      # the next opening of a segment

Thread-safe; tests.support.faults says how faults are applied. Opening a segment is matched by `manifest`, index fetches
by `index_type`, log fetches by `segment` and the range of positions; None matches all. A stream is one log fetch,
matched when it is opened; `fetch_log_segment` is another.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any

from storage.model import CustomMetadata, IndexType, LogSegmentData, RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import (
    OpenedSegment,
    RemoteStorageManager,
    SegmentInspection,
    SegmentStream,
    StoredObject,
)
from tests.support.faults import Fault, Faults, Gate, acted, flipping, raising
from tests.support.opened_bytes import StreamOfBytes


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


class ScriptedStore(Faults[FetchCall]):
    """The wrapper."""

    def __init__(self, inner: RemoteStorageManager) -> None:
        super().__init__()
        self.inner = inner

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
        """Return how many fetches of indexes there were, of one type or all."""
        with self._lock:
            found = [call.index_type for call in self.calls if call.index_type is not None]
        return len(found) if index_type is None else found.count(index_type)

    def opens(self, segment: RemoteLogSegmentMetadata | None = None) -> int:
        """Return how often a segment (any) was opened."""
        with self._lock:
            return sum(
                call.manifest and (segment is None or call.segment_id == segment.segment_id.id) for call in self.calls
            )

    # --- what shall happen ---

    def fail_at_random(
        self, source: random.Random, one_in: int, errors: Sequence[Exception], index_errors: Sequence[Exception]
    ) -> None:
        """Raise one of `errors` from one fetch in so many, and of an index one of `index_errors`, from now on."""

        def raise_one(call: FetchCall) -> None:
            raise source.choice(errors if call.index_type is None else index_errors)

        self.add(Fault(lambda _call: source.randrange(one_in) == 0, None, before=raise_one))

    def fail(self, error: Exception, *, times: int | None = 1, **which: Any) -> None:
        """Raise `error` from matching fetches, `times` times (None: for ever). `which`: as of `_matcher`, here too."""
        self.add(Fault(_matcher(**which), times, before=raising(error)))

    def flip_bit(
        self, segment: RemoteLogSegmentMetadata, position: int, *, bit: int = 0, times: int | None = None
    ) -> None:
        """Flip one bit of the byte at `position` of a segment's log, in fetches that cover it."""
        self.add(Fault(_matcher(segment, range(position, position + 1)), times, act=flipping(position, bit)))

    def cut_log(self, segment: RemoteLogSegmentMetadata, size_bytes: int, *, times: int | None = None) -> None:
        """Behave as if the segment's log object had only `size_bytes`."""
        self.add(Fault(_matcher(segment), times, act=lambda start, data: data[: max(0, size_bytes - start)]))

    def replace(self, content: bytes, *, index_type: IndexType, times: int | None = None) -> None:
        """Give other bytes for an index."""
        self.add(Fault(_matcher(index_type=index_type), times, act=lambda _start, _data: content))

    def break_body(self, error: Exception, *, after_bytes: int, segment: RemoteLogSegmentMetadata) -> None:
        """Raise `error` from the read that goes beyond the first `after_bytes` of the segment's next body."""
        self.add(Fault(_matcher(segment), 1, after_bytes=after_bytes, at=raising(error)))

    def stall_body(self, after_bytes: int) -> AbstractContextManager[Gate]:
        """Hold reads that go beyond a body's first `after_bytes` until the gate is released, as `held` does."""
        gate = Gate()
        return self.gated(gate, Fault(_matcher(), None, after_bytes=after_bytes, at=lambda _: gate.hold()))

    def held(self, **which: Any) -> AbstractContextManager[Gate]:
        """Hold matching fetches until the gate is released, at the end of the block at the latest."""
        gate = Gate()
        return self.gated(gate, Fault(_matcher(**which), None, before=lambda _: gate.hold()))

    # --- RemoteStorageManager ---

    @property
    def identity(self) -> str:
        return self.inner.identity

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        self.begin(FetchCall(metadata.segment_id.id, manifest=True))
        return _ScriptedSegment(self, metadata, self.inner.open_log_segment(metadata))

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> CustomMetadata | None:
        return self.inner.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        call = FetchCall(metadata.segment_id.id, start_position, end_position)
        return self.fetch(call, lambda: self.inner.fetch_log_segment(metadata, start_position, end_position))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        call = FetchCall(metadata.segment_id.id, index_type=index_type)
        return self.fetch(call, lambda: self.inner.fetch_index(metadata, index_type))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.inner.delete_log_segment_data(metadata)

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        self.begin(FetchCall(metadata.segment_id.id, manifest=True))
        inspection = self.inner.inspect_segment(metadata)
        if inspection.opened is None:
            return inspection
        return replace(inspection, opened=_ScriptedSegment(self, metadata, inspection.opened))

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        return self.inner.list_objects(topic)

    @property
    def has_manifests(self) -> bool:
        return self.inner.has_manifests

    def clock_offset_ms(self) -> int | None:
        return self.inner.clock_offset_ms()

    def warm_up(self) -> None:
        self.inner.warm_up()

    def ask(self) -> None:
        self.inner.ask()

    def close(self) -> None:
        self.inner.close()

    def fetch(self, call: FetchCall, fetch: Callable[[], bytes]) -> bytes:
        """A whole object or range, by `fetch`."""
        faults = self.begin(call)
        data = acted(faults, call.start_position or 0, fetch())
        _body(faults, call, len(data))
        return data

    def open_stream(
        self, metadata: RemoteLogSegmentMetadata, opened: OpenedSegment, start: int, end: int
    ) -> SegmentStream:
        """One of an opened segment."""
        call = FetchCall(metadata.segment_id.id, start, end - 1)
        faults = self.begin(call)
        stream = opened.open_stream(start, end)
        if any(fault.act is not None for fault in faults):
            with closing(stream):
                data = bytes(stream.read(end - start))
            stream = StreamOfBytes(acted(faults, start, data), metadata, start, end)
        self.count_streams(1)
        return _ScriptedStream(stream, faults, call, lambda: self.count_streams(-1))


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
        return self.store.open_stream(self.metadata, self.inner, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return self.inner.fetches_index(index_type)

    def fetch_index(self, index_type: IndexType) -> bytes:
        call = FetchCall(self.metadata.segment_id.id, index_type=index_type)
        return self.store.fetch(call, lambda: self.inner.fetch_index(index_type))


class _ScriptedStream:
    """A SegmentStream whose body meets the faults."""

    def __init__(
        self, inner: SegmentStream, faults: list[Fault[FetchCall]], call: FetchCall, on_close: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._call = call
        self._on_close: Callable[[], None] | None = on_close
        self._read_bytes = 0

    def read(self, size_bytes: int) -> bytes | bytearray:
        _body(self._faults, self._call, self._read_bytes + size_bytes)
        data = self._inner.read(size_bytes)
        self._read_bytes += size_bytes
        return data

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
        self._inner.close()


def _body(faults: list[Fault[FetchCall]], call: FetchCall, end_bytes: int) -> None:
    """A body is about to be read up to there."""
    for fault in faults:
        if fault.at is not None and end_bytes > fault.after_bytes:
            fault.at(call)


def _matcher(
    segment: RemoteLogSegmentMetadata | None = None,
    positions: range | None = None,
    index_type: IndexType | None = None,
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
