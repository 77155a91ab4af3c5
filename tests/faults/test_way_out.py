"""The broker is the way out: a client reads on through every fault of the store, and of Tidegate's own identity.

A client asks for all partitions again and again, while the store fails and after it works again. Whatever happens, each
batch comes once and in order, and all of them have the digest of the broker's own; no error is another one than "come
again" (9), and that one comes no faster than it may; and the broker never has more partitions to read at a time than
`fallback.partitions.max`.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protocol.wire.errors import ErrorCode
from proxy.fetch.fallback import COME_AGAIN_S_MIN, Fallback
from tests.faults.test_store_faults import reset, stall
from tests.support.aiven_subject import Subject, subject
from tests.support.aiven_tier import AivenTier, publish_tier
from tests.support.aiven_writer import make_key_pair
from tests.support.digests import read_with_confluent
from tests.support.frozen_tier import broken_up
from tests.support.in_process import in_thread
from tests.support.kafka import TieredTopic, segmented_topic
from tests.support.raw_client import RawClient
from tests.support.s3_front import S3Front
from tests.support.s3_server import S3Server
from tests.support.scripted_http import s3_error
from tests.support.secured_kafka import READ, SecuredKafka, password
from tests.support.tidegate import own_tidegate
from tests.support.toxiproxy import Link
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

PARTITIONS = 6
RECORDS = 6_000
BATCH_RECORDS = 50
VERSION = 17
PARTITION_BYTES_MAX = 16 * 1024
MAX_WAIT_MS = 100
READS_MAX = 3000
"""Far more Fetches than a read of the topic takes; one that needs them all goes round in circles."""


@pytest.fixture(scope="module")
def topic(kafka: KafkaCluster) -> TieredTopic:
    return segmented_topic(kafka, "way-out", RECORDS, partitions=PARTITIONS, batch_records=BATCH_RECORDS)


@pytest.fixture(scope="module")
def tier(
    kafka: KafkaCluster, topic: TieredTopic, s3_endpoint: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> AivenTier:
    folder = tmp_path_factory.mktemp("way-out")
    return publish_tier(kafka, s3_endpoint, [topic.name], folder, compression=True, encryption=True)


@dataclass
class Reading:
    """A client's read of all partitions, batch by batch, from the beginning to the local log start."""

    ends: Mapping[int, int]
    offsets: dict[int, int] = field(default_factory=dict)
    hashes: dict[int, "hashlib._Hash"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offsets = dict.fromkeys(self.ends, 0)
        self.hashes = {partition: hashlib.sha256() for partition in self.ends}

    @property
    def left(self) -> list[int]:
        return [partition for partition, end in self.ends.items() if self.offsets[partition] < end]

    @property
    def digests(self) -> dict[int, str]:
        return {partition: each.hexdigest() for partition, each in self.hashes.items()}

    def read(self, address: tuple[str, int], name: str, until: Callable[[], bool]) -> None:
        """Go on until it says so, or everything is read."""
        with RawClient(*address) as client:
            topic_id = client.topic_id(name)
            for _ in range(READS_MAX):
                if not self.left or until():
                    return
                wanted = [(name, topic_id, each, self.offsets[each], PARTITION_BYTES_MAX) for each in self.left]
                started_s = time.monotonic()
                answers = client.fetch(VERSION, wanted, max_wait_ms=MAX_WAIT_MS).partitions
                took_s = time.monotonic() - started_s
                for answer in answers:
                    if answer.error_code == ErrorCode.REPLICA_NOT_AVAILABLE:
                        assert took_s >= COME_AGAIN_S_MIN
                    else:
                        assert answer.error_code == ErrorCode.NONE
                        self._take(answer.partition, answer.records)
        raise AssertionError(f"partitions {self.left} do not come to their end: {self.offsets}")

    def _take(self, partition: int, records: bytes) -> None:
        for batch in broken_up(records)[0]:
            assert batch.base_offset == self.offsets[partition], "a batch is lost, or came twice"
            self.offsets[partition] = batch.last_offset + 1
            if self.offsets[partition] <= self.ends[partition]:
                self.hashes[partition].update(batch.data)


@contextmanager
def watched_share(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Collect how many partitions the broker had to read at a time, each time that it got some."""
    shares: list[int] = []
    at_broker = Fallback.at_broker

    @contextmanager
    def watched(self: Fallback, node_id: int, partitions: int) -> Iterator[int]:
        with at_broker(self, node_id, partitions) as granted:
            shares.append(self._reading[node_id])
            yield granted

    with monkeypatch.context() as patch:
        patch.setattr(Fallback, "at_broker", watched)
        yield shares


async def read_through(
    found: Subject, topic: TieredTopic, fault: Callable[[], AbstractContextManager[object]], seen: Callable[[], bool]
) -> Reading:
    """A third of it as usual, then with the fault until it is seen, then the rest."""
    ends = {partition: offsets.local_log_start_offset for partition, offsets in topic.offsets.items()}
    reading, direct = Reading(ends), Reading(ends)
    third = sum(ends.values()) // 3

    def read_all() -> None:
        reading.read(found.tidegate.address, topic.name, lambda: sum(reading.offsets.values()) >= third)
        with fault():
            reading.read(found.tidegate.address, topic.name, seen)
        reading.read(found.tidegate.address, topic.name, lambda: False)
        direct.read(found.tidegate.direct, topic.name, lambda: False)

    await in_thread(read_all)
    assert reading.digests == direct.digests
    return reading


@contextmanager
def refusing(front: S3Front, status: int, code: str, path: str = "*") -> Iterator[None]:
    front.refuse(s3_error(status, code, {"Retry-After": "0"}), path=path)
    try:
        yield
    finally:
        front.heal()


@pytest.mark.parametrize(
    ("status", "code", "path", "reason"),
    [
        (403, "AccessDenied", "*", "denied"),
        (404, "NoSuchBucket", "*", "not_found"),
        (404, "NoSuchKey", "*.log", "not_found"),
    ],
    ids=["403", "404-of-the-bucket", "404-of-objects"],
)
async def test_a_store_that_refuses(
    kafka: KafkaCluster,
    topic: TieredTopic,
    tier: AivenTier,
    front: S3Front,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    path: str,
    reason: str,
) -> None:
    async with subject(kafka, tier, tmp_path, way=front) as found:
        with watched_share(monkeypatch) as shares:
            reads = found.counted("tidegate_fallback_reads_total", reason=reason)
            await read_through(found, topic, lambda: refusing(front, status, code, path), lambda: reads() >= 20)
        assert max(shares) == 4


async def test_a_store_that_throttles_is_waited_for_and_nothing_goes_to_the_broker(
    kafka: KafkaCluster, topic: TieredTopic, tier: AivenTier, front: S3Front, tmp_path: Path
) -> None:
    async with subject(kafka, tier, tmp_path, way=front) as found:
        refused = front.refused
        burst = lambda: refusing(front, 503, "SlowDown")  # noqa: E731  # read where it is used
        await read_through(found, topic, burst, lambda: front.refused - refused >= 20)
        assert found.left_to_broker == 0


@pytest.mark.parametrize("fault", [stall, reset])
async def test_a_way_that_breaks(
    kafka: KafkaCluster,
    topic: TieredTopic,
    tier: AivenTier,
    link: Link,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Link], AbstractContextManager[None]],
) -> None:
    async with subject(kafka, tier, tmp_path, way=link, fallback_after_ms="1500") as found:
        with watched_share(monkeypatch) as shares:
            await read_through(found, topic, lambda: fault(link), lambda: found.left_to_broker >= 8)
        assert max(shares) <= 4


async def test_a_wrong_key(
    kafka: KafkaCluster, topic: TieredTopic, tier: AivenTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the tier can be decrypted, so all of it comes from the broker, four partitions at a time. Tidegate is
    not ready, if those are all segments that there are."""
    (tmp_path / "wrong").mkdir()
    pair = make_key_pair(tmp_path / "wrong", "another")
    # As it was published, but for the contents of the key files.
    keys = {name.replace("another", "key1"): value for name, value in pair.items() if name.endswith(".key.file")}
    async with subject(kafka, tier, tmp_path, keys=keys, waits_for_tier=False) as found:
        with watched_share(monkeypatch) as shares:
            await read_through(found, topic, nullcontext, lambda: False)
        assert max(shares) == 4
        assert found.tidegate.sample("tidegate_served_tier_bytes_total") == 0


@pytest.mark.integration
@pytest.mark.needs("java", "kafka")
def test_our_own_password_is_rotated(guarded: SecuredKafka) -> None:
    """The leader's epoch has moved, so its lineage is to be learned again, and Tidegate is not let in to ask."""
    name, ends = guarded.topic.name, {0: guarded.topic.records}
    guarded.allow("reader", READ, name)
    signing_in = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": password("reader"),
    }
    identity = guarded.identity("tidegate", "SCRAM-SHA-256", "SASL_SSL")
    with own_tidegate(guarded.cluster, identity, bootstrap_servers=guarded.address("SASL_SSL")) as running:

        def read() -> object:
            return read_with_confluent(running.bootstrap_servers, name, ends, "read_uncommitted", signing_in)

        right = read_with_confluent(guarded.cluster.bootstrap_servers, name, ends, "read_uncommitted")
        assert read() == right
        served = running.metric("tidegate_served_tier_bytes_total")
        assert served > 0
        guarded.set_scram_password("tidegate", "another")
        try:
            guarded.cluster.restart_broker(1)
            assert read() == right
            assert running.metric("tidegate_served_tier_bytes_total") == served
            assert running.metric("tidegate_fallback_reads_total", reason="identity") > 0
        finally:
            guarded.set_scram_password("tidegate", password("tidegate"))

        def is_served_again() -> bool:
            assert read() == right
            return running.metric("tidegate_served_tier_bytes_total") > served

        wait_until(is_served_again, "the tier is read again", timeout_s=90.0)
    guarded.withdraw("reader", READ, name)
