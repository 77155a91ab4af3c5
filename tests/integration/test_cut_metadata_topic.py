"""The metadata topic has lost its oldest records, and the broker, which has not restarted, still knows the segments: no
answer of Tidegate's, which starts afterwards, is another than the broker's.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from protocol.wire.errors import ErrorCode
from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.metadata.serde import decode
from storage.model import RemoteLogSegmentMetadata
from tests.support.differential_steps import delete_records
from tests.support.kafka import Record, TieredTopic, own_cluster, segmented_topic
from tests.support.raw_client import ListedOffset, RawClient
from tests.support.replicas import broker_ports
from tests.support.serving import before_kafka
from tests.support.tidegate import own_tidegate
from tests.support.waiting import wait_until
from tidegate.commands import cat, check
from tidegate.commands.selection import Place
from tidegate.config.load import load
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

RECORDS, FIRST_MS, STEP_MS = 6000, 1_700_000_000_000, 1000
VERSION = 8


def records() -> Iterator[Record]:
    """A second apart, but that of each hundred one is an hour early and one an hour late."""
    for number in range(RECORDS):
        shift_ms = {17: -3_600_000, 71: 3_600_000}.get(number % 100, 0) if number > 4000 else 0
        yield Record(0, b"key", b"x" * 200, (), FIRST_MS + number * STEP_MS + shift_ms)


def metadata_records(kafka: KafkaCluster) -> list[tuple[int, int, bool]]:
    """Partition, offset, and whether it is a segment's first, of all that the topic tells."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "metadata"})
    found = []
    for number in consumer.list_topics(METADATA_TOPIC, timeout=20).topics[METADATA_TOPIC].partitions:
        start, end = consumer.get_watermark_offsets(TopicPartition(METADATA_TOPIC, number), timeout=20)
        consumer.assign([TopicPartition(METADATA_TOPIC, number, start)])
        for message in consumer.consume(end - start, timeout=20) if end > start else ():
            value, offset = message.value(), message.offset()
            assert value is not None
            assert offset is not None
            found.append((number, offset, isinstance(decode(value), RemoteLogSegmentMetadata)))
    consumer.close()
    return found


def answer_in_the_end(client: RawClient, asked: list[tuple[str, int, int]]) -> list[ListedOffset]:
    """Return what is said in the end. On a busy machine the broker's own look-up, relayed or not, may end with a
    time-out."""

    def answer() -> list[ListedOffset] | None:
        found = client.list_offsets(VERSION, asked)
        return None if found[0].error_code == ErrorCode.REQUEST_TIMED_OUT else found

    return wait_until(answer, "the look-up") or []


def require_same_answers(kafka: KafkaCluster, topic: TieredTopic) -> None:
    with own_tidegate(kafka) as tidegate:
        direct = RawClient("127.0.0.1", kafka.broker(1).port)
        through = RawClient("127.0.0.1", broker_ports(tidegate)[1])
        with direct, through:
            for at in range(-2, 102):
                asked = [(topic.name, 0, FIRST_MS + at * RECORDS * STEP_MS // 100)]
                assert answer_in_the_end(through, asked) == answer_in_the_end(direct, asked), at


def test_no_look_up_by_time_is_answered_of_half_a_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Failed before: of the cut topic most answers were those of its first segment. Cut behind a segment's second
    record, between the two of one, and far on."""
    with own_cluster() as kafka:
        topic = segmented_topic(kafka, "cut", records())
        file = tmp_path / "tidegate.properties"
        file.write_text(properties_text(before_kafka(kafka)))
        config = load(file, {})
        assert check.run(config, io.StringIO()) == 0
        require_same_answers(kafka, topic)
        told = metadata_records(kafka)
        firsts = [at for at, (_, _, is_first) in enumerate(told) if is_first]
        partition, offset, _ = told[0]
        for cut in (firsts[3], firsts[3] + 1, firsts[-3] + 1):
            partition, offset, _ = told[cut]
            delete_records(kafka, METADATA_TOPIC, partition, offset)
            require_same_answers(kafka, topic)
        capsys.readouterr()
        out = io.StringIO()
        assert cat.run(config, cat.CatOptions(place=Place(topic.name, 0), max_records=1), out) == 0
        first = json.loads(out.getvalue())["offset"]
        assert first > 0
        assert f"offsets 0 to {first - 1} are in no segment of the tier" in capsys.readouterr().err
        out = io.StringIO()
        assert check.run(config, out) == 1
        assert f"{topic.name}-0: offsets 0 to {first - 1} are in no segment" in " ".join(out.getvalue().split())
        assert f"{partition} (at {offset})" in out.getvalue()
