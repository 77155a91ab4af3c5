import json

import pytest

from storage.metadata.event_log import metadata_partition
from storage.model import uuid_from_text
from tests.support.vectors import vector


@pytest.mark.parametrize(("partition_count", "expected"), [(50, 41), (5, 1), (3, 1)])
def test_the_sample_of_the_specification(partition_count: int, expected: int) -> None:
    assert metadata_partition(uuid_from_text("dFZlbnRvLTEyMy1hYmNkZQ"), 3, partition_count) == expected


def test_a_partition_seen_on_a_live_broker() -> None:
    assert metadata_partition(uuid_from_text("99Ua091BQDeyDAqtDCo4bQ"), 0, 5) == 1


def test_answers_of_kafkas_own_class() -> None:
    cases = json.loads(vector("kafka", "remote-log-metadata.json").read_text())["partitioner"]

    assert len(cases) == 25
    for case in cases:
        topic_id = uuid_from_text(case["topic_id"])
        for partition_count in (50, 5, 3):
            answer = metadata_partition(topic_id, case["partition"], partition_count)
            assert answer == case[f"num_{partition_count}"], case


@pytest.mark.parametrize(("topic_id", "partition_count"), [(b"short", 5), (bytes(16), 0), (bytes(16), -1)])
def test_a_callers_mistake_is_refused(topic_id: bytes, partition_count: int) -> None:
    with pytest.raises(ValueError, match="metadata partition"):
        metadata_partition(topic_id, 0, partition_count)
