"""An upstream that cannot say where its local log starts (no ListOffsets v8): all is relayed, and nothing is slower."""

from collections.abc import Mapping

import pytest

from protocol.wire.identifiers import ApiKey
from tests.support.broker_relay import older_broker
from tests.support.kafka import fresh_name, orders, produce, small_segments, tiered_topic, wait_settled
from tests.support.raw_client import API_VERSIONS, FETCH, LIST_OFFSETS, FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import own_tidegate
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

BEFORE_3_6: Mapping[int, int] = {ApiKey.LIST_OFFSETS: 7, ApiKey.FETCH: 13}
TIER_READS = "kafka_server_brokertopicmetrics_remotefetchrequests_total"


def test_an_upstream_without_local_log_starts_serves_its_tier_itself(kafka: KafkaCluster) -> None:
    topic = tiered_topic(kafka, fresh_name("older"), configs=small_segments(batches=20))
    local_start = topic.offsets[0].local_log_start_offset
    remote_fetches = kafka.broker(1).remote_fetch_requests(topic.name)
    with (
        older_broker(kafka, BEFORE_3_6) as bootstrap_servers,
        own_tidegate(kafka, bootstrap_servers=bootstrap_servers) as tidegate,
        RawClient("127.0.0.1", kafka.broker(1).port) as direct,
        RawClient("127.0.0.1", broker_ports(tidegate)[1]) as through,
    ):
        announced = through.api_versions()
        assert (announced[FETCH][1], announced[LIST_OFFSETS][1], announced[API_VERSIONS][1]) == (13, 7, 4)
        topic_id = direct.topic_id(topic.name)
        for version in (11, 13):
            for offset in (0, local_start // 2, local_start - 1, local_start):
                target: FetchTarget = (topic.name, topic_id, 0, offset, 64 * 1024)
                expected = direct.patient_fetch(version, [target]).partitions
                assert through.patient_fetch(version, [target]).partitions == expected
                assert expected[0].records
        # What was the end is read on when the tail has grown, and has gone to the tier.
        produce(kafka, topic.name, orders(100, 1))
        wait_settled(kafka, topic.name)
        behind: FetchTarget = (topic.name, topic_id, 0, topic.offsets[0].high_watermark, 64 * 1024)
        expected = direct.patient_fetch(13, [behind]).partitions
        assert through.patient_fetch(13, [behind]).partitions == expected
        assert expected[0].records
        # The last offset's time lies in the local log, the first one's in the tier.
        for asked in [(topic.name, 0, timestamp) for timestamp in (-1, -2, -3, 0)]:
            assert through.list_offsets(7, [asked]) == direct.list_offsets(7, [asked])
        # A log line of the spell, not of each request; and the tier was the broker's to read.
        assert tidegate.log().count("frontier_unknown") <= 1
        assert tidegate.metric(TIER_READS) == 0
    assert kafka.broker(1).remote_fetch_requests(topic.name) > remote_fetches
