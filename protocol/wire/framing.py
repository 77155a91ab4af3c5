"""Finding frames in a stream of bytes: int32 length, then that many bytes.

Rule 1. A length is checked before a byte of its frame is kept: negative, shorter than a header or above the
        limit is the peer's error.
Rule 2. Nothing is copied to find a frame: `FrameBuffer` is one reusable buffer per direction, and its owner
        handles views into it. A frame larger than the buffer is passed on in parts, or the owner reserves room.
Rule 3. A view handed out is valid until the next `prepare`, `reserve` or `rest`, which only the owner calls.
Rule 4. Big storage belongs to traffic, not to connections: a stream that falls silent gives it back (`rest`), and
        the next one that needs it takes it from a pool, its pages already there. While BIG_BUFFERS_MAX are in use (by
        streams whose peers take nothing, for instance), others get on with SMALL_BUFFER_BYTES.
Rule 5. Storage follows what has arrived, not what a length announces: it is doubled when it is full.
Rule 6. What a stream has beyond SMALL_BUFFER_BYTES, and not of the pool, is its owner's to account for, who asks
        `beyond_small` before `prepare`.
"""

import struct

from protocol.wire.errors import PeerProtocolError

LENGTH_BYTES = 4
RECEIVE_BUFFER_BYTES = 256 * 1024
"""For a busy stream. Measured: a relay gains little beyond 256 KiB a read."""
IDLE_BUFFER_BYTES = 4 * 1024
"""For a new or quiet stream: 1,000 idle connections must fit in 64 MiB (docs/protocol.md#l6), heartbeats fit in it."""
QUIET_READS_MAX = 64
"""So many reads in a row that an idle buffer would have held give the big buffer back."""

BIG_BUFFERS_MAX = 128
"""32 MiB in all."""
SMALL_BUFFER_BYTES = 16 * 1024

POOLED_BUFFERS_MAX = 32
"""So many big buffers wait for their next stream: 8 MiB, and more streams than one core keeps busy at once."""

_LENGTH = struct.Struct(">i")
_NOTHING = memoryview(bytearray())

_pool: list[bytearray] = []
"""Big buffers that nobody uses. Shared by all streams; taking and giving back are atomic."""


class _Big:
    """How many big buffers are in use. Only the trio thread's count; few others use a FrameBuffer."""

    in_use = 0


def frame_size(view: memoryview, position: int, *, frame_bytes_max: int, body_bytes_min: int) -> int:
    """The whole size, length field included, of the frame that begins at `position`.

    Raises:
        PeerProtocolError: the length is negative, below body_bytes_min or makes the frame exceed the limit.
    """
    length = int(_LENGTH.unpack_from(view, position)[0])
    if length < body_bytes_min:
        raise PeerProtocolError(f"frame length {length} is below {body_bytes_min}")
    if length > frame_bytes_max:
        raise PeerProtocolError(f"frame length {length} exceeds the limit of {frame_bytes_max} bytes")
    return length + LENGTH_BYTES


def pooled_buffers() -> int:
    """Return how many big buffers wait for their next stream."""
    return len(_pool)


class FrameBuffer:
    """Bytes received and not yet handled: `view[start:end]` of one buffer that follows the traffic.

    It starts at IDLE_BUFFER_BYTES, is doubled when a read fills it and becomes RECEIVE_BUFFER_BYTES, grows further only
    when a frame must be held whole (`reserve`), and shrinks back. `close` must follow.
    """

    __slots__ = ("_is_big", "_quiet_reads", "_reserved_bytes", "_storage", "_was_filled", "end", "start", "view")

    def __init__(self) -> None:
        self._storage: bytearray | None = bytearray(IDLE_BUFFER_BYTES)
        """None while a big buffer is given back (`rest`)."""
        self.view = memoryview(self._storage)
        self._is_big = False
        """Its storage is one of BIG_BUFFERS_MAX."""
        self._was_filled = False
        """By the last read."""
        self._quiet_reads = 0
        self._reserved_bytes = 0
        self.start = 0
        self.end = 0

    def __del__(self) -> None:
        # Not closed: its storage may still be referred to, so it goes to no other stream.
        _Big.in_use -= self._is_big

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def capacity_bytes(self) -> int:
        """Return what it holds in memory now."""
        return len(self.view)

    @property
    def is_resting(self) -> bool:
        """Return whether it holds no storage; `prepare` takes RECEIVE_BUFFER_BYTES then, or what there is."""
        return self._storage is None

    @property
    def beyond_small(self) -> int:
        """Bytes that it holds now and its owner accounts for (rule 6)."""
        return 0 if self._is_big else max(0, len(self.view) - SMALL_BUFFER_BYTES)

    @property
    def beyond_small_next(self) -> int:
        """The same, as it will be after the next `prepare`."""
        size, is_big = self._next()
        return 0 if is_big else max(0, size - SMALL_BUFFER_BYTES)

    def first(self, size_max: int) -> memoryview:
        """Return what is at hand, at most so much."""
        return self.view[self.start : self.end][:size_max]

    def rest(self) -> None:
        """Before a wait of unknown length: an empty buffer that is not small gives its storage back."""
        if self.start == self.end and len(self.view) > IDLE_BUFFER_BYTES and not self._reserved_bytes:
            if self._quiet_reads > QUIET_READS_MAX:
                self._replace(IDLE_BUFFER_BYTES, is_big=False)
            else:
                self._give_back()

    def shrink(self) -> None:
        """Before a wait in which little is received: what is at hand moves to little storage, if it fits there."""
        if len(self) < IDLE_BUFFER_BYTES < len(self.view) and not self._reserved_bytes:
            self._replace(IDLE_BUFFER_BYTES, is_big=False)

    def prepare(self) -> memoryview:
        """Non-empty space for the next read, at the cost of moving what is left to the front."""
        size, is_big = self._next()
        if (size, is_big) != (len(self.view), self._is_big):
            self._replace(size, is_big=is_big)
        elif self.start:
            self._to_front()
        return self.view[self.end :]

    def _next(self) -> tuple[int, bool]:
        """The size that its storage is to have for the next read, and whether that is one of BIG_BUFFERS_MAX."""
        left, capacity = self.end - self.start, len(self.view)
        needed = max(left + 1, self._reserved_bytes)
        if capacity > IDLE_BUFFER_BYTES >= needed and self._quiet_reads > QUIET_READS_MAX:
            return IDLE_BUFFER_BYTES, False
        if self._storage is None:
            return _busy_size(SMALL_BUFFER_BYTES)
        if not self._is_big and SMALL_BUFFER_BYTES < capacity >= 2 * needed:
            return _busy_size(max(SMALL_BUFFER_BYTES, 1 << left.bit_length()))
        if left == capacity:
            if self._reserved_bytes > left:
                return min(2 * capacity, self._reserved_bytes), False
            return (2 * capacity, False) if capacity < SMALL_BUFFER_BYTES else _busy_size(2 * capacity)
        if self._was_filled and capacity <= SMALL_BUFFER_BYTES and not self._reserved_bytes:
            return (2 * capacity, False) if capacity < SMALL_BUFFER_BYTES else _busy_size(capacity)
        return capacity, self._is_big

    def received(self, size: int) -> None:
        """Note how many bytes were read into what `prepare` gave."""
        if size >= IDLE_BUFFER_BYTES:
            self._quiet_reads = 0
        else:
            self._quiet_reads += 1
        self.end += size
        self._was_filled = self.end == len(self.view)

    def consume(self, size: int) -> None:
        """Drop that many bytes from the start, which were handled."""
        self.start += size
        if self._reserved_bytes:
            self._reserved_bytes = max(0, self._reserved_bytes - size)
        if self.start == self.end:
            self.start = self.end = 0

    def reserve(self, size: int) -> None:
        """A frame of `size` bytes that begins at `start` is to be held: room for it comes as it arrives, and stays
        until it was consumed."""
        self._reserved_bytes = size
        if self.start + size > len(self.view) > self.end - self.start:
            self._to_front()

    def close(self) -> None:
        """Hold nothing any more; what was received is lost."""
        self._give_back()
        self.start = self.end = self._reserved_bytes = 0

    def _to_front(self) -> None:
        left = self.end - self.start
        self.view[:left] = self.view[self.start : self.end]
        self.start, self.end = 0, left

    def _replace(self, size: int, *, is_big: bool) -> None:
        left = self.end - self.start
        storage = _pool.pop() if is_big and _pool else bytearray(size)
        storage[:left] = self.view[self.start : self.end]
        self._give_back()
        _Big.in_use += is_big
        self._storage, self.view, self._is_big, self._was_filled = storage, memoryview(storage), is_big, False
        self.start, self.end = 0, left

    def _give_back(self) -> None:
        if self._is_big and self._storage is not None:
            _Big.in_use -= 1
            if len(_pool) < POOLED_BUFFERS_MAX:
                _pool.append(self._storage)
        self._storage, self.view, self._is_big = None, _NOTHING, False


def _busy_size(otherwise: int) -> tuple[int, bool]:
    """The size of a busy stream's buffer, `otherwise` if it must be larger or BIG_BUFFERS_MAX are in use; and whether
    it is one of these."""
    is_big = otherwise <= RECEIVE_BUFFER_BYTES and _Big.in_use < BIG_BUFFERS_MAX
    return (RECEIVE_BUFFER_BYTES if is_big else otherwise), is_big
