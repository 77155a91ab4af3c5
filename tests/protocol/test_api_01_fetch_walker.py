"""Fetch responses that stream by: in any pieces, only the number of the endpoints field changes."""

import struct
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fetch.messages import NO_TAGS, PartitionAnswer
from protocol.fetch.response import decode_response
from protocol.fetch.walker import (
    STEP_BYTES,
    UNUSED_TAG,
    FetchResponseWalker,
    PartitionEditor,
    RecordDropper,
    find_nodes,
    locate,
    rewrite_endpoints,
)
from protocol.wire.endpoints import NodeAddress
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import write_uvarint
from tests.protocol import fetch_frames
from tests.protocol.fetch_frames import UNKNOWN_FIELD, UNKNOWN_SECTION
from tests.support.cases import case
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_read_or_refused_when_changed
from tests.support.kio_frames import with_length

VERSIONS = [16, 17, 18]
every_version = for_each("version", VERSIONS)

NODES = [NodeAddress(3, "kafka-3.internal", 9092), NodeAddress(11, "k", 1)]


def endpoints_of(nodes: Iterable[NodeAddress]) -> bytes:
    """The content of the NodeEndpoints field."""
    entries = [
        struct.pack(">i", node.node_id)
        + write_uvarint(len(node.host) + 1)
        + node.host.encode()
        + struct.pack(">i", node.port)
        + b"\x05rack\x00"
        for node in nodes
    ]
    return write_uvarint(len(entries) + 1) + b"".join(entries)


def endpoints_field(nodes: Iterable[NodeAddress], tag: bytes = b"\x00") -> bytes:
    content = endpoints_of(nodes)
    return tag + write_uvarint(len(content)) + content


WITH_ENDPOINTS = b"\x02" + endpoints_field(NODES) + UNKNOWN_FIELD
TAG_SECTIONS = [NO_TAGS, UNKNOWN_SECTION, WITH_ENDPOINTS]


answer = partial(fetch_frames.answer, 17)


def frame_of(answers: list[PartitionAnswer], tags: bytes, version: int = 17, *, header_tags: bytes = NO_TAGS) -> bytes:
    frame = fetch_frames.encode(version, answers, tags=tags)
    return with_length(frame[4:8] + header_tags + frame[9:])


def renamed(frame: bytes, tags: bytes) -> bytes:
    """Return what must come out: the same bytes with another number in the endpoints field, when there is one."""
    if tags != WITH_ENDPOINTS:
        return frame
    position = len(frame) - len(tags) + 1
    return frame[:position] + bytes([UNUSED_TAG]) + frame[position + 1 :]


def walk(
    frame: bytes,
    pieces: Iterable[int],
    version: int = 17,
    editor: PartitionEditor | None = None,
    *,
    is_fed_all: bool = True,
) -> bytes:
    """Feed the frame in pieces of these sizes, then the rest, or of each piece what the walker wants to see; what it
    let through, in order."""
    walker = FetchResponseWalker(version, rename=editor is None, editor=editor)
    held, out, position = bytearray(), bytearray(), 0
    for size in [*pieces, len(frame)]:
        if not is_fed_all and not held:
            unseen_bytes = min(size, walker.unseen_bytes)
            out += frame[position : position + unseen_bytes]
            position += unseen_bytes
            walker.pass_unseen(unseen_bytes)
        held += frame[position : position + size]
        position = min(position + size, len(frame))
        view = memoryview(held)
        passed = walker.feed(view)
        out += view[:passed]
        view.release()
        del held[:passed]
        assert len(held) < STEP_BYTES
        assert walker.done == (len(out) == len(frame))
    assert walker.done
    return bytes(out)


VARIED = [
    answer(1, 0),
    answer(1, 1, records=(b"r" * 150,), aborted_transactions=[(1, 2), (3, 4)]),
    answer(1, 2, aborted_transactions=[(number, number) for number in range(200)], records=(b"\xff" * 3000,)),
    answer(2, 0, aborted_transactions=[], records=(b"\x00" * 20000,), tags=UNKNOWN_SECTION),
    answer(3, 0, records_are_null=True, topic_tags=b"\x02" + UNKNOWN_FIELD + b"\x64\x80\x01" + bytes(128)),
    answer(4, 0),
]

some_tags = st.sampled_from([NO_TAGS, UNKNOWN_SECTION])
some_answers = st.builds(
    answer,
    st.integers(1, 2),
    st.integers(0, 9),
    high_watermark=st.integers(-1, 2**62),
    aborted_transactions=st.none() | st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 9)), max_size=8),
    records=st.lists(st.binary(min_size=1, max_size=300), max_size=2),
    tags=some_tags,
    topic_tags=some_tags,
)


@for_each("version, tags, header_tags", product(VERSIONS, TAG_SECTIONS, (NO_TAGS, b"\x02" + UNKNOWN_FIELD * 2)))
def test_a_response_passes_with_its_endpoints_renamed(version: int, tags: bytes, header_tags: bytes) -> None:
    frame = frame_of(VARIED, tags, version, header_tags=header_tags)
    assert walk(frame, [], version) == renamed(frame, tags)
    if header_tags == NO_TAGS and version == 17:
        assert walk(frame, [1] * len(frame)) == renamed(frame, tags), "byte by byte"


@given(st.lists(some_answers, max_size=8), st.sampled_from(TAG_SECTIONS), st.lists(st.integers(1, 400), max_size=40))
def test_any_split(answers: list[PartitionAnswer], tags: bytes, pieces: list[int]) -> None:
    frame = frame_of(answers, tags)

    assert walk(frame, pieces) == renamed(frame, tags)
    assert walk(frame, pieces, is_fed_all=False) == renamed(frame, tags)


def test_huge_records_and_many_partitions_pass_as_they_come() -> None:
    records = memoryview(b"\x00\xff" * (4 << 20))
    huge = [answer(1, 0, records=(records,)), answer(1, 1)] * 2
    many = [answer(number % 7, number) for number in range(3000)]
    for answers, piece_bytes in ((huge, 256 * 1024), (many, 1000)):
        frame = frame_of(answers, WITH_ENDPOINTS)
        assert walk(frame, [piece_bytes] * (len(frame) // piece_bytes)) == renamed(frame, WITH_ENDPOINTS)


def test_bytes_of_the_next_frame_are_not_touched() -> None:
    frame = frame_of(VARIED, WITH_ENDPOINTS)
    walker = FetchResponseWalker(17)

    assert walker.feed(memoryview(bytearray(frame + b"next" * 100))) == len(frame)
    assert walker.done


def test_a_padded_number_is_recognised() -> None:
    """A varint may take more bytes than it needs; a client would read this one as 0 all the same."""
    tags = b"\x01" + endpoints_field(NODES, tag=b"\x80\x00")
    frame = frame_of([answer(1, 0)], tags)

    out = walk(frame, [])

    assert out[-len(tags) :] == b"\x01\xff\x00" + tags[3:]
    assert decode_response(memoryview(out), 17).tags == out[-len(tags) :]


def test_nonsense_is_the_peers_error_wherever_it_stands() -> None:
    frame = frame_of(VARIED[:2] + VARIED[3:], WITH_ENDPOINTS)
    ends = [*range(8, 250), *range(len(frame) - 300, len(frame))]
    assert_read_or_refused_when_changed(lambda view: walk(bytes(view), [97] * 5), frame, ends)


def test_a_frame_shorter_or_longer_than_its_content_is_the_peers_error() -> None:
    frame = frame_of([answer(1, 0), answer(1, 1, records=(b"r" * 10,))], WITH_ENDPOINTS)
    for size in range(8, len(frame)):
        with case(size), pytest.raises(PeerProtocolError):
            walk(with_length(frame[4:size]), [])
    with pytest.raises(PeerProtocolError, match="after the end"):
        walk(with_length(frame[4:] + b"\x00"), [])
    for length in (-1, -(2**31), 0, 3):
        with case(length), pytest.raises(PeerProtocolError):
            walk(struct.pack(">i", length) + frame[4:], [])


def test_hostile_counts_of_topics_are_refused() -> None:
    for count in (b"\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01"):
        with case(count), pytest.raises(PeerProtocolError):
            walk(with_length(struct.pack(">i", 5) + b"\x00" + bytes(10) + count + bytes(200)), [])


def test_a_varint_that_never_ends_is_refused_where_partitions_pass_quickly() -> None:
    frame = bytearray(frame_of([answer(1, 0), *[answer(1, 1)] * 5], NO_TAGS))
    position = frame.index(fetch_frames.id_of(1).bytes) + 16 + 1 + 35
    frame[position : position + 5] = b"\x81\x80\x80\x80\x80"
    with pytest.raises(PeerProtocolError):
        walk(bytes(frame), [])


@every_version
def test_held_frames_name_nodes_and_get_addresses_that_are_not_withheld(version: int) -> None:
    frame = frame_of(VARIED, WITH_ENDPOINTS, version)
    assert find_nodes(memoryview(frame), version) == NODES
    addresses = {3: ("edge.example.org", 19095), 11: ("x" * 200, 19103)}
    for shown in ({3, 11}, {3}, set[int]()):
        advertised = {node_id: address for node_id, address in addresses.items() if node_id in shown}
        moved = [NodeAddress(node_id, *address) for node_id, address in advertised.items()]
        expected = frame_of(VARIED, b"\x02" + endpoints_field(moved) + UNKNOWN_FIELD, version)
        assert rewrite_endpoints(memoryview(frame), version, advertised) == expected


@for_each("tags", TAG_SECTIONS[:2])
def test_held_frames_without_endpoints_stay_as_they_are(tags: bytes) -> None:
    frame = frame_of(VARIED, tags)

    assert locate(memoryview(frame), 17).sites == ()
    assert find_nodes(memoryview(frame), 17) == []
    assert rewrite_endpoints(memoryview(frame), 17, {}) == frame
    assert rewrite_endpoints(memoryview(b"not looked at"), 15, {}) == b"not looked at"


def test_held_frames_may_be_read_only_and_are_checked() -> None:
    frame = frame_of(VARIED[:1], WITH_ENDPOINTS)
    for size in range(8, len(frame)):
        with pytest.raises(PeerProtocolError):
            find_nodes(memoryview(with_length(frame[4:size])), 17)
        with pytest.raises(PeerProtocolError, match="not the frame"):
            find_nodes(memoryview(frame)[:size], 17)
    with pytest.raises(PeerProtocolError, match="not the frame"):
        find_nodes(memoryview(frame + b"\x00"), 17)


# --- without records for which there is no room ---


@given(st.data())
def test_in_any_pieces_only_records_beyond_the_room_are_left_out(data: st.DataObject) -> None:
    version = data.draw(st.integers(4, 18))
    aborted = st.none() | st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 9)), max_size=8)
    records = st.lists(st.binary(min_size=1, max_size=300), max_size=2)
    made = st.builds(
        partial(fetch_frames.answer, version),
        st.integers(1, 2),
        st.integers(0, 9),
        aborted_transactions=aborted,
        records=records,
    )
    answers = data.draw(st.lists(made, max_size=5))
    frame = fetch_frames.encode(version, answers)
    room = data.draw(st.integers(0, 200))
    dropper, position = RecordDropper(version, room), 0
    buffer = bytearray()
    while position < len(frame):
        size = data.draw(st.integers(1, len(frame)))
        buffer += frame[position : position + size]
        position += size
        while buffer and (passed := dropper.feed(memoryview(buffer))):
            buffer = buffer[passed:]
    assert dropper.done
    expected = []
    for answer, dropped in zip(decode_response(memoryview(frame), version).partitions, dropper.dropped, strict=True):
        fits = answer.records_bytes <= room
        assert dropped == (0 if fits else answer.records_bytes)
        room -= answer.records_bytes if fits else 0
        expected.append(answer if fits else replace(answer, records=()))
    kept = decode_response(dropper.frame, version).partitions
    assert [*map(plain, kept)] == [*map(plain, expected)]


def plain(answer: PartitionAnswer) -> PartitionAnswer:
    return replace(answer, records=[b"".join(answer.records)])
