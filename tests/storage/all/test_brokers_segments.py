"""Reads of the bytes that a broker wrote, in the layouts of LocalTieredStorage and of plain objects."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, uuid_from_text
from storage.object_store.files.store import FileSystemStore
from storage.steps import finish
from tests.support.tier import expected_bytes, open_reader
from tests.support.vectors import vector

VECTOR_PARTITION = TopicIdPartition(uuid_from_text("99Ua091BQDeyDAqtDCo4bQ"), 0, "tiered")


def vector_segments(root: Path) -> Sequence[tuple[RemoteLogSegmentMetadata, bytes]]:
    logs = sorted(root.rglob("*.log"))
    found = []
    for path, end_offset in zip(logs, (5999, 6819), strict=True):
        log, start_offset = path.read_bytes(), int(path.name[:20])
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(VECTOR_PARTITION, uuid_from_text(path.stem[-22:])),
            start_offset=start_offset,
            end_offset=end_offset,
            max_timestamp_ms=0,
            broker_id=1,
            event_timestamp_ms=0,
            segment_size_bytes=len(log),
            segment_leader_epochs={0: start_offset},
        )
        found.append((metadata, log))
    return found


@pytest.mark.needs("vectors")
async def test_a_brokers_segments(nursery: trio.Nursery, tmp_path: Path) -> None:
    root = tmp_path / "kafka-tiered-storage"
    shutil.copytree(vector("kafka", "local-tiered-storage"), root)
    logs = vector_segments(tmp_path)
    offsets = range(logs[0][0].start_offset, logs[-1][0].end_offset + 1)
    for store in (PlainObjects({}, store=FileSystemStore(root)), LocalTieredStorage({"dir": str(tmp_path)})):
        # Small blocks cost a hundred times as many of them: there every third offset is as good.
        for block_bytes, step in ((997, 3), (65536, 1)):
            tier = open_reader(nursery, store, logs, block_bytes=block_bytes)
            for offset in offsets[::step]:
                for max_bytes in (1, 3000, 20_000, 10**6):
                    records = await finish(
                        tier.reader.read(
                            VECTOR_PARTITION, offset, max_bytes=max_bytes, minimum_one_batch=True, lineage=tier.lineage
                        )
                    )
                    expected = expected_bytes(logs, offset, max_bytes=max_bytes)
                    assert b"".join(records.buffers) == expected, (store, block_bytes)
            assert tier.sample("tidegate_index_rebuilds_total", {"index": "offset"}) == 0
