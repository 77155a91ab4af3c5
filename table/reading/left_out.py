"""What a task with `badRecords=skip` left out: a warning for each, a count, and one JSON file a task if it is wanted.

The file is named after the task's range, and renamed into place: a task that is run again replaces it with the same.
It holds no byte of a record.
"""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from storage.errors import RemoteStorageError
from storage.model import uuid_to_text
from table.tasks import SegmentTask

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ENTRIES_MAX = 10_000
"""For a file, and for warnings; what is beyond them is counted."""


@dataclass(frozen=True, slots=True)
class BadBatch:
    """Bytes of the log that were left out, and why."""

    position: int
    size_bytes: int
    reason: str
    is_rest: bool = False
    """Nothing told where the next batch begins: these are all that was left of the range."""


class BadRecords:
    """The bad batches of one task."""

    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self.entries: list[BadBatch] = []
        self.count = 0
        self.size_bytes = 0

    def add(self, bad: BadBatch) -> None:
        """Count a batch that is left out, and say so."""
        self.count += 1
        self.size_bytes += bad.size_bytes
        if self.count > ENTRIES_MAX:
            return
        self.entries.append(bad)
        _log.warning(
            "bad_batch_skipped",
            segment=str(self._task.segment.segment_id),
            position=bad.position,
            size_bytes=bad.size_bytes,
            reason=bad.reason,
            next_batch="unknown" if bad.is_rest else "found",
        )

    def finish(self, folder: str | None) -> None:
        """Say how many there were, and write the file, if there is anything to write and a folder for it.

        Raises:
            RemoteStorageError: it cannot be written.
        """
        if self.count == 0:
            return
        _log.warning(
            "bad_batches_skipped",
            segment=str(self._task.segment.segment_id),
            count=self.count,
            size_bytes=self.size_bytes,
        )
        if folder is None:
            return
        try:
            _write(Path(folder), self._file_name(), self._report())
        except OSError as error:
            raise RemoteStorageError(f"cannot write the bad records to {folder}: {error.strerror}") from error

    def _file_name(self) -> str:
        task, partition = self._task, self._task.segment.topic_id_partition
        segment = uuid_to_text(task.segment.segment_id.id)
        return (
            f"{partition.topic}-{partition.partition}-{task.segment.start_offset:020d}-{segment}"
            f"-{task.start_position}-{task.first_offset}.json"
        )

    def _report(self) -> dict[str, object]:
        task, partition = self._task, self._task.segment.topic_id_partition
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "segment": str(task.segment.segment_id),
            "start_position": task.start_position,
            "end_position": task.end_position,
            "first_offset": task.first_offset,
            "end_offset": task.end_offset,
            "bad_batches": self.count,
            "bad_bytes": self.size_bytes,
            "batches": [asdict(entry) for entry in self.entries],
        }


def _write(folder: Path, name: str, report: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)
