"""Fetch responses that stream by, and the addresses in them (v16+, KIP-951).

Upstream names the leaders of partitions that moved in NodeEndpoints, tagged field 0 at the very end of the response.
Those are upstream's own addresses, so a client that believed them would go past Tidegate (docs/protocol.md#l7).

Contract:
- Held frames: `locate`, `find_nodes` and `rewrite_endpoints` put Tidegate's addresses there.
- Frames too large to hold: `FetchResponseWalker` walks them as they pass and renames field 0, in place, to a number
  that means nothing: the client skips it and asks Metadata instead, as it does before v16. The length stays, so
  nothing has to wait.
- What a response says of a partition is changed as it passes by an editor (`PartitionEditor`), in place: error code and
  log start offset. That holds for every version.
- Record bytes are skipped by count and never looked at; so are aborted transactions and unknown fields.
- Answers to questions of our own of which records are not wanted, or are too many to be held, are kept without them
  (`RecordDropper`), as they arrive.

v16, v17 and v18 have one layout: header tags · throttle, error, session · topics (id, partitions, tags) · tags. Others
lack some of it: names stand for ids below v13; below v12 nothing has tags, and counts and sizes take four bytes.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from protocol.fetch.messages import FETCH_VERSION_MAX, FETCH_VERSION_MIN, FLEXIBLE_VERSION_MIN, TOPIC_ID_VERSION_MIN
from protocol.wire.endpoints import AddressLayout, NodeAddress, SizedSection, nodes, read_endpoints, splice_layout
from protocol.wire.errors import ErrorCode, LocalProtocolError, PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES
from protocol.wire.primitives import Cursor

ENDPOINTS_VERSION_MIN = 16
"""The first version whose response names addresses."""

NODE_ENDPOINTS_TAG = 0
UNUSED_TAG = 127
"""The last tag number of one byte. Kafka numbers fields from 0 up and no message has more than a handful."""

STEP_BYTES = 64
"""No single step of the walk needs more than this before it: the longest is a partition's fixed fields, 35 bytes."""

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_INT64 = struct.Struct(">q")
_TOPIC_ID_BYTES = 16
_PARTITION_BYTES = 30  # partition, error code, high watermark, last stable offset, log start offset
_LOG_START_POSITION = 22
_ERROR_POSITION = 4
_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_ABORTED_BYTES = 16
_NAME_BYTES_MAX = 32767
_RECORDS_POSITION = 35  # in a partition with no aborted transactions: their count is one byte, the replica id four


class PartitionEditor(Protocol):
    """What changes a response that streams by."""

    def begin_topic(self, topic: bytes | str) -> bool:
        """The partitions that follow are of this topic, by id or by name; whether all of them are to be edited. Of
        others only those with OFFSET_OUT_OF_RANGE are."""
        ...

    def edited(self, partition: int, error_code: int, log_start_offset: int) -> tuple[int, int]:
        """Error code and log start offset as they are to be; the offset is −1 in v4, which has none."""
        ...


@dataclass(frozen=True, slots=True)
class _Layout:
    """What differs between versions."""

    is_flexible: bool
    has_topic_ids: bool
    session_bytes: int
    """Error code and session id of the whole."""
    partition_bytes: int
    has_log_start: bool
    replica_bytes: int

    @classmethod
    def of(cls, version: int) -> "_Layout":
        has_log_start = version >= 5
        return cls(
            version >= FLEXIBLE_VERSION_MIN,
            version >= TOPIC_ID_VERSION_MIN,
            6 if version >= 7 else 0,
            _PARTITION_BYTES if has_log_start else _LOG_START_POSITION,
            has_log_start,
            4 if version >= 11 else 0,
        )


_LAYOUTS = {version: _Layout.of(version) for version in range(FETCH_VERSION_MIN, FETCH_VERSION_MAX + 1)}


class FetchResponseWalker:
    """Walks one response frame, length field included, in whatever pieces it arrives.

    Rule 1. Every byte is passed on once, in order; `feed` says how many may go now. It keeps none itself.
    Rule 2. It holds back less than STEP_BYTES, and only while the frame goes on: a field is read when all of it is
            surely there. Skipped bytes pass at once.
    Rule 3. A count or length that does not fit in the rest of the frame is the peer's error, as are bytes left over.
    """

    __slots__ = (
        "_aborted_left",
        "_editor",
        "_edits_all",
        "_frame_bytes",
        "_layout",
        "_left_bytes",
        "_name",
        "_name_left",
        "_partitions_left",
        "_rename",
        "_step",
        "_tags_left",
        "_topics_left",
        "_walked",
        "endpoints_position",
        "unseen_bytes",
    )

    def __init__(self, api_version: int, *, rename: bool = True, editor: PartitionEditor | None = None) -> None:
        """
        Args:
            api_version: with an editor any, or without `rename`; else 16 or newer, as older responses hold no
                addresses.
            rename: False only looks for the field; without an editor the view need not be writable then.

        Raises:
            LocalProtocolError: another version.
        """
        version_min = ENDPOINTS_VERSION_MIN if editor is None and rename else FETCH_VERSION_MIN
        if not version_min <= api_version <= FETCH_VERSION_MAX:
            raise LocalProtocolError(f"a Fetch v{api_version} response is not one to walk")
        self._layout = _LAYOUTS[api_version]
        self._editor = editor
        self._edits_all = False
        self._name = bytearray()
        self._name_left = 0
        self.endpoints_position: int | None = None
        """Where in the frame the NodeEndpoints field's number stands, once it was met."""
        self._rename = rename
        self._frame_bytes = 0  # length field included; 0 until that is here
        self._left_bytes = 0
        self.unseen_bytes = 0
        """Bytes that come next and need not be fed: `pass_unseen` says how many have passed."""
        self._topics_left = 0
        self._partitions_left = 0
        self._aborted_left = 0
        self._tags_left = 0
        self._walked = False
        # Functions, not bound methods: those would make each walker a cycle that only the collector can free.
        self._step: _Step = FetchResponseWalker._read_header

    @property
    def done(self) -> bool:
        """Return whether the whole frame was passed on."""
        return self._walked and self._left_bytes == 0

    def feed(self, view: memoryview) -> int:
        """Return how many bytes of `view` may be forwarded now; the tag in them may have been renamed.

        Args:
            view: writable, beginning where the last call's count ended; what lies beyond the frame is not touched.
                At least STEP_BYTES of it, or the rest of the frame, make a positive count sure.

        Raises:
            PeerProtocolError: the frame's inner structure contradicts its length, or a count is null or absurd.
        """
        if not self._frame_bytes:
            if len(view) < LENGTH_BYTES:
                return 0
            self._frame_bytes = self._left_bytes = max(0, int(_INT32.unpack_from(view, 0)[0])) + LENGTH_BYTES
        cursor = Cursor(view, 0, min(len(view), self._left_bytes))
        while True:
            if self.unseen_bytes:
                step_bytes = min(self.unseen_bytes, cursor.end - cursor.position)
                self.unseen_bytes -= step_bytes
                cursor.position += step_bytes
            unread_bytes = cursor.end - cursor.position
            if self.unseen_bytes or (unread_bytes < STEP_BYTES and cursor.end < self._left_bytes):
                break
            if self._walked:
                if unread_bytes:
                    raise PeerProtocolError(f"{unread_bytes} bytes after the end of a Fetch response")
                break
            self._step(self, cursor)
        self._left_bytes -= cursor.position
        return cursor.position

    def pass_unseen(self, size: int) -> None:
        """Note how many of them have passed."""
        self.unseen_bytes -= size
        self._left_bytes -= size

    def _skip(self, cursor: Cursor, size: int) -> None:
        """Let the next `size` bytes pass unread, in this call or later ones."""
        if size > self._left_bytes - cursor.position:
            raise PeerProtocolError(f"a field of {size} bytes with {self._left_bytes - cursor.position} left")
        self.unseen_bytes = size

    def _count(self, cursor: Cursor, *, nullable: bool = False) -> int:
        """An array's count, 0 for null. Every element takes at least a byte, so the frame bounds it."""
        count = cursor.compact_length() if self._layout.is_flexible else cursor.int32()
        if nullable and count == -1:
            return 0
        if not 0 <= count <= self._left_bytes - cursor.position:
            raise PeerProtocolError(f"array of {count} elements with {self._left_bytes - cursor.position} bytes left")
        return count

    # The steps, in the order of the wire. Each reads one run of fields and names its successor.

    def _read_header(self, cursor: Cursor) -> None:
        cursor.skip(8)  # length, correlation id
        self._begin_tags(cursor, FetchResponseWalker._read_header_tag, FetchResponseWalker._read_body)

    def _read_header_tag(self, cursor: Cursor) -> None:
        if self._pass_tag(cursor):
            self._step = FetchResponseWalker._read_body

    def _read_body(self, cursor: Cursor) -> None:
        cursor.skip(4 + self._layout.session_bytes)  # throttle time, error code, session id
        self._topics_left = self._count(cursor)
        self._step = FetchResponseWalker._read_topic

    def _read_topic(self, cursor: Cursor) -> None:
        if self._topics_left == 0:
            self._begin_tags(cursor, FetchResponseWalker._read_response_tag, FetchResponseWalker._read_response_tag)
            return
        self._topics_left -= 1
        if not self._layout.has_topic_ids:
            self._name_left = cursor.compact_length() if self._layout.is_flexible else cursor.int16()
            if not 0 <= self._name_left <= min(_NAME_BYTES_MAX, self._left_bytes - cursor.position):
                raise PeerProtocolError(f"a topic name of {self._name_left} bytes")
            self._name.clear()
            self._step = FetchResponseWalker._read_topic_name
            return
        start = cursor.skip(_TOPIC_ID_BYTES)
        if self._editor is not None:
            self._edits_all = self._editor.begin_topic(bytes(cursor.view[start : cursor.position]))
        self._partitions_left = self._count(cursor)
        self._step = FetchResponseWalker._read_partition

    def _read_topic_name(self, cursor: Cursor) -> None:
        """The name, in pieces if need be, and the count behind it."""
        if self._name_left:
            piece_bytes = min(self._name_left, cursor.end - cursor.position)
            self._name += cursor.raw(piece_bytes)
            self._name_left -= piece_bytes
            return
        if self._editor is not None:
            try:
                self._edits_all = self._editor.begin_topic(self._name.decode())
            except UnicodeDecodeError as error:
                raise PeerProtocolError("a topic name that is not UTF-8") from error
        self._partitions_left = self._count(cursor)
        self._step = FetchResponseWalker._read_partition

    def _read_partition(self, cursor: Cursor) -> None:
        if self._layout.is_flexible:
            self._pass_whole_partitions(cursor)
            if cursor.end - cursor.position < STEP_BYTES and cursor.end < self._left_bytes:
                return
        if self._partitions_left == 0:
            self._begin_tags(cursor, FetchResponseWalker._read_topic_tag, FetchResponseWalker._read_topic)
            return
        self._partitions_left -= 1
        start = cursor.skip(self._layout.partition_bytes)
        if self._editor is not None:
            self._edit(self._editor, cursor.view, start)
        self._aborted_left = self._count(cursor, nullable=True)
        self._step = FetchResponseWalker._read_aborted

    def _edit(self, editor: PartitionEditor, view: memoryview, start: int) -> None:
        """Edit the partition whose fields begin at `start`, and are here."""
        error_position, log_start_position = start + _ERROR_POSITION, start + _LOG_START_POSITION
        error_code: int = _INT16.unpack_from(view, error_position)[0]
        if not self._edits_all and error_code != _OUT_OF_RANGE:
            return
        partition: int = _INT32.unpack_from(view, start)[0]
        log_start_offset: int = _INT64.unpack_from(view, log_start_position)[0] if self._layout.has_log_start else -1
        edited_code, edited_start = editor.edited(partition, error_code, log_start_offset)
        if edited_code != error_code:
            _INT16.pack_into(view, error_position, edited_code)
        if edited_start != log_start_offset and self._layout.has_log_start:
            _INT64.pack_into(view, log_start_position, edited_start)

    def _read_aborted(self, cursor: Cursor) -> None:
        if not self._layout.is_flexible:
            left_bytes, self._aborted_left = self._aborted_left * _ABORTED_BYTES, 0
            self._skip(cursor, left_bytes)
            self._step = FetchResponseWalker._read_records
            return
        view, position, end, left = cursor.view, cursor.position, cursor.end, self._aborted_left
        while left and end - position >= STEP_BYTES and view[position + _ABORTED_BYTES] == 0:
            position += _ABORTED_BYTES + 1
            left -= 1
        cursor.position, self._aborted_left = position, left
        if left == 0:
            self._step = FetchResponseWalker._read_records
        elif end - position >= STEP_BYTES or end == self._left_bytes:
            self._aborted_left -= 1
            cursor.skip(_ABORTED_BYTES)
            self._tags_left = cursor.uvarint()
            self._step = FetchResponseWalker._read_aborted_tag

    def _read_aborted_tag(self, cursor: Cursor) -> None:
        if self._pass_tag(cursor):
            self._step = FetchResponseWalker._read_aborted

    def _read_records(self, cursor: Cursor) -> None:
        cursor.skip(self._layout.replica_bytes)  # preferred read replica
        field_position = cursor.position
        size = max(0, cursor.compact_length() if self._layout.is_flexible else cursor.int32())
        self._skip(cursor, size)
        self._meet_records(field_position, cursor.position, size)
        self._step = FetchResponseWalker._read_partition_tags

    def _meet_records(self, field_position: int, position: int, size: int) -> None:
        """The records of a partition begin at `position` of the view, their size's field at `field_position`."""

    def _read_partition_tags(self, cursor: Cursor) -> None:
        self._begin_tags(cursor, FetchResponseWalker._read_partition_tag, FetchResponseWalker._read_partition)

    def _read_partition_tag(self, cursor: Cursor) -> None:
        if self._pass_tag(cursor):
            self._step = FetchResponseWalker._read_partition

    def _read_topic_tag(self, cursor: Cursor) -> None:
        if self._pass_tag(cursor):
            self._step = FetchResponseWalker._read_topic

    def _read_response_tag(self, cursor: Cursor) -> None:
        start = cursor.position
        if self._pass_tag(cursor):
            self._walked = True
            return
        if Cursor(cursor.view, start, cursor.end).uvarint() == NODE_ENDPOINTS_TAG:
            self.endpoints_position = self._frame_bytes - self._left_bytes + start
            if self._rename:  # a varint may be padded: its continuation bit stays
                cursor.view[start] = UNUSED_TAG | (cursor.view[start] & 0x80)

    def _begin_tags(self, cursor: Cursor, tag: "_Step", after: "_Step") -> None:
        """A tagged section: `tag` reads a field of it, `after` what stands behind it."""
        self._tags_left = cursor.uvarint() if self._layout.is_flexible else 0
        self._step = tag if self._tags_left else after

    def _pass_tag(self, cursor: Cursor) -> bool:
        """Pass one tagged field; True when there was none left."""
        if self._tags_left == 0:
            return True
        self._tags_left -= 1
        cursor.uvarint()
        self._skip(cursor, cursor.uvarint())
        return False

    def _pass_whole_partitions(self, cursor: Cursor) -> None:
        """Pass partitions that are here as a whole and have no aborted transactions and no tags: nearly all.

        This is the loop that runs for every partition relayed, so it is written without calls; any other partition
        is left to the steps.
        """
        view, position, end, left = cursor.view, cursor.position, cursor.end, self._partitions_left
        editor, edits_all = self._editor, self._edits_all
        while left and end - position >= STEP_BYTES and view[position + _PARTITION_BYTES] <= 1:
            after = position + _RECORDS_POSITION
            size = shift = 0
            while shift < 35:
                byte = view[after]
                after += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            else:
                break
            if size > 1:
                after += size - 1
            if after >= end or view[after] != 0:
                break
            if editor is not None and (edits_all or view[position + 5] == _OUT_OF_RANGE):
                self._edit(editor, view, position)
            position = after + 1
            left -= 1
        cursor.position, self._partitions_left = position, left


_Step = Callable[[FetchResponseWalker, Cursor], None]


class RecordDropper(FetchResponseWalker):
    """Keeps a frame that it walks, without the records for which there is no room.

    Args:
        records_bytes_max: of all the records that are kept.
    """

    __slots__ = ("_cut", "_kept", "_room_bytes", "dropped")

    def __init__(self, api_version: int, records_bytes_max: int) -> None:
        super().__init__(api_version, rename=False)
        self.dropped: list[int] = []
        """How many record bytes of each partition were dropped, in the order of the wire."""
        self._room_bytes = records_bytes_max
        self._kept = bytearray()
        self._cut: list[tuple[int, int]] = []
        """What of the frame is left out: the size's field, for which an empty set's stands, and the records."""

    @property
    def frame(self) -> memoryview:
        """Return what was kept, as a whole frame."""
        _INT32.pack_into(self._kept, 0, len(self._kept) - LENGTH_BYTES)
        return memoryview(self._kept)

    def feed(self, view: memoryview) -> int:
        at = start = self._frame_bytes - self._left_bytes
        end = start + super().feed(view)
        while self._cut:
            cut_start, cut_end = self._cut[0]
            if at <= cut_start:
                self._kept += view[at - start : cut_start - start]
                self._kept += b"\x01" if self._layout.is_flexible else bytes(4)
            at = min(cut_end, end)
            if cut_end > end:
                return end - start
            del self._cut[0]
        self._kept += view[at - start : end - start]
        return end - start

    def _meet_records(self, field_position: int, position: int, size: int) -> None:
        if size <= self._room_bytes:
            self._room_bytes -= size
            self.dropped.append(0)
            return
        before = self._frame_bytes - self._left_bytes
        self._cut.append((before + field_position, before + position + size))
        self.dropped.append(size)

    def _pass_whole_partitions(self, cursor: Cursor) -> None:
        """Each partition is met."""


def edit_partitions(frame: memoryview, api_version: int, editor: PartitionEditor) -> None:
    """Edit the partitions of a whole response frame, in place.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    walker = FetchResponseWalker(api_version, rename=False, editor=editor)
    if walker.feed(frame) != len(frame) or not walker.done:
        raise PeerProtocolError(f"{len(frame)} bytes are not the frame that its length field promises")


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Return where the addresses of a whole response frame (length field included) stand.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    if api_version < ENDPOINTS_VERSION_MIN:
        return AddressLayout((), flexible=True)
    walker = FetchResponseWalker(api_version, rename=False)
    if walker.feed(frame) != len(frame) or not walker.done:
        raise PeerProtocolError(f"{len(frame)} bytes are not the frame that its length field promises")
    if walker.endpoints_position is None:
        return AddressLayout((), flexible=True)
    cursor = Cursor(frame, walker.endpoints_position)
    cursor.uvarint()
    size_start = cursor.position
    size = cursor.uvarint()
    start = cursor.skip(size)
    endpoints = read_endpoints(Cursor(frame, start, cursor.position))
    return replace(endpoints, section=SizedSection(size_start, start, cursor.position))


def find_nodes(frame: memoryview, api_version: int) -> list[NodeAddress]:
    """The nodes that a whole response frame names: listeners for them are bound before it is passed on.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    return nodes(locate(frame, api_version).sites)


def rewrite_endpoints(frame: memoryview, api_version: int, advertised: Mapping[int, tuple[str, int]]) -> bytes:
    """A whole response frame with Tidegate's addresses, its length field corrected; nodes that `advertised` lacks are
    left out.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    layout = locate(frame, api_version)
    if not layout.sites:
        return bytes(frame)
    rewritten = splice_layout(frame, layout, advertised)
    return _INT32.pack(len(rewritten) - LENGTH_BYTES) + rewritten[LENGTH_BYTES:]
