"""The Fetch messages themselves: what an error answer holds, and how topics are told apart."""

import pytest

from protocol.fetch.messages import NO_TAGS, FetchPartition, PartitionAnswer, key_of, last_mentions, topic_key
from protocol.wire.errors import LocalProtocolError
from tests.support.for_each import for_each

TOPIC_ID = bytes(range(16))


def question(topic: str | None, topic_id: bytes | None) -> FetchPartition:
    return FetchPartition(topic, topic_id, 0, -1, 0, -1, -1, 1)


def test_records_are_measured_over_their_buffers() -> None:
    assert PartitionAnswer("t", None, 0, 0, 1, 1, 0, records=(b"abc", memoryview(b"de"))).records_bytes == 5


def test_a_topic_is_named_as_the_version_names_it() -> None:
    both = question("tøpic", TOPIC_ID)

    assert [topic_key(both, version) for version in (4, 12)] == ["tøpic".encode()] * 2
    assert [topic_key(both, version) for version in (13, 18)] == [TOPIC_ID] * 2


def test_the_other_kind_of_name_is_no_name() -> None:
    with pytest.raises(LocalProtocolError, match="topic name"):
        topic_key(question(None, TOPIC_ID), 12)
    for topic_id in (None, b"", TOPIC_ID + b"x"):
        with pytest.raises(LocalProtocolError, match="topic id"):
            topic_key(question("t", topic_id), 13)


def test_of_a_partition_named_twice_the_first_place_and_the_last_wish_count() -> None:
    asked = [FetchPartition("a", None, number, -1, offset, -1, -1, 1) for number, offset in [(0, 5), (1, 6), (0, 7)]]
    assert [(each.partition, each.fetch_offset) for each in last_mentions(asked)] == [(0, 7), (1, 6)]
    assert key_of(asked[0]) == key_of(asked[2]) != key_of(asked[1])


@for_each(
    "tags, expected",
    [
        (NO_TAGS, False),
        (b"\x01\x01\x01\x00", False),
        (b"\x01\x00\x0d" + bytes(13), True),
        (b"\x02\x00\x00\x01\x01\x00", True),
        (b"\x02\x01\x01\x00\x02\x00", False),
    ],
)
def test_a_diverging_epoch_is_a_tag(tags: bytes, expected: bool) -> None:
    answer = PartitionAnswer("a", None, 0, 0, 1, 1, 0, tags=tags)
    assert answer.has_diverging_epoch is expected
