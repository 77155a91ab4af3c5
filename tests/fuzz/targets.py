"""What each decoder does with any bytes: it reads them, or raises the errors that its docstring names.

A target takes bytes that a fuzzer made, and swallows no other error than the decoder's own. Where a message has a
version, the first byte chooses one. Where a format has a checksum, the target writes it, so that bytes reach what lies
behind it.
"""

import struct
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from crc32c import crc32c

from protocol import list_offsets
from protocol.fetch import requests as fetch_requests
from protocol.fetch.messages import FETCH_VERSION_MAX, FETCH_VERSION_MIN
from protocol.fetch.response import decode_response, peek_session
from protocol.fetch.walker import FetchResponseWalker
from protocol.record_batches import CorruptBatchError, check_crc, iterate_batches, slice_rope
from protocol.wire import metadata
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES, FrameBuffer, frame_size
from protocol.wire.request_headers import decode_request_header
from storage.config.java_properties import PropertiesError, read_properties
from storage.errors import CorruptObjectError, IcebergSegmentError, MetadataBatchError, MetadataRecordError
from storage.formats.aiven.manifest import decode_manifest
from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import TransactionIndex
from storage.log.batch_records import ScanBudget, ScanLimitError, iterate_records
from storage.log.batch_walk import SegmentWindow, find_first_batch, verify_batches
from storage.log.block import Block
from storage.metadata.record_batches import parse_batches
from storage.metadata.serde import decode, decode_key
from storage.metadata.snapshot import SnapshotFile
from storage.metadata.snapshot_stream import SnapshotError
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

FRAME_BYTES_MAX: Final = 1 << 20
BLOCK_BYTES: Final = 512
BODY_BYTES_MIN: Final = 8
RECORDS_MAX: Final = 10_000
INFLATED_BYTES_MAX: Final = 1 << 22
METADATA_VERSIONS: Final = range(14)
FETCH_VERSIONS: Final = range(FETCH_VERSION_MIN, FETCH_VERSION_MAX + 1)
LIST_OFFSETS_VERSIONS: Final = range(list_offsets.LIST_OFFSETS_VERSION_MIN, list_offsets.LIST_OFFSETS_VERSION_MAX + 1)
FOLDER: Final = Path(tempfile.gettempdir())

Target = Callable[[bytes], None]


def frame(data: bytes) -> None:
    """A stream of requests, cut into frames as a connection cuts it."""
    buffer, rest = FrameBuffer(), memoryview(data)
    try:
        with suppress(PeerProtocolError):
            while rest:
                space = buffer.prepare()
                size = min(len(space), len(rest))
                space[:size], rest = rest[:size], rest[size:]
                buffer.received(size)
                _take_frames(buffer)
    finally:
        buffer.close()


def _take_frames(buffer: FrameBuffer) -> None:
    while len(buffer) >= LENGTH_BYTES:
        size = frame_size(buffer.view, buffer.start, frame_bytes_max=FRAME_BYTES_MAX, body_bytes_min=BODY_BYTES_MIN)
        if len(buffer) < size:
            buffer.reserve(size)
            return
        decode_request_header(buffer.view[buffer.start : buffer.start + size])
        buffer.consume(size)


def fetch_request(data: bytes) -> None:
    view = memoryview(_framed(data))
    with suppress(PeerProtocolError):
        header = decode_request_header(view)
        if header.api_version in FETCH_VERSIONS:
            fetch_requests.decode_request(view, header)


def fetch_response(data: bytes) -> None:
    version, content = _chosen(data, FETCH_VERSIONS)
    framed = _framed(content)
    with suppress(PeerProtocolError):
        decode_response(memoryview(framed), version, RECORDS_MAX)
    with suppress(PeerProtocolError):
        if version >= 7:
            peek_session(memoryview(framed), version)
    if version >= 16:
        with suppress(PeerProtocolError):
            walker, rest = FetchResponseWalker(version), memoryview(framed)
            while rest and (passed := walker.feed(rest)):
                rest = rest[passed:]


def list_offsets_messages(data: bytes) -> None:
    """The first byte: 0 a request, otherwise a response."""
    if not data[:1].strip(b"\0"):
        view = memoryview(_framed(data[1:]))
        with suppress(PeerProtocolError):
            header = decode_request_header(view)
            if header.api_version in LIST_OFFSETS_VERSIONS:
                list_offsets.decode_request(view, header)
        return
    version, content = _chosen(data, LIST_OFFSETS_VERSIONS)
    with suppress(PeerProtocolError):
        list_offsets.decode_response(memoryview(_framed(content)), version)


def metadata_response(data: bytes) -> None:
    version, content = _chosen(data, METADATA_VERSIONS)
    with suppress(PeerProtocolError):
        metadata.locate(memoryview(_framed(content)), version)


def batches(data: bytes) -> None:
    """A segment's log: the walk over its blocks, then each batch's records. A CRC that is wrong stops only the walk."""
    if data:
        window = SegmentWindow(_segment(len(data)), BLOCK_BYTES)
        starts = range(0, len(data), BLOCK_BYTES)
        window.add(0, [Block(memoryview(data)[start : start + BLOCK_BYTES]) for start in starts])
        with suppress(CorruptObjectError):
            find_first_batch(window, 0, 50)
        with suppress(CorruptObjectError):
            verify_batches(window, 0, len(data))
    with suppress(CorruptBatchError):
        for position, header in iterate_batches([data]):
            rope = slice_rope([data], position, position + header.size_bytes)
            check_crc(rope)
            budget = ScanBudget(records_max=RECORDS_MAX, bytes_max=INFLATED_BYTES_MAX)
            with suppress(CorruptObjectError, ScanLimitError):
                for _ in islice(iterate_records(rope, budget), RECORDS_MAX):
                    pass


def index(data: bytes) -> None:
    """The first byte says which of a segment's five it is."""
    kind, content = data[:1], data[1:]
    with suppress(CorruptObjectError):
        if kind == b"o":
            OffsetIndex(content, 100).fetch_upper_bound_offset(1000)
        elif kind == b"t":
            TimeIndex(content, 100).lookup(1_700_000_000_000)
        elif kind == b"a":
            TransactionIndex(content).collect_aborted(0, 1 << 40)
        elif kind == b"e":
            parse_leader_epochs(content)
        else:
            checked = content[6:]
            parse_producer_snapshot(content[:2] + struct.pack(">I", crc32c(checked)) + checked)


def manifest(data: bytes) -> None:
    with suppress(CorruptObjectError, IcebergSegmentError):
        decode_manifest(data, "fuzz.rsm-manifest")


def metadata_record(data: bytes) -> None:
    """A record's value, its key, and a batch of the metadata topic, its CRC put right."""
    with suppress(MetadataRecordError):
        decode(data)
    decode_key(data)
    with suppress(MetadataBatchError):
        parse_batches(data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:], 0)


def snapshot(data: bytes) -> None:
    file = SnapshotFile(FOLDER)
    file.path.write_bytes(data + struct.pack("<I", crc32c(data)))
    with suppress(SnapshotError):
        file.origin()
    with suppress(SnapshotError):
        file.read()


def properties(data: bytes) -> None:
    path = FOLDER / "fuzz.properties"
    path.write_bytes(data)
    with suppress(PropertiesError):
        read_properties(path)


TARGETS: Final[Mapping[str, Target]] = {
    "frame": frame,
    "fetch_request": fetch_request,
    "fetch_response": fetch_response,
    "list_offsets": list_offsets_messages,
    "metadata": metadata_response,
    "batches": batches,
    "index": index,
    "manifest": manifest,
    "metadata_record": metadata_record,
    "snapshot": snapshot,
    "properties": properties,
}


def _framed(content: bytes) -> bytearray:
    return bytearray(struct.pack(">i", len(content)) + content)


def _chosen(data: bytes, versions: range) -> tuple[int, bytes]:
    return versions[(data[0] if data else 0) % len(versions)], data[1:]


def _segment(size_bytes: int) -> RemoteLogSegmentMetadata:
    partition = TopicIdPartition(Uuid(bytes(15) + b"\x01"), 0, "fuzz")
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, Uuid(bytes(15) + b"\x02")),
        start_offset=0,
        end_offset=10_000,
        max_timestamp_ms=1,
        broker_id=1,
        event_timestamp_ms=1,
        segment_size_bytes=size_bytes,
        segment_leader_epochs={0: 0},
    )
