"""The Fetch messages themselves: what an error answer holds, and how topics are distinguished."""

from protocol.fetch.messages import NO_TAGS, FetchPartition, PartitionAnswer, key_of, last_mentions
from tests.support.for_each import for_each


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
