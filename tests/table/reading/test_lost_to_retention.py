"""Retention that passes a running read: what it took is left out and counted, or told as planning tells it."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from protocol.client.errors import UpstreamConnectionError
from storage.errors import RemoteResourceNotFoundError, RemoteStoreNotFoundError
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition
from storage.object_store.registry import open_object_store
from table.planning.offset_bounds import OffsetBoundsError
from table.reading.executor_storage import ShippedStorage, open_shipped_storage, ship_storage
from table.reading.read_task import TaskReader
from table.tasks import ReadOptions, SegmentTask, TierTask
from tests.support.aiven_tier import STORAGE_MANAGER_CLASS
from tests.support.aiven_writer import AivenWriterOptions, convert_tier
from tests.support.for_each import for_each
from tests.support.s3_server import S3Server
from tests.support.segments import filled_segment, publish, topic_partition
from tests.support.sent import sent
from tests.table.reading.test_segment_task import task_of

LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
OFFSETS = 400
"""In a segment, in batches of ten."""
MANY_BATCHES = 600
"""In a segment of 0.8 MB: a task with the memory below has not fetched it all when it gives its first rows."""
CHUNK_BYTES = 64 * 1024
SEGMENTS = 3
GOES_ON = ReadOptions(columns=("offset",), fails_on_data_loss=False, task_bytes_max=1024 * 1024)
FAILS = replace(GOES_ON, fails_on_data_loss=True)


@dataclass
class Tier:
    """`orders-0`: three segments, and what a broker says of its log start."""

    storage: ShippedStorage
    segments: list[RemoteLogSegmentMetadata]
    log_start: int = 0
    asked: list[TopicIdPartition] = field(default_factory=list)

    def task(self, *, first: int = 0) -> TierTask:
        parts: list[SegmentTask] = [task_of(segment, first_offset=first) for segment in self.segments]
        return TierTask(topic="orders", partition=0, parts=tuple(parts))

    def delete(self, count: int) -> None:
        """As a broker's retention does: the log start first."""
        self.log_start = self.segments[count - 1].end_offset + 1
        self.remove(*self.segments[:count])

    def remove(self, *segments: RemoteLogSegmentMetadata) -> None:
        for segment in segments:
            open_shipped_storage(self.storage).delete_log_segment_data(segment)

    def ask(self, partition: TopicIdPartition) -> int:
        self.asked.append(partition)
        return self.log_start

    def offsets(self, task: TierTask, options: ReadOptions, *, ask: Callable[[TopicIdPartition], int]) -> list[int]:
        reader = TaskReader(sent(self.storage), options, log_start=ask)
        return [row["offset"] for batch in reader.read(sent(task)) for row in batch.to_pylist()]


def local_tier(folder: Path, *, batch_count: int = OFFSETS // 10) -> Tier:
    segments = [
        publish(folder, topic_partition(), filled_segment(number * 10 * batch_count, batch_count=batch_count))
        for number in range(SEGMENTS)
    ]
    return Tier(ship_storage(LOCAL, {"dir": str(folder)}), segments)


def s3_tier(folder: Path, server: S3Server, *, batch_count: int = OFFSETS // 10) -> Tier:
    """The same as Aiven's plug-in writes it."""
    config = {**server.config(server.make_bucket()), "key.prefix": "tier/", "chunk.size": str(CHUNK_BYTES)}
    with closing(open_object_store(config)) as store:
        options = AivenWriterOptions(key_prefix="tier/", chunk_bytes=CHUNK_BYTES)
        written = local_tier(folder, batch_count=batch_count).segments
        segments = convert_tier(folder, written, store, options)
    return Tier(ship_storage(STORAGE_MANAGER_CLASS, config), segments)


@for_each("on_s3", [False, True])
def test_what_retention_took_before_a_task_came_to_it_is_left_out_or_told(
    tmp_path: Path, s3_endpoint: S3Server, capsys: pytest.CaptureFixture[str], on_s3: bool
) -> None:
    """It killed the read, with failOnDataLoss=false too. Given a task, when its first segments are deleted before it
    runs, then the rest is read and a line has the offsets that are not; or the sentence is that of planning."""
    tier = s3_tier(tmp_path, s3_endpoint) if on_s3 else local_tier(tmp_path)
    task = tier.task(first=10)
    tier.delete(2)

    assert tier.offsets(task, GOES_ON, ask=tier.ask) == list(range(800, 1200))
    lines = [line for line in capsys.readouterr().err.splitlines() if "event=offsets_lost" in line]
    assert [line.partition("partitions=")[2] for line in lines] == [
        '"orders-0: offsets 10 to 399 are below the log start 800" offsets=390',
        '"orders-0: offsets 400 to 799 are below the log start 800" offsets=400',
    ]
    assert tier.asked == [topic_partition()], "it is asked once"
    told = "^orders-0: offsets 10 to 399 are below the log start 800; failOnDataLoss=false goes on without$"
    with pytest.raises(OffsetBoundsError, match=told):
        tier.offsets(task, FAILS, ask=tier.ask)


@for_each("on_s3", [False, True])
def test_what_it_takes_in_the_midst_of_a_segment_is_left_out_from_there_on(
    tmp_path: Path, s3_endpoint: S3Server, capsys: pytest.CaptureFixture[str], on_s3: bool
) -> None:
    """Given a task that has given rows, when the segment that it reads is deleted, then every offset is either a row or
    counted as lost, and no row comes twice."""
    count = MANY_BATCHES
    tier = s3_tier(tmp_path, s3_endpoint, batch_count=count) if on_s3 else local_tier(tmp_path, batch_count=count)
    reader = TaskReader(tier.storage, GOES_ON, log_start=tier.ask)
    rows = reader.read(tier.task())
    found = next(rows).column("offset").to_pylist()
    tier.delete(1)
    found += [offset for batch in rows for offset in batch.column("offset").to_pylist()]

    end = tier.segments[-1].end_offset + 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "event=offsets_lost" in line]
    lost = int(line.rpartition("=")[2])
    assert sorted(set(found)) == found
    assert found == [*range(10 * MANY_BATCHES - lost), *range(10 * MANY_BATCHES, end)]


def test_an_object_that_retention_has_not_deleted_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Given a log start that is below the segment's end, when its objects are missing, then that is damage, whatever
    failOnDataLoss says."""
    tier = local_tier(tmp_path)
    task = tier.task()
    tier.remove(tier.segments[1])
    for tier.log_start in (0, 799):
        for options in (GOES_ON, FAILS):
            with pytest.raises(RemoteResourceNotFoundError, match=r"/00000000000000000400-"):
                tier.offsets(task, options, ask=tier.ask)

    def silent(_partition: TopicIdPartition) -> int:
        raise UpstreamConnectionError("no broker answers")

    with pytest.raises(RemoteResourceNotFoundError, match=r"retention may have deleted it: no broker answers$"):
        tier.offsets(task, GOES_ON, ask=silent)


def test_a_bucket_that_is_gone_is_no_retention(tmp_path: Path, s3_endpoint: S3Server) -> None:
    tier = s3_tier(tmp_path, s3_endpoint)
    tier.log_start = 10_000
    absent = dict(tier.storage.config) | {"storage.s3.bucket.name": "bucket-that-is-not-there"}
    tier.storage = ship_storage(STORAGE_MANAGER_CLASS, absent)
    with pytest.raises(RemoteStoreNotFoundError):
        tier.offsets(tier.task(), GOES_ON, ask=tier.ask)
    assert tier.asked == []
