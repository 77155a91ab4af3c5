"""Look-ups by time in batches that are small and become huge: others read on, and memory stays where it was."""

import pytest

from protocol.wire.errors import ErrorCode
from tests.support.hostile_clients import crowd
from tests.support.hostile_stage import BATCHES, MIB, HostileStage, blobs
from tests.support.kafka import TIERED, fresh_name, produce, wait_settled
from tests.support.kio_frames import fill, schema
from tests.support.raw_client import LIST_OFFSETS, RawClient, decode_frame
from tests.support.timed_batches import ZSTD, timed_batch
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.needs("linux")

FIRST_MS = 1_700_000_000_000
LARGE_VALUES, LARGE_VALUE_BYTES = 48, 8 * MIB
MANY_RECORDS = 150_000
VERSION = 9
ANSWER_S_MAX = 90.0
ASKING = 16
"""As many as there have ever been slots for."""

LARGE, MANY = 0, 1
"""Partitions: of 384 MiB in some kilobytes, and of 150,000 records in one batch."""
LAST = {LARGE: LARGE_VALUES - 1, MANY: MANY_RECORDS - 1}


@pytest.fixture(scope="module")
def bombs(kafka: KafkaCluster) -> str:
    """Both are in the tier, behind each a bit that is not."""
    topic = fresh_name("bombs")
    kafka.create_topic(topic, 2, {**TIERED, "max.message.bytes": str(4 * MIB), "segment.bytes": str(4 * MIB)})
    with RawClient("127.0.0.1", kafka.broker(1).port, timeout_s=ANSWER_S_MAX) as client:
        for partition, value_bytes in ((LARGE, LARGE_VALUE_BYTES), (MANY, 0)):
            records = [(number, FIRST_MS + number) for number in range(LAST[partition] + 1)]
            batch = timed_batch(0, records, codec=ZSTD, value_bytes=value_bytes)
            assert client.produce(topic, partition, batch) == (ErrorCode.NONE, 0)
    produce(kafka, topic, blobs(12, 2), **BATCHES)
    wait_settled(kafka, topic)
    return topic


@pytest.mark.parametrize("partition", [LARGE, MANY], ids=["large values", "many records"])
def test_a_look_up_by_time_in_a_bomb(stage: HostileStage, bombs: str, partition: int) -> None:
    """How it failed: 48 s of the interpreter's lock for one batch, with a slot for each of its askers."""
    with crowd(stage.leader, ASKING) as clients:
        for client in clients:
            client.send(look_up(bombs, partition, FIRST_MS + LAST[partition]))
        stage.suffer(3.0)
        answers = [found(client.read_frame(ANSWER_S_MAX)) for client in clients]
    # The broker may be asked instead, or the client told to try again; another offset would be wrong.
    assert set(answers) <= {(ErrorCode.NONE, LAST[partition]), (ErrorCode.REQUEST_TIMED_OUT, -1)}
    stage.recover()
    stage.check()


def look_up(topic: str, partition: int, timestamp_ms: int) -> object:
    asked = {"partition_index": partition, "timestamp": timestamp_ms, "current_leader_epoch": -1}
    topics = [{"name": topic, "partitions": [asked]}]
    values = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    return fill(schema(LIST_OFFSETS, VERSION, kind="request"), values)


def found(frame: bytes) -> tuple[int, int]:
    """Error code and offset."""
    (answer,) = decode_frame(LIST_OFFSETS, VERSION, frame).topics[0].partitions
    return int(answer.error_code), int(answer.offset)
