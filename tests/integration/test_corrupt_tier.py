"""A tier object that is damaged, which the broker reads as well: no client gets a byte of it that differs. And what
each client library makes of the error in its place (docs/compatibility.md#a-damaged-object)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.record_batches import iterate_batches
from protocol.wire.errors import ErrorCode
from tests.support import needs
from tests.support.client_programs import CLIENTS, ClientProgram
from tests.support.kafka import segmented_topic
from tests.support.raw_client import RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

RECORDS, BATCH_RECORDS, BAD_BATCH = 2000, 50, 6

TELLS = {
    "java": "Encountered corrupt message when fetching offset",
    "librdkafka": "INVALID_MSG",
    "kafka-python": "CorruptRecordError",
    "sarama": "Message contents does not match its CRC",
}
"""Those that tell their user, and in which words."""


@dataclass(frozen=True, slots=True)
class Object:
    """A log in the tier of which one batch can be damaged: from its base offset up to its last offset."""

    topic: str
    path: Path
    whole: bytes
    bad_byte: int
    base_offset: int
    last_offset: int

    @contextmanager
    def damaged(self) -> Iterator[None]:
        """One bit of one record is another, until `heal` or the end of the block."""
        changed = bytearray(self.whole)
        changed[self.bad_byte] ^= 1
        self._write(changed)
        try:
            yield
        finally:
            self.heal()

    def heal(self) -> None:
        self._write(self.whole)

    def _write(self, data: bytes | bytearray) -> None:
        self.path.chmod(0o644)
        self.path.write_bytes(data)


@pytest.fixture(scope="module")
def stored(kafka: KafkaCluster) -> Object:
    topic = segmented_topic(kafka, "damaged", RECORDS, batches=20, batch_records=BATCH_RECORDS)
    path = min(kafka.tier_dir.glob(f"kafka-tiered-storage/{topic.name}-0-*/*.log"), key=lambda each: each.name)
    whole = path.read_bytes()
    position, header = [*iterate_batches([whole])][BAD_BATCH]
    return Object(topic.name, path, whole, position + header.size_bytes - 10, header.base_offset, header.last_offset)


def corrupt_answers(running: RunningTidegate, stored: Object) -> float:
    return running.metric("tidegate_corrupt_answers_total", topic=stored.topic)


def test_no_damaged_byte_is_passed_on(stored: Object, kafka: KafkaCluster) -> None:
    """How it failed: the broker read the same object, and its answer was handed on as it was."""
    with stored.damaged(), own_tidegate(kafka) as running, RawClient("127.0.0.1", broker_ports(running)[1]) as client:
        topic_id = client.topic_id(stored.topic)

        def fetch(offset: int) -> tuple[int, list[int]]:
            target = (stored.topic, topic_id, 0, offset, 1 << 20)
            (answer,) = client.patient_fetch(17, [target]).partitions
            return answer.error_code, [header.base_offset for _, header in iterate_batches([answer.records])]

        error_code, offsets = fetch(0)
        assert (error_code, offsets[-1]) == (0, stored.base_offset - BATCH_RECORDS)
        assert fetch(stored.base_offset) == (ErrorCode.CORRUPT_MESSAGE, [])
        error_code, offsets = fetch(stored.last_offset + 1)
        assert (error_code, offsets[0]) == (0, stored.last_offset + 1)
        assert corrupt_answers(running, stored) == 1
        (line,) = (line for line in running.log().splitlines() if "corrupt_at_broker" in line)
        assert f'"offset": {stored.base_offset}' in line
        assert stored.topic in line


@pytest.mark.parametrize(
    "client",
    [pytest.param(each, marks=pytest.mark.needs(*([each] if needs.is_kind(each) else []))) for each in CLIENTS],
)
def test_each_client_tells_of_it_or_waits_until_it_is_whole_again(
    client: str, stored: Object, kafka: KafkaCluster
) -> None:
    asked = {"scenario": "digest", "topic": stored.topic, "lasts": {0: RECORDS - 1}, "group": f"damaged-{client}"}
    with stored.damaged(), own_tidegate(kafka) as running:
        program = ClientProgram(CLIENTS[client](), running.bootstrap_servers)
        try:
            program.send(asked)
            if client in TELLS:
                assert TELLS[client] in program.receive()["failure"]
            else:
                wait_until(lambda: corrupt_answers(running, stored) >= 1, "the client has heard of it")
                stored.heal()
                answer = program.receive()
                assert "failure" not in answer, answer
                digest = answer["partitions"]["0"]
                assert (digest["records"], digest["first"], digest["last"]) == (RECORDS, 0, RECORDS - 1)
        finally:
            program.close()
        assert corrupt_answers(running, stored) >= 1
