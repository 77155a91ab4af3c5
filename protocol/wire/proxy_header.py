"""The PROXY protocol's header, versions 1 and 2, sans-IO: whom a balancer has accepted a connection from.

Source: HAProxy's proxy-protocol.txt, sections 2.1 and 2.2.

- Version 1 is one line of text of at most 107 bytes: `PROXY TCP4 192.0.2.1 192.0.2.9 56324 9092` and CR LF, with `TCP6`
  in the same shape, or `PROXY UNKNOWN` and anything up to CR LF.
- Version 2 begins with a signature of 12 bytes; then come version and command, family and transport, the length of
  the rest, addresses (IPv4, IPv6 or UNIX paths) and TLVs. TLVs are taken from the stream and not looked into.
- LOCAL (the balancer's own health check), UNKNOWN, UNSPEC and UNIX name no address: the connection's own one counts.
- What comes behind the header is not touched: the decoder says how many of the bytes that it is shown belong to it.
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from protocol.wire.errors import PeerProtocolError

V1_BYTES_MAX = 107
V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V2_HEAD_BYTES = 16
"""Signature, version and command, family and transport, length of what follows."""

HEADER_BYTES_MAX = 16 * 1024
"""Addresses take 216 bytes at most. TLVs may hold a client's certificate; a balancer's own buffer has this size."""

_KEPT_BYTES_MAX = 536
"""No more is held: version 1 and the addresses of version 2 fit, as the specification promises; TLVs are dropped."""

_V1_START = b"PROXY "
_PORT_MAX = 65535
_LOCAL, _PROXY = 0, 1
_INET, _INET6 = 1, 2
_FAMILIES = range(4)
_TRANSPORTS = range(3)
_STREAM = 1
_ADDRESS_BYTES = {0: 0, _INET: 12, _INET6: 36, 3: 216}
"""By family: both addresses and ports, or both paths."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """What a header says. `source` is the client's address and port; None: it names none."""

    source: tuple[str, int] | None


class ProxyHeaderDecoder:
    """Fed a stream's first bytes until `header` is there."""

    def __init__(self) -> None:
        self.header: ProxyHeader | None = None
        self.taken_bytes = 0
        """How many bytes were taken from the stream."""
        self.kept = bytearray()

    def feed(self, data: bytes) -> int:
        """Take from `data`, which follows what was taken before, what belongs to the header, and say how much that is.

        It is at least one byte, as long as there is no header yet and `data` is not empty.

        Raises:
            PeerProtocolError: this is no header, or one that is too long.
        """
        assert self.header is None, "what follows a header is not its decoder's"
        joined = bytes(self.kept) + data[: _KEPT_BYTES_MAX - len(self.kept)]
        size, is_v2 = _known_size(joined)
        part = data[: size - self.taken_bytes]
        self.kept += part[: _KEPT_BYTES_MAX - len(self.kept)]
        self.taken_bytes += len(part)
        if is_v2 and len(self.kept) >= V2_HEAD_BYTES and self.taken_bytes == size:
            self.header = _decode_v2(bytes(self.kept))
        elif not is_v2 and self.kept.endswith(b"\r\n"):
            self.header = _decode_v1(bytes(self.kept))
        return len(part)


def _known_size(seen: bytes) -> tuple[int, bool]:
    """Return how many of a stream's first bytes are the header's for certain, and whether it is of version 2.

    More than was seen, where more of it must follow.
    """
    if V2_SIGNATURE.startswith(seen[: len(V2_SIGNATURE)]):
        if len(seen) < V2_HEAD_BYTES:
            return V2_HEAD_BYTES, True
        (rest_bytes,) = struct.unpack_from(">H", seen, V2_HEAD_BYTES - 2)
        if V2_HEAD_BYTES + rest_bytes > HEADER_BYTES_MAX:
            raise PeerProtocolError(f"a PROXY header of {V2_HEAD_BYTES + rest_bytes} bytes")
        return V2_HEAD_BYTES + rest_bytes, True
    if not _V1_START.startswith(seen[: len(_V1_START)]):
        raise PeerProtocolError("the connection does not begin with a PROXY header")
    line_end = seen.find(b"\r\n", 0, V1_BYTES_MAX)
    if line_end < 0 and len(seen) >= V1_BYTES_MAX:
        raise PeerProtocolError(f"a PROXY line that does not end within {V1_BYTES_MAX} bytes")
    return (len(seen) if line_end < 0 else line_end + 2), False


def _decode_v1(line: bytes) -> ProxyHeader:
    words = line[:-2].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(None)
    try:
        _, family, source, destination, source_port, destination_port = (word.decode("ascii") for word in words)
        address_of = {"TCP4": IPv4Address, "TCP6": IPv6Address}[family]
        address_of(destination)
        _parse_port(destination_port)
        return ProxyHeader((str(address_of(source)), _parse_port(source_port)))
    except (ValueError, KeyError) as error:
        raise PeerProtocolError("a PROXY line that cannot be read") from error


def _parse_port(text: str) -> int:
    port = int(text) if text.isdigit() and str(int(text)) == text else _PORT_MAX + 1
    if port > _PORT_MAX:
        raise ValueError("a port is a number up to 65535 without leading zeros")
    return port


def _decode_v2(kept: bytes) -> ProxyHeader:
    version, command = divmod(kept[12], 16)
    family, transport = divmod(kept[13], 16)
    (rest_bytes,) = struct.unpack_from(">H", kept, V2_HEAD_BYTES - 2)
    if version != 2 or command not in (_LOCAL, _PROXY):
        raise PeerProtocolError(f"a PROXY header of version {version} with command {command}")
    if command == _LOCAL:
        return ProxyHeader(None)
    if family not in _FAMILIES or transport not in _TRANSPORTS or rest_bytes < _ADDRESS_BYTES[family]:
        raise PeerProtocolError(f"a PROXY header of family {family}, transport {transport}, with {rest_bytes} bytes")
    if transport != _STREAM or family not in (_INET, _INET6):
        return ProxyHeader(None)
    if family == _INET:
        source, _, port, _ = struct.unpack_from(">4s4sHH", kept, V2_HEAD_BYTES)
        return ProxyHeader((str(IPv4Address(source)), port))
    source, _, port, _ = struct.unpack_from(">16s16sHH", kept, V2_HEAD_BYTES)
    return ProxyHeader((str(IPv6Address(source)), port))
