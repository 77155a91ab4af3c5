"""The catalog's snapshot before a real broker: a restart reads what is new."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.metadata.snapshot import SNAPSHOT_NAME, SnapshotFile
from tests.support.digests import Digests, read_with_confluent
from tests.support.kafka import segmented_topic
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import HANG_S_MAX, wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

METADATA_TOPIC = "__remote_log_metadata"
PARTITIONS = 3
RECORDS = 6000
BATCH_RECORDS = 50
LOADS = "tidegate_catalog_snapshot_loads_total"
SEGMENTS = "tidegate_catalog_segments"


@dataclass(slots=True)
class Subject:
    """A Tidegate that is killed and started again, and the topic that it is judged by."""

    kafka: KafkaCluster
    tidegate: RunningTidegate
    folder: Path
    topic: str
    ends: dict[int, int]
    direct: Digests

    @property
    def path(self) -> Path:
        return self.folder / SNAPSHOT_NAME

    def kill(self) -> None:
        """As a power failure would, with a snapshot of all there is; others' topics may go on growing."""
        segments = self.tidegate.metric(SEGMENTS)
        wait_until(lambda: self._snapshot_segments() >= segments, "a snapshot of all segments", timeout_s=HANG_S_MAX)
        self.tidegate.kill()

    def metadata_bytes_read(self, during: Callable[[], None]) -> int:
        """Of the metadata topic, by everybody, as the broker counted them."""
        broker = self.kafka.broker(1)
        before = broker.broker_topic_count("BytesOutPerSec", METADATA_TOPIC)
        during()
        return broker.broker_topic_count("BytesOutPerSec", METADATA_TOPIC) - before

    def outcome(self) -> str:
        """What the present process made of the snapshot that it found."""
        outcomes = ("used", "absent", "unreadable", "foreign", "older_format", "out_of_range")
        (outcome,) = [name for name in outcomes if self.tidegate.metric(LOADS, outcome=name)]
        return outcome

    def check_reads(self) -> None:
        assert read_with_confluent(self.tidegate.bootstrap_servers, self.topic, self.ends, "read_uncommitted") == (
            self.direct
        )

    def _snapshot_segments(self) -> int:
        found = SnapshotFile(self.folder).read()
        return -1 if found is None else found.contents.segment_count


@pytest.fixture(scope="module")
def subject(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    topic = segmented_topic(kafka, "snapshots", RECORDS, partitions=PARTITIONS, batch_records=BATCH_RECORDS)
    ends = {partition: offsets.high_watermark for partition, offsets in topic.offsets.items()}
    direct = read_with_confluent(kafka.bootstrap_servers, topic.name, ends, "read_uncommitted")
    folder = tmp_path_factory.mktemp("snapshots") / "catalog"
    properties = {
        "proxy.listen": f"{HOST}:{free_port()}",
        "proxy.broker.ports": f"1:{free_port()}",
        "catalog.snapshot.path": str(folder),
        "catalog.snapshot.interval.ms": "100",
    }
    with own_tidegate(kafka, properties) as tidegate:
        yield Subject(kafka, tidegate, folder, topic.name, ends, direct)


def test_a_killed_one_reads_only_what_is_new(subject: Subject) -> None:
    subject.kill()
    segments_before = SnapshotFile(subject.folder).read()
    assert segments_before is not None
    from_snapshot = subject.metadata_bytes_read(subject.tidegate.start_again)
    assert subject.outcome() == "used"
    assert subject.tidegate.metric(SEGMENTS) >= segments_before.contents.segment_count
    subject.check_reads()

    subject.kill()
    subject.path.unlink()
    from_topic = subject.metadata_bytes_read(subject.tidegate.start_again)
    assert subject.outcome() == "absent"
    assert from_snapshot < from_topic / 10
    subject.check_reads()
