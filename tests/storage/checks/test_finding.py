"""Findings as plain values."""

import json

import pytest

from storage.checks.finding import Finding, FindingKind, partition_finding, segment_finding
from storage.model import RemoteLogSegmentId, uuid_to_text
from tests.support.segments import topic_partition, uuid_of

SEGMENT_ID = RemoteLogSegmentId(topic_partition("orders", 4), uuid_of("one"))


def test_a_finding_comes_back_from_json() -> None:
    finding = segment_finding(FindingKind.INDEX, SEGMENT_ID, "an entry", object_name="a.index", position=8)
    assert Finding.from_json(json.loads(json.dumps(finding.as_json()))) == finding
    assert finding.as_json()["kind"] == "index"


def test_a_finding_of_a_segment_names_topic_partition_and_segment() -> None:
    finding = segment_finding(FindingKind.SEGMENT_MISSING, SEGMENT_ID, "nothing")
    assert (finding.topic, finding.partition, finding.segment) == ("orders", 4, uuid_to_text(SEGMENT_ID.id))
    assert (finding.object_name, finding.position) == (None, None)


def test_a_finding_of_a_partition_names_no_segment() -> None:
    finding = partition_finding(FindingKind.GAP, SEGMENT_ID.topic_id_partition, "a gap")
    assert (finding.topic, finding.partition, finding.segment) == ("orders", 4, None)


def test_what_is_no_finding_is_refused() -> None:
    with pytest.raises(ValueError, match="no such kind"):
        Finding.from_json({"kind": "no such kind", "detail": ""})
