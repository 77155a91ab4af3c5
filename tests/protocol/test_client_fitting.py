"""What brokers may send, before kio sees it: sizes that do not fit, tagged fields that nobody knows, and noise.

How it failed: an array of 2^32 - 2 entries had kio reserve 275 GB, and the process ended by SIGABRT without a line; the
first broker with a new tagged field would have been refused as a whole.
"""

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio import index

from protocol.client.errors import UpstreamProtocolError
from protocol.client.fitting import fitted
from protocol.client.groups import DESCRIBE_GROUPS, FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from protocol.client.messages import APIS, DESCRIBE_PRODUCERS, FETCH, Api, decode_response
from protocol.fetch.response import decode_response as decode_fetch_response
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import write_uvarint
from tests.support import kio_frames
from tests.support.cases import case
from tests.support.for_each import for_each

ALL_APIS = (*APIS, DESCRIBE_PRODUCERS, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS)
MEMORY_BYTES_MAX = 1024 * 1024
"""For a frame of some hundred bytes."""


def versions(api: Api) -> range:
    return range(api.version_min, api.version_max + 1)


def frame_of(api: Api, version: int, *, unknown_tag: bool = False) -> bytes:
    """Without its length; every array has entries where the sample has."""
    entity_type = kio_frames.schema(api.key, version, unknown_tag=unknown_tag)
    body = kio_frames.encode(kio_frames.fill(entity_type, {}))
    plain: Any = index.load_response_schema(api.key, version)
    tags = b"" if not plain.__header_schema__.__flexible__ else kio_frames.TAGGED_HEADER if unknown_tag else b"\0"
    return struct.pack(">i", 1) + tags + body


@for_each("api", ALL_APIS)
def test_what_is_whole_passes_as_it_is(api: Api) -> None:
    for version in versions(api):
        frame, entity = frame_of(api, version), index.load_response_schema(api.key, version)
        header: Any = entity.__header_schema__
        with case(version):
            assert fitted(frame, header, entity) is frame


@for_each("api", ALL_APIS)
def test_unknown_tagged_fields_are_skipped_everywhere(api: Api) -> None:
    for version in versions(api):
        with case(version):
            tagged, plain = frame_of(api, version, unknown_tag=True), frame_of(api, version)
            if api is FETCH:
                told = decode_fetch_response(memoryview(bytes(4) + tagged), version)
                assert len(told.partitions) == len(
                    decode_fetch_response(memoryview(bytes(4) + plain), version).partitions
                )
            else:
                assert decode_response(api, version, tagged, "b") == decode_response(api, version, plain, "b")


@for_each("api", ALL_APIS)
def test_no_length_is_believed_that_does_not_fit(api: Api) -> None:
    """At every position, be it a length or not, and in both forms of a length."""
    for version in versions(api):
        frame = frame_of(api, version)
        for position in range(4, len(frame)):
            for large, replaced in ((b"\xfe\xff\xff\xff\x0f", 1), (b"\x7f\xff\xff\xff", 4), (b"\x7f\xff", 2)):
                changed = frame[:position] + large + frame[position + replaced :]
                with case(version, position, large):
                    read_or_refused(api, version, changed)


def read_or_refused(api: Api, version: int, frame: bytes) -> None:
    try:
        if api is FETCH:
            decode_fetch_response(memoryview(bytes(4) + frame), version)
        else:
            decode_response(api, version, frame, "b")
    except (UpstreamProtocolError, PeerProtocolError):
        pass


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Api, int, bytes]:
    api = draw(st.sampled_from(ALL_APIS))
    version = draw(st.sampled_from(versions(api)))
    frame = bytearray(frame_of(api, version, unknown_tag=draw(st.booleans())))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(4, len(frame)))
        piece = draw(st.binary(max_size=5) | st.integers(0, 2**32 - 1).map(write_uvarint))
        frame[at : at + draw(st.integers(0, 8))] = piece
    return api, version, bytes(frame)


@given(changed=mutated())
def test_any_change_is_read_or_refused_in_bounded_memory(changed: tuple[Api, int, bytes]) -> None:
    tracemalloc.start()
    try:
        read_or_refused(*changed)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_an_array_is_measured_by_the_least_size_of_its_entries() -> None:
    """Nothing is reserved for 30 entries of 26 bytes in 100 bytes, though each might be one byte long."""
    metadata: Any = index.load_response_schema(3, 13)
    with pytest.raises(PeerProtocolError, match="30 entries of 11 bytes or more in 90 bytes"):
        fitted(bytes(4) + b"\x1f" + bytes(90), metadata)
