"""The PROXY header: what it names, and that nothing behind it is taken, in whatever pieces it comes."""

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.errors import PeerProtocolError
from protocol.wire.proxy_header import HEADER_BYTES_MAX, V1_BYTES_MAX, V2_SIGNATURE, ProxyHeader, ProxyHeaderDecoder
from tests.support.cases import case
from tests.support.for_each import for_each

BEHIND = b"\x16\x03\x01 or a request\r\n"
PORTS = st.integers(0, 65535)


def v2(command: int, family: int, rest: bytes, *, version: int = 2) -> bytes:
    return V2_SIGNATURE + bytes((version * 16 + command, family)) + struct.pack(">H", len(rest)) + rest


def v1_of(source: str, port: int) -> bytes:
    family, other = ("TCP6", "2001:db8::9") if ":" in source else ("TCP4", "192.0.2.9")
    return f"PROXY {family} {source} {other} {port} 9092\r\n".encode()


def v2_of(source: str, port: int, tlvs: bytes = b"") -> bytes:
    if ":" in source:
        return v2(1, 0x21, IPv6Address(source).packed * 2 + struct.pack(">HH", port, 9092) + tlvs)
    return v2(1, 0x11, IPv4Address(source).packed * 2 + struct.pack(">HH", port, 9092) + tlvs)


def decoded(stream: bytes, pieces: list[int]) -> tuple[ProxyHeader | None, bytes]:
    """The header, and what is left, when a shell shows the decoder pieces of these sizes, over and over."""
    decoder, left, turn = ProxyHeaderDecoder(), stream, 0
    while left and decoder.header is None:
        taken = decoder.feed(left[: pieces[turn % len(pieces)]])
        assert taken > 0
        left, turn = left[taken:], turn + 1
    assert decoder.taken_bytes == len(stream) - len(left)
    return decoder.header, left


PIECES = st.lists(st.integers(1, 700), min_size=1, max_size=5)


@given(st.ip_addresses(), PORTS, st.binary(max_size=2000), PIECES, st.booleans())
def test_the_source_comes_back_and_what_follows_is_left(
    source: IPv4Address | IPv6Address, port: int, tlvs: bytes, pieces: list[int], is_v2: bool
) -> None:
    header = v2_of(str(source), port, tlvs) if is_v2 else v1_of(str(source), port)
    assert decoded(header + BEHIND, pieces) == (ProxyHeader((str(source), port)), BEHIND)


@given(
    st.sampled_from(
        [
            b"PROXY UNKNOWN\r\n",
            b"PROXY UNKNOWN ffff::1 anything 1 2\r\n",
            v2(0, 0x00, b""),
            v2(0, 0x11, b"\1" * 12 + b"tlv"),
            v2(0, 0xFF, b"what it likes"),
            v2(1, 0x00, b"tlvs"),
            v2(1, 0x12, b"\1" * 12),
            v2(1, 0x31, b"/run/balancer".ljust(108, b"\0") * 2),
        ]
    ),
    PIECES,
)
def test_a_header_may_name_nobody(header: bytes, pieces: list[int]) -> None:
    assert decoded(header + BEHIND, pieces) == (ProxyHeader(None), BEHIND)


def test_the_longest_of_both_versions_are_taken() -> None:
    longest_v1 = b"PROXY UNKNOWN ".ljust(V1_BYTES_MAX - 2, b"x") + b"\r\n"
    assert decoded(longest_v1 + BEHIND, [1]) == (ProxyHeader(None), BEHIND)
    longest_v2 = v2(0, 0, bytes(HEADER_BYTES_MAX - 16))
    assert decoded(longest_v2 + BEHIND, [400]) == (ProxyHeader(None), BEHIND)


@for_each(
    "stream",
    [
        b"\0\0\0\x14\0\x12\0\4",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
        b"PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n",
        b"PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 -1 2\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 65536 2\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 70000\r\n",
        b"PROXY TCP4 ::1 ::2 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY TCP6 ::1 ::\xff 1 2\r\n",
        b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY UNKNOWN".ljust(V1_BYTES_MAX, b"x") + b"\r\n",
        V2_SIGNATURE[:-1] + b"\r\r\n",
        v2(1, 0x11, b"\1" * 12, version=1),
        v2(2, 0x11, b"\1" * 12),
        v2(1, 0x11, b"\1" * 11),
        v2(1, 0x21, b"\1" * 35),
        v2(1, 0x31, b"\1" * 215),
        v2(1, 0x41, b"\1" * 216),
        v2(1, 0x13, b"\1" * 12),
        v2(1, 0x11, bytes(HEADER_BYTES_MAX - 15)),
    ],
)
def test_what_is_no_header_is_refused(stream: bytes) -> None:
    for piece_bytes in (1, 700):
        with case(piece_bytes), pytest.raises(PeerProtocolError, match="PROXY"):
            decoded(stream, [piece_bytes])


def test_no_more_is_held_than_addresses_need() -> None:
    decoder = ProxyHeaderDecoder()
    stream = v2_of("192.0.2.1", 1, bytes(HEADER_BYTES_MAX - 28))
    while decoder.header is None:
        decoder.feed(stream[decoder.taken_bytes : decoder.taken_bytes + 700])
        assert len(decoder.kept) <= 536
    assert decoder.header == ProxyHeader(("192.0.2.1", 1))
