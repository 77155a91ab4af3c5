"""An object store in virtual time: segments of any size, made as they are read, behind a simulated link.

    topic = SimulatedTopic(partitions=2, partition_bytes=2 * GIB, segment_bytes=64 * MIB)
    link = SimulatedLink(LinkProfile(first_byte_s=0.03, connection_bytes_per_s=60e6, link_bytes_per_s=400e6))
    store = SimulatedStore(topic, link, threads)           # a RemoteStorageManager
    store.gets                                             # every GET: what was asked for, when, and what came

Logs are of equal batches with one record each, so that the batch at position n * batch_bytes has offset n. A CRC does
not cover its batch's base offset: so all batches are copies of one, with other base offsets, and all CRCs are right.

A format with chunks (`chunk_bytes` above 1) has a manifest, which costs a GET; its GETs are of whole chunks, and what
lies in a chunk can be read once all of the chunk has come.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from storage.errors import RetriableRemoteStorageError
from storage.indexes.offset_index import build_offset_index
from storage.model import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from storage.remote_storage_manager import OpenedSegment, SegmentStream
from tests.support.opened_bytes import ReadOnlyManager
from tests.support.segments import FIRST_TIMESTAMP_MS, data_batch, topic_partition, uuid_of
from tests.support.simulated_link import NORMAL, Connection, Manner, SimulatedLink
from tests.support.simulated_time import SimulatedThreads

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MANIFEST_BYTES = 4 * KIB
TILE_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTopic:
    """What is in the tier. Sizes are whole batches; offsets count batches."""

    partitions: int
    partition_bytes: int
    segment_bytes: int = 64 * MIB
    batch_bytes: int = 64 * KIB
    chunk_bytes: int = 1

    def __post_init__(self) -> None:
        assert self.segment_bytes % self.batch_bytes == self.partition_bytes % self.segment_bytes == 0

    def partition(self, number: int) -> TopicIdPartition:
        return topic_partition("simulated", number)

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """All of them, FINISHED, a partition after the other."""
        count = self.partition_bytes // self.segment_bytes
        return [self._segment(self.partition(number), at) for number in range(self.partitions) for at in range(count)]

    def _segment(self, partition: TopicIdPartition, at: int) -> RemoteLogSegmentMetadata:
        offsets = self.segment_bytes // self.batch_bytes
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, uuid_of(f"segment {partition} {at}")),
            start_offset=at * offsets,
            end_offset=(at + 1) * offsets - 1,
            max_timestamp_ms=FIRST_TIMESTAMP_MS,
            broker_id=1,
            event_timestamp_ms=FIRST_TIMESTAMP_MS,
            segment_size_bytes=self.segment_bytes,
            segment_leader_epochs={0: at * offsets},
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )


@dataclass(slots=True, eq=False)
class SimulatedGet:
    """One GET: bytes [start, end) of an object. `index_type` and `is_manifest` say what it was of, if not of a log."""

    segment: RemoteLogSegmentMetadata
    start: int
    end: int
    connection: Connection
    index_type: IndexType | None = None
    is_manifest: bool = False
    closed_s: float | None = None

    @property
    def is_log(self) -> bool:
        return self.index_type is None and not self.is_manifest

    @property
    def received_bytes(self) -> int:
        return round(self.connection.received_bytes)

    def __str__(self) -> str:
        kind = "manifest" if self.is_manifest else "log" if self.index_type is None else self.index_type.name
        partition = self.segment.topic_id_partition.partition
        connection = self.connection
        return (
            f"{kind} {partition} {self.segment.start_offset} [{self.start}, {self.end}) sent {connection.sent_s!r} "
            f"begun {connection.begins_s!r} received {connection.received_bytes!r} closed {self.closed_s!r}"
        )


class SimulatedStore(ReadOnlyManager):
    """A RemoteStorageManager. `manners` are those of GETs of logs by their number, the first is 0."""

    def __init__(
        self,
        topic: SimulatedTopic,
        link: SimulatedLink,
        threads: SimulatedThreads,
        manners: dict[int, Manner] | None = None,
    ) -> None:
        super().__init__("simulated simulated:link")
        self.topic = topic
        self.has_manifests = topic.chunk_bytes > 1
        self.gets: list[SimulatedGet] = []
        self.link = link
        self._threads = threads
        self._manners = manners or {}
        self._log_gets = 0
        self._is_shut = False

    def shut(self) -> None:
        """All calls under way end, with an error if they wait: a run is over."""
        self._is_shut = True

    # --- GETs, in worker threads ---

    def send(
        self,
        segment: RemoteLogSegmentMetadata,
        start: int,
        end: int,
        *,
        index_type: IndexType | None = None,
        is_manifest: bool = False,
    ) -> SimulatedGet:
        """Send one; returns when its answer begins.

        Raises:
            RetriableRemoteStorageError: it is closed before.
        """
        is_log = index_type is None and not is_manifest
        manner = self._manners.get(self._log_gets, NORMAL) if is_log else NORMAL
        self._log_gets += is_log
        connection = self.link.open(end - start, manner)
        get = SimulatedGet(segment, start, end, connection, index_type, is_manifest)
        self.gets.append(get)
        self.wait(get, lambda: get.connection.has_begun)
        return get

    def wait_for_body(self, get: SimulatedGet, end_bytes: int) -> None:
        """Return when so much of the body has come.

        Raises:
            RetriableRemoteStorageError: the body is silent.
        """
        connection = get.connection
        connection.want(end_bytes, self.link.now_s)
        self.wait(get, lambda: connection.has_wanted or connection.is_silent)
        if not connection.has_wanted:
            raise RetriableRemoteStorageError("the body stalled")

    def wait(self, get: SimulatedGet, is_due: Callable[[], bool]) -> None:
        """Wait for the GET, or until it is closed, by another thread or because the run is over."""
        connection = get.connection
        self._threads.wait(lambda: self._is_shut or connection.is_closed or is_due())
        if self._is_shut or connection.is_closed:
            self.close_get(get)
            raise RetriableRemoteStorageError("the connection is closed")

    def close_get(self, get: SimulatedGet) -> None:
        """The connection ends. Idempotent."""
        if get.closed_s is None:
            get.closed_s = self.link.now_s
            get.connection.is_closed = True

    def _fetch_whole(
        self,
        segment: RemoteLogSegmentMetadata,
        size_bytes: int,
        *,
        index_type: IndexType | None = None,
        is_manifest: bool = False,
    ) -> None:
        get = self.send(segment, 0, size_bytes, index_type=index_type, is_manifest=is_manifest)
        try:
            self.wait_for_body(get, size_bytes)
        finally:
            self.close_get(get)

    # --- RemoteStorageManager ---

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        if self.has_manifests:
            self._fetch_whole(metadata, MANIFEST_BYTES, is_manifest=True)
        return SimulatedSegment(self, metadata, self.topic.chunk_bytes)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        assert index_type is IndexType.OFFSET, index_type
        data = _offset_index(self.topic.segment_bytes, self.topic.batch_bytes)
        self._fetch_whole(metadata, max(1, len(data)), index_type=index_type)
        return data

    def close(self) -> None:
        """As `shut`."""
        self.shut()


@dataclass(frozen=True, slots=True)
class SimulatedSegment:
    """An OpenedSegment."""

    store: SimulatedStore
    metadata: RemoteLogSegmentMetadata
    chunk_bytes: int
    memory_bytes: int = 1000

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        start, end = self._stored(start_position, end_position)
        return end - start

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        assert 0 <= start_position < end_position <= self.metadata.segment_size_bytes
        get = self.store.send(self.metadata, *self._stored(start_position, end_position))
        return _Stream(self, get, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        return self.store.fetch_index(self.metadata, index_type)

    def _stored(self, start: int, end: int) -> tuple[int, int]:
        size_bytes, chunk_bytes = self.metadata.segment_size_bytes, self.chunk_bytes
        return start // chunk_bytes * chunk_bytes, min(-(-end // chunk_bytes) * chunk_bytes, size_bytes)


@dataclass(slots=True, eq=False)
class _Stream:
    """A SegmentStream. `next` is the position of the byte that is read next."""

    segment: SimulatedSegment
    get: SimulatedGet
    next: int
    end: int

    def read(self, size_bytes: int) -> bytes | bytearray:
        start, end = self.next, self.next + size_bytes
        assert end <= self.end, "no more than the stream was opened for"
        chunk_bytes = self.segment.chunk_bytes
        whole_end = min(-(-end // chunk_bytes) * chunk_bytes, self.get.end)
        self.segment.store.wait_for_body(self.get, whole_end - self.get.start)
        self.next = end
        topic, metadata = self.segment.store.topic, self.segment.metadata
        return log_bytes(topic.batch_bytes, metadata.start_offset, start, end)

    def close(self) -> None:
        self.segment.store.close_get(self.get)


def log_bytes(batch_bytes: int, start_offset: int, start: int, end: int) -> bytearray:
    """Bytes [start, end) of the log of the segment that begins with that offset."""
    first = start // batch_bytes
    skipped = start - first * batch_bytes
    tile = _tile(batch_bytes, -(-(skipped + end - start) // TILE_BYTES))
    data = bytearray(tile[skipped : skipped + end - start])
    for number in range(first, (end - 1) // batch_bytes + 1):
        at = number * batch_bytes - start
        offset = struct.pack(">q", start_offset + number)
        if at >= 0 and at + 8 <= len(data):
            data[at : at + 8] = offset
        else:
            low, high = max(at, 0), min(at + 8, len(data))
            if low < high:
                data[low:high] = offset[low - at : high - at]
    return data


@cache
def _tile(batch_bytes: int, tiles: int) -> memoryview:
    return memoryview(batch_of(batch_bytes) * (1 + -(-tiles * TILE_BYTES // batch_bytes)))


@cache
def batch_of(batch_bytes: int) -> bytes:
    """A batch of one record of exactly that size, with base offset 0."""
    # Lengths in it are varints: the second try has them as they will be.
    value_bytes = batch_bytes - 100
    value_bytes += batch_bytes - len(data_batch(0, value_bytes=value_bytes))
    batch = data_batch(0, value_bytes=value_bytes)
    assert len(batch) == batch_bytes, (len(batch), batch_bytes)
    return batch


@cache
def _offset_index(segment_bytes: int, batch_bytes: int) -> bytes:
    """With one record in a batch, batch n has offset n relative to the segment's base."""
    return build_offset_index(0, ((number * batch_bytes, number) for number in range(segment_bytes // batch_bytes)))
