"""The oracle answers, and in the shapes that its header promises."""

import pytest

from tests.support.oracle import Answer, Oracle

SEGMENT = {
    "kind": "segment",
    "topic": "orders",
    "topic_id": "dFZlbnRvLTEyMy1hYmNkZQ",
    "partition": 3,
    "segment_id": "AAECAwQFBgcICQoLDA0ODw",
    "start_offset": 100,
    "end_offset": 199,
    "max_timestamp_ms": 1_700_000_000_123,
    "broker_id": 7,
    "event_timestamp_ms": 1_700_000_001_000,
    "segment_size_bytes": 1_048_576,
    "segment_leader_epochs": [[0, 100], [2, 150]],
    "state": 0,
    "custom_metadata": "0aff",
    "txn_index_empty": True,
}
_UPDATE_FIELDS = ("topic", "topic_id", "partition", "segment_id", "event_timestamp_ms", "broker_id", "custom_metadata")
UPDATE = {"kind": "update", "state": 1, **{name: SEGMENT[name] for name in _UPDATE_FIELDS}}
_DELETE_FIELDS = ("topic", "topic_id", "partition", "event_timestamp_ms", "broker_id")
PARTITION_DELETE = {"kind": "partition_delete", "state": 2, **{name: SEGMENT[name] for name in _DELETE_FIELDS}}
SNAPSHOT = {
    **{name: value for name, value in SEGMENT.items() if name not in ("topic", "topic_id", "partition")},
    "kind": "snapshot",
}


@pytest.mark.parametrize("record", [SEGMENT, UPDATE, PARTITION_DELETE, SNAPSHOT], ids=lambda record: record["kind"])
def test_every_kind_of_metadata_record_survives_encode_and_decode(oracle: Oracle, record: Answer) -> None:
    (encoded,) = oracle.ask([{"do": "encode", **record}])
    (decoded,) = oracle.ask([{"do": "decode", **encoded}])
    assert decoded == record


def test_metadata_partition_is_the_one_that_a_broker_chose(oracle: Oracle) -> None:
    asked = {"do": "metadata_partition", "topic_id": "dFZlbnRvLTEyMy1hYmNkZQ", "partition": 3}
    answers = oracle.ask([{**asked, "count": count} for count in (50, 5, 3)])
    assert [answer["metadata_partition"] for answer in answers] == [41, 1, 1]


@pytest.mark.parametrize(
    ("name", "entries", "entry_bytes"),
    [
        ("offset_index", [[110, 4096], [120, 8200]], 8),
        ("time_index", [[1_700_000_000_000, 110], [1_700_000_000_010, 120]], 12),
        ("transaction_index", [[1, 6000, 6820, 6821]], 34),
        ("leader_epochs", [[0, 100], [2, 150]], None),
        (
            "producer_snapshot",
            [[1000, 0, 41, 4242, 9, 1_700_000_000_000, 3, -1], [1001, 1, 0, 4243, 0, 5, 0, 4243]],
            None,
        ),
    ],
)
def test_every_kind_of_file_survives_write_and_read(
    oracle: Oracle, name: str, entries: list[list[int]], entry_bytes: int | None
) -> None:
    (written,) = oracle.ask([{"do": f"write_{name}", "base_offset": 100, "entries": entries}])
    (read,) = oracle.ask([{"do": f"read_{name}", "base_offset": 100, **written}])
    assert sorted(read["entries"]) == sorted(entries)
    if entry_bytes is not None:
        assert len(written["hex"]) == 2 * entry_bytes * len(entries)


def test_lookups_find_the_entry_at_or_below_the_target(oracle: Oracle) -> None:
    (written,) = oracle.ask([{"do": "write_offset_index", "base_offset": 100, "entries": [[110, 4096], [120, 8200]]}])
    (read,) = oracle.ask([{"do": "read_offset_index", "base_offset": 100, "targets": [100, 110, 119, 500], **written}])
    assert read["found"] == [[100, 0], [110, 4096], [110, 4096], [120, 8200]]


def test_what_kafka_refuses_is_answered_with_an_error(oracle: Oracle) -> None:
    answers = oracle.ask([{"do": "decode", "hex": "00"}, {"do": "no such thing"}])
    assert all("error" in answer for answer in answers)
