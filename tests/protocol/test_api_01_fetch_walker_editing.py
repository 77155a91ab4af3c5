"""What a Fetch response says of partitions is edited as it streams by: every version, in any pieces, and nothing else
changes."""

import struct
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fetch.messages import NO_TAGS, PartitionAnswer
from protocol.fetch.response import decode_response, encode_response
from protocol.fetch.walker import STEP_BYTES, FetchResponseWalker, edit_partitions
from protocol.wire.errors import PeerProtocolError

VERSIONS = range(4, 19)
every_version = pytest.mark.parametrize("version", VERSIONS)

EDITED_TOPICS = ("a", "b" * 249)
"""By name; by id they are the first letter sixteen times."""

START = 3


class Editor:
    """Of some topics: OFFSET_OUT_OF_RANGE of even partitions becomes 9, and log starts above START become that."""

    def __init__(self) -> None:
        self.topics: list[bytes | str] = []
        self.asked: list[tuple[bytes | str, int, int, int]] = []

    def begin_topic(self, topic: bytes | str) -> bool:
        self.topics.append(topic)
        return topic in EDITED_TOPICS or topic in [name[:1].encode() * 16 for name in EDITED_TOPICS]

    def edited(self, partition: int, error_code: int, log_start_offset: int) -> tuple[int, int]:
        self.asked.append((self.topics[-1], partition, error_code, log_start_offset))
        return as_edited(partition, error_code, log_start_offset)


def as_edited(partition: int, error_code: int, log_start_offset: int) -> tuple[int, int]:
    if error_code == 1 and partition % 2 == 0:
        error_code = 9
    return error_code, min(START, log_start_offset)


def answer(topic: str, partition: int, version: int, **more: object) -> PartitionAnswer:
    by_id = version >= 13
    made = PartitionAnswer(
        None if by_id else topic, topic.encode()[:1] * 16 if by_id else None, partition, 0, 70, 60, 50
    )
    if version < 5:
        made.log_start_offset = -1
    for name, value in more.items():
        setattr(made, name, value)
    return made


def frame_of(answers: list[PartitionAnswer], version: int) -> bytes:
    tags = b"\x01\x63\x03abc" if version >= 12 else NO_TAGS
    session_id = 77 if version >= 7 else 0
    buffers = encode_response(
        version, 5, throttle_time_ms=1, error_code=0, session_id=session_id, answers=answers, tags=tags
    )
    return b"".join(buffers)


def edited_frame(answers: list[PartitionAnswer], version: int) -> bytes:
    """What must come out, made the other way round: edited first, encoded then."""
    edited = []
    for each in answers:
        is_edited = each.topic in EDITED_TOPICS or each.topic_id in [name[:1].encode() * 16 for name in EDITED_TOPICS]
        if is_edited or each.error_code == 1:
            code, start = as_edited(each.partition, each.error_code, each.log_start_offset)
            each = replace(each, error_code=code, log_start_offset=start)
        edited.append(each)
    return frame_of(edited, version)


def walk(frame: bytes, pieces: Iterable[int], version: int, editor: Editor) -> bytes:
    walker = FetchResponseWalker(version, rename=False, editor=editor)
    held, out, position = bytearray(), bytearray(), 0
    for size in [*pieces, len(frame)]:
        held += frame[position : position + size]
        position = min(position + size, len(frame))
        view = memoryview(held)
        passed = walker.feed(view)
        out += view[:passed]
        view.release()
        del held[:passed]
        assert len(held) < STEP_BYTES
    assert walker.done
    return bytes(out)


def varied(version: int) -> list[PartitionAnswer]:
    more = {"tags": b"\x01\x63\x03abc"} if version >= 12 else {}
    return [
        answer("a", 0, version),
        answer("a", 1, version, error_code=1, log_start_offset=-1),
        answer("a", 2, version, error_code=1, log_start_offset=-1),
        answer("a", 3, version, error_code=6),
        answer("a", 4, version, aborted_transactions=[(1, 2)] * 40, records=(b"\x00\x01" * 900,)),
        answer("c", 0, version),
        answer("c", 2, version, error_code=1, log_start_offset=-1, **more),
        answer("b" * 249, 6, version, error_code=1, log_start_offset=-1, **more),
        answer("b" * 249, 7, version, aborted_transactions=[], records=(b"r" * 70,), **more),
        answer("d", 0, version, records_are_null=True),
    ]


@every_version
def test_error_codes_and_log_starts_are_edited_in_place(version: int) -> None:
    frame, editor = frame_of(varied(version), version), Editor()

    found = walk(frame, [], version, editor)

    assert found == edited_frame(varied(version), version)
    codes = [each.error_code for each in decode_response(memoryview(found), version).partitions]
    assert codes == [0, 1, 9, 6, 0, 0, 9, 9, 0, 0]


@every_version
def test_byte_by_byte(version: int) -> None:
    frame = frame_of(varied(version), version)

    assert walk(frame, [1] * len(frame), version, Editor()) == edited_frame(varied(version), version)


@every_version
def test_of_other_topics_only_what_is_out_of_range_is_looked_at(version: int) -> None:
    editor = Editor()
    walk(frame_of(varied(version), version), [], version, editor)

    others = [asked for asked in editor.asked if asked[0] in ("c", "d", b"c" * 16, b"d" * 16)]
    assert [(partition, code) for _, partition, code, _ in others] == [(2, 1)]
    assert len(editor.asked) == len({(topic, partition) for topic, partition, _, _ in editor.asked}) == 8


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, list[PartitionAnswer]]:
    version = draw(st.sampled_from(VERSIONS))
    made = st.builds(
        lambda topic, partition, code, start, aborted, records: answer(
            topic,
            partition,
            version,
            error_code=code,
            log_start_offset=start if version >= 5 else -1,
            aborted_transactions=aborted,
            records=records,
        ),
        st.sampled_from([*EDITED_TOPICS, "c", "é" * 60]),
        st.integers(0, 2**31 - 1),
        st.sampled_from([0, 0, 0, 1, 1, 6, -1, 257]),
        st.integers(-1, 2**62),
        st.none() | st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=5),
        st.lists(st.binary(min_size=1, max_size=200), max_size=2),
    )
    answers = draw(st.lists(made, max_size=8))
    # As a broker has them: the partitions of a topic stand together.
    return version, sorted(answers, key=lambda each: (each.topic or "", each.topic_id or b""))


@given(responses(), st.lists(st.integers(1, 300), max_size=40))
def test_any_split_of_any_response(response: tuple[int, list[PartitionAnswer]], pieces: list[int]) -> None:
    version, answers = response
    assert walk(frame_of(answers, version), pieces, version, Editor()) == edited_frame(answers, version)


@every_version
def test_a_frame_that_is_held_is_edited_as_well(version: int) -> None:
    frame = bytearray(frame_of(varied(version), version))

    edit_partitions(memoryview(frame), version, Editor())

    assert bytes(frame) == edited_frame(varied(version), version)


@every_version
def test_a_whole_answer_without_partitions_passes(version: int) -> None:
    frame = frame_of([], version)

    assert walk(frame, [3], version, Editor()) == frame


@every_version
def test_bad_structure_is_the_peers_error(version: int) -> None:
    frame = bytearray(frame_of(varied(version), version))
    with pytest.raises(PeerProtocolError):
        edit_partitions(memoryview(frame[:-3]), version, Editor())
    longer = struct.pack(">i", len(frame) - 4 + 5) + bytes(frame[4:]) + b"extra"
    with pytest.raises(PeerProtocolError):
        edit_partitions(memoryview(bytearray(longer)), version, Editor())


def test_a_name_that_is_none_is_the_peers_error() -> None:
    frame = bytearray(frame_of([answer("a", 0, 11)], 11))
    at = frame.index(b"\x00\x01a") + 2
    frame[at] = 0xFF
    with pytest.raises(PeerProtocolError, match="UTF-8"):
        edit_partitions(memoryview(frame), 11, Editor())
