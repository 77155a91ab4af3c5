"""A query's offsets in its checkpoint: read back as they were, and known to be of topics that are gone."""

import json
from dataclasses import replace

import pytest

from pipeline.stream_progress import TOPIC_IDS, check_same_topics, parse_progress, progress_of
from storage.model import TopicIdPartition, uuid_to_text
from table.planning.offset_bounds import OffsetBoundsError
from tests.support.metadata_records import named_uuid
from tests.table.planning.test_offset_bounds import view_of

ORDERS = [view_of(partition=number) for number in range(2)]
ONE_OFFSET = {("orders", 0): 12}
OFFSETS = {**ONE_OFFSET, ("orders", 1): 0}
MADE_ANEW = replace(ORDERS[0], partition=TopicIdPartition(named_uuid("another"), 0, "orders"))


def test_the_json_is_the_kafka_sources_with_topic_ids_and_is_read_back() -> None:
    progress = progress_of(ORDERS, OFFSETS)

    kept = json.loads(json.dumps(progress.to_json()))

    assert kept == {"orders": {"0": 12, "1": 0}, TOPIC_IDS: {"orders": uuid_to_text(named_uuid("orders"))}}
    assert parse_progress(kept) == progress


def test_partitions_that_are_gone_are_data_loss_and_a_new_topic_is_always_refused() -> None:
    progress = progress_of(ORDERS, OFFSETS)
    for fails in (True, False):
        with pytest.raises(OffsetBoundsError, match="orders was deleted and created again") as caught:
            check_same_topics(progress_of(ORDERS[:1], ONE_OFFSET), [MADE_ANEW], fails_on_data_loss=fails)
        assert len(caught.value.problems) == 1
    with pytest.raises(OffsetBoundsError, match="orders-1 is not there any more; failOnDataLoss=false"):
        check_same_topics(progress, ORDERS[:1], fails_on_data_loss=True)
    check_same_topics(progress, ORDERS[:1], fails_on_data_loss=False)
