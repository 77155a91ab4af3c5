"""A tier in an S3 server's bucket, written as Aiven's plug-in does: what is read from it is what the broker says."""

import pytest

from tests.broker.sides import HOST, SERVED_BYTES, fetched
from tests.support.aiven_tier import AivenTier
from tests.support.digests import read_with_confluent
from tests.support.filled_topics import ISOLATIONS, FilledTopic
from tests.support.raw_client import RawClient
from tests.support.tidegate import TidegateInThread
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.needs("java", "kafka")

VERSION = 17
MUCH_BYTES = 1 << 20


def test_all_records_are_read_and_each_block_is_fetched_once(
    codecs: FilledTopic, tier_on_s3: AivenTier, s3_gate: TidegateInThread
) -> None:
    for isolation in ISOLATIONS:
        before = s3_gate.metric(SERVED_BYTES)
        read = read_with_confluent(s3_gate.bootstrap_servers, codecs.name, codecs.ends, isolation)
        assert read == codecs.direct[isolation], isolation
        assert s3_gate.metric(SERVED_BYTES) - before >= codecs.tier_bytes, isolation
    gets = s3_gate.metric("tidegate_gets_total")
    assert s3_gate.metric("tidegate_gets_total", object="log") >= len(tier_on_s3.segments)
    assert s3_gate.metric("tidegate_gets_total", outcome="ok") == gets
    log_bytes = sum(segment.segment_size_bytes for segment in tier_on_s3.segments)
    assert s3_gate.metric("tidegate_cache_fill_bytes_total") == log_bytes


def test_answers_at_segments_borders_are_the_brokers(
    cluster: KafkaCluster, tier_on_s3: AivenTier, s3_gate: TidegateInThread
) -> None:
    with RawClient(HOST, cluster.broker(1).port) as direct, RawClient(*s3_gate.listener()) as through:
        for segment in tier_on_s3.segments:
            where = segment.topic_id_partition
            topic_id = direct.topic_id(where.topic)
            for offset in (segment.start_offset, segment.start_offset + 1, segment.end_offset):
                target = (where.topic, topic_id, where.partition, offset, MUCH_BYTES)
                assert fetched(through, VERSION, target) == fetched(direct, VERSION, target), target
