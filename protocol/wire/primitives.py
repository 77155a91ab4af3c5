"""Kafka's primitive encodings over a memoryview (docs/protocol.md#primitives, docs/protocol.md#headers).

`Cursor` reads; the `write_*` functions build. Every read is bounded by the view: running out of bytes, a
negative length or a varint of more than five bytes raises PeerProtocolError, never anything else.
Positions are byte positions in the view, so that callers can splice instead of re-encoding.
"""

import struct

from protocol.wire.errors import LocalProtocolError, PeerProtocolError

STRING_BYTES_MAX = 32767
"""Kafka's limit for a string, in either form."""

TAGS_MAX = 1000
"""In one tagged section; Kafka's own schemas have fewer than ten."""

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class Cursor:
    """A read position in `view`. Cheap to make; not thread-safe."""

    __slots__ = ("end", "position", "view")

    def __init__(self, view: memoryview, position: int = 0, end: int | None = None) -> None:
        self.view = view
        self.position = position
        self.end = len(view) if end is None else end

    def skip(self, size: int) -> int:
        """Pass so many bytes; return where they begin."""
        start = self.position
        if size < 0 or start + size > self.end:
            raise PeerProtocolError(f"truncated: {size} bytes wanted at {start} of {self.end}")
        self.position = start + size
        return start

    def int8(self) -> int:
        return int(_INT8.unpack_from(self.view, self.skip(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack_from(self.view, self.skip(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack_from(self.view, self.skip(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack_from(self.view, self.skip(8))[0])

    def raw(self, size: int) -> bytes:
        start = self.skip(size)
        return bytes(self.view[start : start + size])

    def uvarint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        if self.position < self.end and (byte := self.view[self.position]) < 0x80:
            self.position += 1
            return byte
        value = 0
        for shift in (0, 7, 14, 21, 28):
            byte = self.view[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF
        raise PeerProtocolError(f"varint longer than five bytes at {self.position - 5}")

    def compact_length(self) -> int:
        """The length of a compact string, bytes or array: -1 for null."""
        return self.uvarint() - 1

    def array_length(self, *, flexible: bool) -> int:
        """Element count, -1 for null; bounded by what is left, as every element takes at least a byte."""
        count = self.uvarint() - 1 if flexible else self.int32()
        if count < -1 or count > self.end - self.position:
            raise PeerProtocolError(f"array of {count} elements in {self.end - self.position} bytes")
        return count

    def present_array_length(self, *, flexible: bool) -> int:
        """Element count of an array that may not be null."""
        count = self.array_length(flexible=flexible)
        if count < 0:
            raise PeerProtocolError(f"null array at {self.position}")
        return count

    def string(self, *, flexible: bool) -> str | None:
        """A nullable string. What is not UTF-8 in it is replaced, as by Java's brokers."""
        size = self.compact_length() if flexible else self.int16()
        if size < 0:
            if size != -1:
                raise PeerProtocolError(f"string of length {size}")
            return None
        return self.raw(size).decode("utf-8", "replace")

    def skip_string(self, *, flexible: bool) -> None:
        """Pass a nullable string unread."""
        size = self.compact_length() if flexible else self.int16()
        if size != -1:
            self.skip(size)

    def skip_tags(self) -> None:
        """Pass a tagged section unread."""
        count = self.uvarint()
        if count > TAGS_MAX:
            raise PeerProtocolError(f"{count} tagged fields in one section at {self.position}")
        for _ in range(count):
            self.uvarint()
            self.skip(self.uvarint())

    def raw_tags(self) -> bytes:
        """A tagged section as it stands on the wire, its count included."""
        start = self.position
        self.skip_tags()
        return bytes(self.view[start : self.position])


def write_uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string(value: str | None, *, flexible: bool) -> bytes:
    """A nullable string.

    Raises:
        LocalProtocolError: longer than Kafka's 32,767 bytes, which hold for the compact form too.
    """
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    raw = value.encode("utf-8")
    if len(raw) > STRING_BYTES_MAX:
        raise LocalProtocolError(f"a string of {len(raw)} bytes")
    return (write_uvarint(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw


def write_array_length(count: int, *, flexible: bool) -> bytes:
    """An array's element count; -1 for null."""
    return write_uvarint(count + 1) if flexible else _INT32.pack(count)
