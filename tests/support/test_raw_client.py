"""The raw client against a real broker: every version of Fetch, and the other calls once."""

import pytest

from tests.support.kafka import TieredTopic, fresh_name
from tests.support.raw_client import FETCH, RawClient, address_of, fetch_request, fetch_result
from tests.support.segments import data_batch
from tools.demo.kafka_cluster import KafkaCluster

EARLIEST, LATEST = -2, -1


@pytest.fixture
def address(kafka: KafkaCluster) -> tuple[str, int]:
    return address_of(kafka.bootstrap_servers)


@pytest.mark.parametrize("version", range(4, 19))
def test_records_come_back_as_they_went(address: tuple[str, int], tiered: TieredTopic, version: int) -> None:
    with RawClient(*address) as client:
        topic_id = client.topic_id(tiered.name)
        start = client.list_offsets(5, [(tiered.name, 1, EARLIEST)])[0].offset
        result = client.fetch(version, [(tiered.name, topic_id, 1, start, 5000)], isolation=1)
        (answer,) = result.partitions
        assert (answer.topic, answer.partition, answer.error_code, result.error_code) == (tiered.name, 1, 0, 0)
        assert answer.high_watermark == answer.last_stable_offset > start
        assert answer.aborted == []
        assert int.from_bytes(answer.records[:8], "big") == start


def test_what_is_produced_is_fetched(kafka: KafkaCluster, address: tuple[str, int]) -> None:
    topic, batch = fresh_name("raw"), data_batch(0, record_count=3)
    kafka.create_topic(topic, partitions=1)
    with RawClient(*address) as client:
        assert client.api_versions()[FETCH][1] >= 17
        assert topic in {str(found.name) for found in client.metadata().topics}
        assert client.produce(topic, 0, batch) == (0, 0)
        assert client.produce(topic, 0, batch, acks=0) is None
        client.metadata([topic])  # in order behind the produce without an answer
        (latest,) = client.list_offsets(11, [(topic, 0, LATEST)])
        assert (latest.topic, latest.partition, latest.error_code, latest.offset) == (topic, 0, 0, 6)
        records = client.fetch(12, [(topic, None, 0, 0, 10**6)]).partitions[0].records
        assert records[21 : len(batch)] == batch[21:]  # the broker writes its leader epoch before the CRC


def test_pipelined_requests_are_answered_in_order(address: tuple[str, int], tiered: TieredTopic) -> None:
    with RawClient(*address) as client:
        sent = [client.send(fetch_request(11, [(tiered.name, None, partition, 0, 1)])) for partition in (1, 0)]
        frames = [client.read_frame() for _ in sent]
    assert [int.from_bytes(frame[4:8], "big") for frame in frames] == sent
    assert [fetch_result(frame, 11, {}).partitions[0].partition for frame in frames] == [1, 0]


def test_a_connection_closed_by_the_peer_is_seen(address: tuple[str, int]) -> None:
    with RawClient(*address) as client:
        client.send_bytes(b"\x7f\xff\xff\xff")  # a frame of 2 GiB
        assert client.is_closed_by_peer()
    with RawClient(*address) as client:
        client.send_bytes(b"\x7f\xff\xff\xff")
        with pytest.raises((EOFError, ConnectionError)):
            client.read_frame()
