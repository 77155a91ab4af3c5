"""A healthy tier of three segments in a folder, in either format, whose objects tests damage one by one.

    tier = local_tier(tmp_path)                                  # or aiven_tier(tmp_path, compression=True, …)
    flip(tier.path(tier.metadatas[1], "log"), position=100)
    assert [finding.kind for finding in tier.findings()] == [FindingKind.BATCH_CORRUPT]

The middle segment has transactions, aborted, committed and one that began before it; two leader epochs meet in it.
"""

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from storage.checks.batch_audit import check_segment
from storage.checks.finding import Finding
from storage.checks.partition_check import PartitionState, check_partition
from storage.checks.strange_objects import check_store
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.object_keys import main_path
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.transaction_index import AbortedTransaction
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState
from storage.object_store.files.store import FileSystemStore
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.aiven_writer import AivenWriterOptions, make_key_pair, write_segment
from tests.support.segments import (
    FIRST_TIMESTAMP_MS,
    ProducerFields,
    SyntheticSegment,
    build_segment,
    control_batch,
    data_batch,
    metadata_of,
    object_path,
    publish,
    topic_partition,
)

PARTITION = topic_partition()
NOW_MS = 4_000_000_000_000
"""Later than any file's time."""

PREFIX = "tier/"
CHUNK_BYTES = 4000


@dataclass(slots=True)
class CheckedTier:
    """`path_of`: where an object of a segment is, by its suffix."""

    manager: RemoteStorageManager
    metadatas: list[RemoteLogSegmentMetadata]
    path_of: Callable[[RemoteLogSegmentMetadata, str], Path]

    def path(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> Path:
        return self.path_of(metadata, suffix)

    def state_of(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentState | None:
        return next((each.state for each in self.metadatas if each.segment_id == segment_id), None)

    def findings(self, *, deep: bool = True) -> list[Finding]:
        """Return the findings of all checks together."""
        found = [
            finding
            for metadata in self.metadatas
            for finding in check_segment(self.manager, metadata, deep=deep, wait=no_wait).findings
        ]
        lineage = LeaderEpochLineage(1, {0: (0, EPOCH_ONE_START), 1: (1, self.metadatas[-1].end_offset + 100)})
        state = PartitionState(
            lineage=lineage, log_start_offset=0, local_log_start_offset=self.metadatas[-1].end_offset + 1
        )
        found += check_partition(PARTITION, self.metadatas, state, now_ms=NOW_MS)
        return found + check_store(self.manager, self.state_of, metadata_read_ms=NOW_MS, wait=no_wait)


def no_wait(seconds: float) -> None:
    """For checks that would wait before they ask again."""


def local_tier(folder: Path) -> CheckedTier:
    """In LocalTieredStorage's format."""
    metadatas = [publish(folder, PARTITION, segment) for segment in SEGMENTS]
    manager = LocalTieredStorage({"dir": str(folder)})
    return CheckedTier(manager, metadatas, lambda metadata, suffix: object_path(folder, metadata, suffix))


def aiven_tier(folder: Path, *, compression: bool = False, encryption: bool = False) -> CheckedTier:
    """In Aiven's format; suffixes are `log`, `indexes` and `rsm-manifest`."""
    root = folder / "bucket"
    metadatas, files = _aiven_objects(compression, encryption)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    config = {"key.prefix": PREFIX, **(make_key_pair(folder / "keys", "key1") if encryption else {})}
    return CheckedTier(
        AivenRemoteStorageManager(config, store=FileSystemStore(root)),
        [*metadatas],
        lambda metadata, suffix: root / f"{PREFIX}{main_path(metadata)}.{suffix}",
    )


@functools.cache
def _aiven_objects(
    compression: bool, encryption: bool
) -> tuple[tuple[RemoteLogSegmentMetadata, ...], Mapping[str, bytes]]:
    """The segments' metadata, and what is in the bucket; written once, since encryption and syncing take their time."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "bucket")
        options = AivenWriterOptions(
            key_prefix=PREFIX,
            chunk_bytes=CHUNK_BYTES,
            compression=compression,
            key_pair=make_key_pair(Path(folder, "keys"), "key1") if encryption else None,
            custom_fields=("REMOTE_SIZE", "OBJECT_KEY"),
        )
        metadatas = []
        for segment in SEGMENTS:
            metadata = metadata_of(PARTITION, segment)
            custom_metadata = write_segment(FileSystemStore(root), metadata, segment.objects(), options)
            metadatas.append(replace(metadata, custom_metadata=custom_metadata))
        files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return tuple(metadatas), files


def flip(path: Path, position: int, mask: int = 0x01) -> None:
    """Change bits of one byte."""
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def cut(path: Path, size_bytes: int) -> None:
    """Keep only so many bytes; counted from the end when negative."""
    path.write_bytes(path.read_bytes()[:size_bytes])


def _plain(base_offset: int, leader_epoch: int) -> SyntheticSegment:
    """Batches of one to seven records, so that no two segments have their batches at the same places."""
    batches = []
    offset = base_offset
    for number in range(60):
        count = 1 + (number * 5 + base_offset) % 7
        batches.append(data_batch(offset, record_count=count, value_bytes=150, leader_epoch=leader_epoch))
        offset += count
    lineage = [(0, 0)] if leader_epoch == 0 else [(0, 0), (1, EPOCH_ONE_START)]
    return build_segment(batches, lineage=lineage, producers=[])


def _transactional(base_offset: int) -> SyntheticSegment:
    """Return a segment of producers 7 and 8 in turn, with an abort of producer 9, whose batches came earlier."""
    batches, aborted, offset = [], [], base_offset
    for number in range(30):
        leader_epoch = 0 if offset < EPOCH_ONE_START else 1
        producer_id = 7 + number % 2
        producer = ProducerFields(producer_id=producer_id, producer_epoch=0, base_sequence=number, transactional=True)
        for _ in range(3):
            batches.append(
                data_batch(offset, record_count=2, value_bytes=200, leader_epoch=leader_epoch, producer=producer)
            )
            offset += 2
        is_commit = number % 3 == 0
        if not is_commit:
            aborted.append(AbortedTransaction(producer_id, offset - 6, offset, offset + 1))
        marker = control_batch(offset, producer_id=producer_id, commit=is_commit, leader_epoch=leader_epoch)
        batches.append(marker)
        offset += 1
    aborted.append(AbortedTransaction(9, base_offset - 5, offset, offset + 1))
    batches.append(control_batch(offset, producer_id=9, leader_epoch=1))
    last = {7: offset - 9, 8: offset - 2}
    producers = [ProducerState(pid, 0, 30, at, 1, FIRST_TIMESTAMP_MS, 0, -1) for pid, at in last.items()]
    return build_segment(batches, aborted=aborted, producers=producers, lineage=[(0, 0), (1, EPOCH_ONE_START)])


_FIRST = _plain(0, 0)
EPOCH_ONE_START = _FIRST.end_offset + 1 + 7 * 11
"""In the middle of the second segment, where a transaction begins."""

_SECOND = _transactional(_FIRST.end_offset + 1)
SEGMENTS = (_FIRST, _SECOND, _plain(_SECOND.end_offset + 1, 1))
