"""What a Fetch response says of partitions is edited as it streams by: every version, in any pieces, and nothing else
changes."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.fetch.messages import NO_TAGS, PartitionAnswer
from protocol.fetch.response import decode_response
from protocol.fetch.walker import edit_partitions
from protocol.wire.errors import PeerProtocolError
from tests.protocol.fetch_frames import UNKNOWN_SECTION, answer_named, encode, every_version
from tests.protocol.test_api_01_fetch_walker import walk
from tests.support.kio_frames import with_length

EDITED_TOPICS = ("a", "b" * 249)
"""By name; by id they are the first letter sixteen times."""

START = 3


class Editor:
    """Edits some topics: OFFSET_OUT_OF_RANGE of even partitions becomes 9, and log starts above START become that."""

    def __init__(self) -> None:
        self.topics: list[bytes | str] = []
        self.asked: list[tuple[bytes | str, int, int, int]] = []

    def begin_topic(self, topic: bytes | str) -> bool:
        self.topics.append(topic)
        return is_edited(topic)

    def edited(self, partition: int, error_code: int, log_start_offset: int) -> tuple[int, int]:
        self.asked.append((self.topics[-1], partition, error_code, log_start_offset))
        return as_edited(partition, error_code, log_start_offset)


def is_edited(topic: bytes | str | None) -> bool:
    return topic in EDITED_TOPICS or topic in [name[:1].encode() * 16 for name in EDITED_TOPICS]


def as_edited(partition: int, error_code: int, log_start_offset: int) -> tuple[int, int]:
    if error_code == 1 and partition % 2 == 0:
        error_code = 9
    return error_code, min(START, log_start_offset)


def answer(topic: str, partition: int, version: int, **more: Any) -> PartitionAnswer:
    return answer_named(version, topic, topic.encode()[:1] * 16, partition, **({"log_start_offset": 50} | more))


def frame_of(answers: list[PartitionAnswer], version: int) -> bytes:
    return encode(version, answers, tags=UNKNOWN_SECTION if version >= 12 else NO_TAGS)


def edited_frame(answers: list[PartitionAnswer], version: int) -> bytes:
    """Return what must come out, made the other way round: edited first, encoded then."""
    edited = []
    for each in answers:
        if is_edited(each.topic or each.topic_id) or each.error_code == 1:
            code, start = as_edited(each.partition, each.error_code, each.log_start_offset)
            each = replace(each, error_code=code, log_start_offset=start)
        edited.append(each)
    return frame_of(edited, version)


def varied(version: int) -> list[PartitionAnswer]:
    more = {"tags": UNKNOWN_SECTION} if version >= 12 else {}
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
    """As the frame streams by, in any pieces, and where it is held whole."""
    frame, expected = frame_of(varied(version), version), edited_frame(varied(version), version)
    editor, held = Editor(), bytearray(frame)

    assert walk(frame, [], version, editor) == expected
    assert walk(frame, [1] * len(frame), version, Editor()) == expected
    edit_partitions(memoryview(held), version, Editor())
    assert bytes(held) == expected
    codes = [each.error_code for each in decode_response(memoryview(held), version).partitions]
    assert codes == [0, 1, 9, 6, 0, 0, 9, 9, 0, 0]

    others = [asked for asked in editor.asked if asked[0] in ("c", "d", b"c" * 16, b"d" * 16)]
    assert [(partition, code) for _, partition, code, _ in others] == [(2, 1)], "only what is out of range is looked at"
    assert len(editor.asked) == len({(topic, partition) for topic, partition, _, _ in editor.asked}) == 8
    empty = frame_of([], version)
    assert walk(empty, [3], version, Editor()) == empty


@every_version
def test_bad_structure_is_the_peers_error(version: int) -> None:
    frame = frame_of(varied(version), version)
    for bad in (frame[:-3], with_length(frame[4:] + b"extra")):
        with pytest.raises(PeerProtocolError):
            edit_partitions(memoryview(bytearray(bad)), version, Editor())


def test_a_name_that_is_none_is_the_peers_error() -> None:
    frame = bytearray(frame_of([answer("a", 0, 11)], 11))
    at = frame.index(b"\x00\x01a") + 2
    frame[at] = 0xFF
    with pytest.raises(PeerProtocolError, match="UTF-8"):
        edit_partitions(memoryview(frame), 11, Editor())
