import itertools

from tools.demo.reading import Headers, Reading, TopicDigest

Fields = tuple[int, int, bytes | None, bytes | None, Headers]

RECORD: Fields = (0, 7, b"key", b"value", [("name", b"content")])


def digest_of(*records: Fields) -> str:
    digest = TopicDigest({0: 0, 1: 0})
    for record in records:
        digest.add(*record)
    return digest.hexdigest()


OTHERS: list[Fields] = [
    (1, 7, b"key", b"value", [("name", b"content")]),
    (0, 8, b"key", b"value", [("name", b"content")]),
    (0, 7, b"keyv", b"alue", [("name", b"content")]),
    (0, 7, b"key", b"valu", [("name", b"content")]),
    (0, 7, None, b"value", [("name", b"content")]),
    (0, 7, b"key", b"value", []),
    (0, 7, b"key", b"value", [("namec", b"ontent")]),
    (0, 7, b"key", b"value", [("name", None)]),
    (0, 7, b"key", b"value", [("name", b"content"), ("name", b"content")]),
]


def test_the_digest_sees_every_field() -> None:
    assert digest_of(RECORD) == digest_of(RECORD)
    for other in OTHERS:
        assert digest_of(other) != digest_of(RECORD), other


def test_null_and_empty_are_different() -> None:
    assert len({digest_of((0, 0, key, value, [])) for key, value in itertools.product((None, b""), repeat=2)}) == 4


def test_partitions_may_come_in_any_order_but_offsets_may_not() -> None:
    first, second, other = (0, 0, b"a", None, ()), (0, 1, b"b", None, ()), (1, 0, b"c", None, ())
    assert digest_of(first, second, other) == digest_of(other, first, second)
    assert digest_of(first, second) != digest_of(second, first)


def test_a_record_read_twice_or_not_at_all_changes_the_digest() -> None:
    assert len({digest_of(), digest_of(RECORD), digest_of(RECORD, RECORD)}) == 3


def test_records_below_the_local_log_start_are_counted() -> None:
    digest = TopicDigest({0: 2, 1: 0})
    for offset in range(5):
        digest.add(0, offset, b"k", b"vv", [("h", b"xyz"), ("", None)])
        digest.add(1, offset, None, None, ())
    assert (digest.records, digest.records_only_in_tier) == (10, 2)
    assert digest.record_bytes == 5 * (1 + 2 + 1 + 3)


def test_speed_is_in_megabytes_of_records() -> None:
    reading = Reading(records=1, records_only_in_tier=0, record_bytes=3_000_000, seconds=2.0, digest="")
    assert reading.megabytes_per_s == 1.5
