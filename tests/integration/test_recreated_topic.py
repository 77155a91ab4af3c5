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
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AdminClient

from protocol.wire.errors import ErrorCode
from tests.integration.reading import final_answer
from tests.support.digests import read_with_confluent, read_with_confluent_group
from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments, wait_settled
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient, fetch_request, fetch_result
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

SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

TOPIC_GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
"""The second is what a broker says whose session remembers the name of the old id; clients take both alike."""

AGES: Mapping[str, Mapping[str, str]] = {
    "default ages": {},
    "ages of zero": {"authority.max.age.ms": "0", "frontier.max.age.ms": "0"},
    # Nothing is learned anew because of its age, only because of what the broker says.
    "an endless frontier": {"frontier.max.age.ms": "600000"},
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
            expected = self._answer(offset, directly=True, topic_id=topic_id)
            answer = self._answer(offset, topic_id=topic_id)
            assert answer == expected, f"{self.name}, version {self.version}, offset {offset}"

    def wait_error(self, *, directly: bool = False, timeout_s: float = 30.0) -> int:
        """The error code that ends the topic for this reader."""
        what = f"{self.name}, version {self.version}: the topic to be gone"
        return wait_until(lambda: self.fetch(0, directly=directly).error_code, what, timeout_s=timeout_s)

    def _answer(self, offset: int, *, directly: bool = False, topic_id: bytes | None = None) -> FetchedPartition:
        """Records or an error."""
        client = self.direct if directly else self.client
        return final_answer(client, self.version, self._target(offset, topic_id), max_wait_ms=0)

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
            assert OLD in reader.fetch(0).records

        delete(kafka, topic, by_name[0], by_id[0])
        for reader in by_name:
            reader.require_nothing_old()
        for reader in by_id:
            # The broker's word of a moment ago still counts for the id it was given for, and for that moment only.
            assert reader.wait_error(timeout_s=5) == ErrorCode.UNKNOWN_TOPIC_ID
            reader.require_the_brokers_answers()

        def require_nothing_old() -> None:
            for reader in by_name:
                reader.require_nothing_old()

        meanwhile(lambda: make(kafka, topic, NEW), require_nothing_old)
        for reader in by_name:
            reader.require_the_brokers_answers()
            assert NEW in reader.fetch(0).records
        new_id = by_id[0].direct.topic_id(topic)
        for reader in by_id:
            reader.require_the_brokers_answers()
            reader.require_the_brokers_answers(topic_id=new_id)
            assert NEW in reader.fetch(0, topic_id=new_id).records


def test_open_sessions_on_a_topic_that_is_made_anew(
    kafka: KafkaCluster, tidegates: Mapping[str, RunningTidegate]
) -> None:
    """A session outlives its topic: by name it goes on with the new one, by id it keeps saying that the old one is
    gone, and takes the new id in its place. The broker's own sessions are asked the same."""
    topic = fresh_name("recreated-session")
    make(kafka, topic, OLD)
    with ExitStack() as stack:
        readers = open_readers(stack, kafka, tidegates, topic)
        direct = readers[0].direct
        old_id = direct.topic_id(topic)
        sessions = [
            (name, SessionReader(client, reader.version, topic, old_id if reader.version in BY_ID else None))
            for reader in readers
            for name, client in (
                (reader.name, reader.client),
                ("the broker", stack.enter_context(RawClient("127.0.0.1", kafka.broker(1).port))),
            )
        ]
        for _, session in sessions:
            session.name_partition(0)
            # The second time it is not named: the session knows it.
            assert [OLD in session.answer().records for _ in range(2)] == [True, True]
            assert session.is_open

        by_id = [reader for reader in readers if reader.version in BY_ID]
        delete(kafka, topic, next(reader for reader in readers if reader.version in BY_NAME), by_id[0])
        for name, session in sessions:
            session.wait_error(name)

        def require_nothing_old() -> None:
            for name, session in sessions:
                assert OLD not in session.fetch_records(), f"{name}, version {session.version}"

        meanwhile(lambda: make(kafka, topic, NEW), require_nothing_old)
        new_id = direct.topic_id(topic)
        for name, session in sessions:
            if session.version in BY_ID:
                assert session.answer().error_code in TOPIC_GONE, f"{name}, version {session.version}"
                session.replace_topic(new_id)
            for offset in (*TIER_OFFSETS, 0):
                session.name_partition(offset)
                answer = session.answer()
                (expected,) = direct.fetch(
                    session.version, [(topic, new_id, 0, offset, PARTITION_BYTES_MAX)]
                ).partitions
                assert answer == expected, f"{name}, version {session.version}, offset {offset}"
                assert NEW in answer.records


def test_group_consumers_of_a_topic_that_is_made_anew(
    kafka: KafkaCluster, tidegates: Mapping[str, RunningTidegate]
) -> None:
    topic = fresh_name("recreated-group")
    make(kafka, topic, OLD)
    with ExitStack() as stack:
        consumers = {name: group_consumer(tidegate, topic) for name, tidegate in tidegates.items()}
        for consumer in consumers.values():
            stack.callback(consumer.close)
        for name, consumer in consumers.items():
            assert take(consumer, OLD, until=RECORDS[OLD] - 1) == list(range(RECORDS[OLD])), name
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
        make(kafka, topic, NEW)
        for name, consumer in consumers.items():
            # Where it begins is the client's own affair: where it stood, or its reset policy if it lost its position.
            offsets = take(consumer, NEW, until=RECORDS[NEW] - 1)
            assert offsets[0] in (0, RECORDS[OLD]), name
            assert offsets == list(range(offsets[0], RECORDS[NEW])), name
    ends = {0: RECORDS[NEW]}
    direct = read_with_confluent(kafka.bootstrap_servers, topic, ends, "read_uncommitted")
    for name, tidegate in tidegates.items():
        group = fresh_name("recreated-group-new")
        assert direct == read_with_confluent_group(
            tidegate.bootstrap_servers, topic, ends, "read_uncommitted", protocol="classic", group=group
        ), name


class SessionReader:
    """A connection that fetches one partition in a session, as far as it is given one (KIP-227).

    Who answers with session id 0 gives none: then each request is a full one. A session that is refused is opened anew.
    """

    def __init__(self, client: RawClient, version: int, topic: str, topic_id: bytes | None) -> None:
        self.version = version
        self._client = client
        self._topic = topic
        self._topic_id = topic_id
        self._session_id = 0
        self._epoch = 0
        self._offset = 0
        self._named = True
        self._forgotten: list[tuple[str, bytes | None, int]] = []

    @property
    def is_open(self) -> bool:
        return self._epoch > 0

    def name_partition(self, offset: int) -> None:
        """The next request asks for this offset."""
        self._offset, self._named = offset, True

    def replace_topic(self, topic_id: bytes) -> None:
        """The next request forgets the partition's topic id and adds this one."""
        self._forgotten = [(self._topic, self._topic_id, 0)]
        self._topic_id, self._named = topic_id, True

    def fetch(self) -> list[FetchedPartition]:
        """What one request brings; nothing if the session was refused."""
        is_full = self._epoch == 0
        target = (self._topic, self._topic_id, 0, self._offset, PARTITION_BYTES_MAX)
        message = fetch_request(
            self.version,
            [target] if is_full or self._named else [],
            max_wait_ms=0,
            session=(self._session_id, self._epoch),
            forgotten=() if is_full else self._forgotten,
        )
        self._client.send(message)
        names = {
            topic_id: self._topic for topic_id in (self._topic_id, *(each[1] for each in self._forgotten)) if topic_id
        }
        result = fetch_result(self._client.read_frame(), self.version, names)
        if result.error_code:
            assert result.error_code in SESSION_ERRORS
            self._session_id, self._epoch = 0, 0
            return []
        self._session_id = result.session_id
        self._epoch = self._epoch + 1 if result.session_id else 0
        self._named, self._forgotten = False, []
        return result.partitions

    def wait_error(self, name: str) -> None:
        """Until it is told that the topic is gone: the broker's word of a moment ago counts for that moment only."""
        what = f"{name}, version {self.version}: the topic to be gone"
        wait_until(lambda: self.answer().error_code, what, timeout_s=5)

    def fetch_records(self) -> bytes:
        """The records that one request brings, if any."""
        return b"".join(answer.records for answer in self.fetch())

    def answer(self) -> FetchedPartition:
        """Records or an error: what is late is left out, or empty, and comes with a later request."""

        def answered() -> FetchedPartition | None:
            return next((answer for answer in self.fetch() if answer.records or answer.error_code), None)

        answer = wait_until(answered, f"version {self.version}: an answer at {self._offset}")
        assert answer is not None
        return answer


def make(kafka: KafkaCluster, topic: str, marker: bytes) -> None:
    """Create the topic and fill it with records of this marker, most of them only in the tier at the end."""
    kafka.create_topic(topic, 1, {**TIERED, **small_segments(batches=4)})
    values = (b"%s %06d %s" % (marker, number, b"x" * 200) for number in range(RECORDS[marker]))
    produce(kafka, topic, (Record(0, None, value) for value in values), batch_num_messages=BATCH_RECORDS, linger_ms=500)
    wait_settled(kafka, topic)


def delete(kafka: KafkaCluster, topic: str, by_name: Reader, by_id: Reader) -> None:
    """Delete the topic behind Tidegate's back, and wait until the broker does not know it any more."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
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


def group_consumer(tidegate: RunningTidegate, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": tidegate.bootstrap_servers,
            "group.id": fresh_name("recreated"),
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            "topic.metadata.propagation.max.ms": 500,
            "fetch.wait.max.ms": 100,
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    return consumer


def take(consumer: Consumer, marker: bytes, *, until: int) -> list[int]:
    """The offsets of the records up to the one at `until`; all have the marker."""
    offsets: list[int] = []

    def ended() -> bool:
        for message in consumer.consume(500, 0.1):
            error, value, offset = message.error(), message.value(), message.offset()
            if error is not None:
                # While there is no such topic.
                assert error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION), str(error)
                continue
            assert offset is not None
            assert isinstance(value, bytes)
            assert marker in value
            offsets.append(offset)
        return bool(offsets) and offsets[-1] == until

    wait_until(ended, f"the record at {until}")
    return offsets
