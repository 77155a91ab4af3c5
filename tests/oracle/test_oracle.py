"""The oracle answers, and in the shapes that its header promises. Files and look-ups: test_golden_bytes.py."""

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


def test_what_kafka_refuses_is_answered_with_an_error(oracle: Oracle) -> None:
    answers = oracle.ask([{"do": "decode", "hex": "00"}, {"do": "no such thing"}])
    assert all("error" in answer for answer in answers)
