"""A topic is deleted and made again under its name, while clients of the old one are connected through Tidegate.

Clients up to Fetch v12 ask by name, so for them the old topic becomes the new one from one request to the next; later
ones ask by id. What Tidegate knew of the old topic (its id, offsets, segments and blocks) must reach none of them: no
old byte for the new topic, and no error that the broker itself does not give. Both topics are tiered alike, so every
stale offset of the old one looks right for the new one.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from protocol.wire.errors import ErrorCode
from tests.support.differential_steps import delete_topic
from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments, wait_settled
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

OLD, NEW = b"of the old topic", b"of the new topic"
RECORDS = {OLD: 1000, NEW: 1200}
BATCH_RECORDS = 100
TIER_OFFSETS = (0, 150, 399, 400, 799)
"""In the tier alone once a topic has settled, in segments of 400 offsets."""

BY_NAME, BY_ID = (11, 12), (13, 17)
PARTITION_BYTES_MAX = 64 * 1024


AGES: Mapping[str, Mapping[str, str]] = {
    "default ages": {},
    "ages of zero": {"authority.max.age.ms": "0", "expert.frontier.max.age.ms": "0"},
    # Nothing is learned again because of its age, only because of what the broker says.
    "an endless frontier": {"expert.frontier.max.age.ms": "600000"},
}


@pytest.fixture(scope="module")
def tidegates(kafka: KafkaCluster) -> Iterator[Mapping[str, RunningTidegate]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(own_tidegate(kafka, ages)) for name, ages in AGES.items()}


@dataclass(frozen=True, slots=True)
class Reader:
    """One open connection through a Tidegate that fetches by one version, and one to the broker to compare with."""

    name: str
    client: RawClient
    direct: RawClient
    version: int
    topic: str
    topic_id: bytes | None

    def fetch(self, offset: int, *, directly: bool = False, topic_id: bytes | None = None) -> FetchedPartition:
        client = self.direct if directly else self.client
        (answer,) = client.fetch(self.version, [self._target(offset, topic_id)], max_wait_ms=0).partitions
        return answer

    def _target(self, offset: int, topic_id: bytes | None = None) -> FetchTarget:
        return self.topic, topic_id or self.topic_id, 0, offset, PARTITION_BYTES_MAX

    def require_the_brokers_answers(self, *, topic_id: bytes | None = None) -> None:
        for offset in TIER_OFFSETS:
            expected = self.answer(offset, directly=True, topic_id=topic_id)
            answer = self.answer(offset, topic_id=topic_id)
            assert answer == expected, f"{self.name}, version {self.version}, offset {offset}"

    def wait_error(self, *, directly: bool = False) -> int:
        """The error code that ends the topic for this reader."""
        what = f"{self.name}, version {self.version}: the topic to be gone"
        return wait_until(lambda: self.fetch(0, directly=directly).error_code, what)

    def answer(self, offset: int, *, directly: bool = False, topic_id: bytes | None = None) -> FetchedPartition:
        """Records or an error."""
        client = self.direct if directly else self.client
        return client.patient_fetch(self.version, [self._target(offset, topic_id)], max_wait_ms=0).partitions[0]

    def require_nothing_old(self) -> None:
        """At any time after the deletion: no old byte, and out of range only what is so at the broker."""
        for offset in TIER_OFFSETS:
            before = self.fetch(offset, directly=True)
            answer = self.fetch(offset)
            assert OLD not in answer.records, f"{self.name}, version {self.version}, offset {offset}"
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                # A topic that is made only grows: what was in range stays so.
                assert before.error_code != ErrorCode.NONE, f"{self.name}, version {self.version}, offset {offset}"


def test_raw_readers_of_a_topic_that_is_made_anew(
    kafka: KafkaCluster, tidegates: Mapping[str, RunningTidegate]
) -> None:
    """Failed once: a probe that was good for the old id was reused for the name, which was another topic's by then."""
    topic = fresh_name("recreated")
    make(kafka, topic, OLD)
    with ExitStack() as stack:
        readers = open_readers(stack, kafka, tidegates, topic)
        by_name = [reader for reader in readers if reader.version in BY_NAME]
        by_id = [reader for reader in readers if reader.version in BY_ID]
        for reader in readers:
            reader.require_the_brokers_answers()
            assert OLD in reader.answer(0).records

        delete(kafka, topic, by_name[0], by_id[0])
        for reader in by_name:
            reader.require_nothing_old()
        for reader in by_id:
            # The broker's word of a moment ago still counts for the id it was given for, and for that moment only.
            assert reader.wait_error() == ErrorCode.UNKNOWN_TOPIC_ID
            reader.require_the_brokers_answers()

        def require_nothing_old() -> None:
            for reader in by_name:
                reader.require_nothing_old()

        meanwhile(lambda: make(kafka, topic, NEW), require_nothing_old)
        for reader in by_name:
            reader.require_the_brokers_answers()
            assert NEW in reader.answer(0).records
        new_id = by_id[0].direct.topic_id(topic)
        for reader in by_id:
            reader.require_the_brokers_answers()
            reader.require_the_brokers_answers(topic_id=new_id)
            assert NEW in reader.answer(0, topic_id=new_id).records


def make(kafka: KafkaCluster, topic: str, marker: bytes) -> None:
    """Create the topic and fill it with records of this marker, most of them only in the tier at the end."""
    kafka.create_topic(topic, 1, {**TIERED, **small_segments(batches=4)})
    values = (b"%s %06d %s" % (marker, number, b"x" * 200) for number in range(RECORDS[marker]))
    produce(kafka, topic, (Record(0, None, value) for value in values), batch_num_messages=BATCH_RECORDS)
    wait_settled(kafka, topic)


def delete(kafka: KafkaCluster, topic: str, by_name: Reader, by_id: Reader) -> None:
    """Delete the topic behind Tidegate's back, and wait until the broker does not know it any more."""
    delete_topic(kafka, topic)
    for reader in (by_name, by_id):
        reader.wait_error(directly=True)


def open_readers(
    stack: ExitStack, kafka: KafkaCluster, tidegates: Mapping[str, RunningTidegate], topic: str
) -> list[Reader]:
    direct = stack.enter_context(RawClient("127.0.0.1", kafka.broker(1).port))
    topic_id = direct.topic_id(topic)
    readers = []
    for name, tidegate in tidegates.items():
        port = broker_ports(tidegate)[1]
        for version in (*BY_NAME, *BY_ID):
            client = stack.enter_context(RawClient("127.0.0.1", port))
            readers.append(Reader(name, client, direct, version, topic, topic_id if version in BY_ID else None))
    return readers


def meanwhile(work: Callable[[], None], check: Callable[[], None]) -> None:
    """Check again and again while the work is done in a thread; both must go well."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while thread.is_alive():
            check()
    finally:
        thread.join()
    if failures:
        raise failures[0]
