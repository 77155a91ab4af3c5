"""What one task could not decode: counted, said once, and written to a file of its own if that is wanted.

The file (`deadLetterPath`) is on the executor's machine: JSON lines with topic, partition, offset, column, reason, and
the bytes in base64. It is named after the task's range and renamed into place when the task ends, so that a task that
is run again replaces it with the same.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import structlog

from storage.errors import CorruptObjectError, RemoteStorageError
from table.tasks import TailTask, Task
from table.values.settled import ValuesPlan

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class UndecodableValueError(CorruptObjectError):
    """A key or value cannot be decoded, and `deadLetter` is `fail`; the message names its offset."""


class DeadLetters:
    """For one task."""

    def __init__(self, task: Task, plan: ValuesPlan) -> None:
        self._task, self._plan = task, plan
        self._file: IO[str] | None = None
        self._temporary: Path | None = None
        self.count = 0
        self._first: Mapping[str, Any] = {}

    def add(self, column: str, reason: str, data: bytes, offset: int) -> None:
        """One value that could not be decoded.

        Raises:
            UndecodableValueError: see there.
            RemoteStorageError: the file cannot be written.
        """
        where = f"{self._task.topic}-{self._task.partition}"
        if self._plan.fails_on_dead_letter:
            raise UndecodableValueError(
                f"{where}: the {column} at offset {offset} cannot be decoded: {reason}; deadLetter=column keeps the row"
            )
        if not self.count:
            self._first = {"column": column, "offset": offset, "reason": reason}
        self.count += 1
        if self._plan.dead_letter_path is not None:
            self._write(
                {
                    "topic": self._task.topic,
                    "partition": self._task.partition,
                    "offset": offset,
                    "column": column,
                    "reason": reason,
                    "data": base64.b64encode(data).decode("ascii"),
                }
            )

    def finish(self) -> None:
        """Say how many there were, and give the file its name. Raises RemoteStorageError if it cannot be written."""
        if not self.count:
            return
        _log.warning(
            "dead_letters", topic=self._task.topic, partition=self._task.partition, count=self.count, **self._first
        )
        if self._file is not None and self._temporary is not None:
            try:
                self._file.close()
                self._temporary.rename(self._temporary.with_name(self._file_name()))
            except OSError as error:
                raise self._unwritable(error) from error
            self._temporary = None

    def close(self) -> None:
        """Whatever happened: nothing half written stays."""
        if self._file is not None:
            self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def _write(self, entry: Mapping[str, object]) -> None:
        try:
            if self._file is None:
                folder = Path(self._plan.dead_letter_path or "")
                folder.mkdir(parents=True, exist_ok=True)
                self._temporary = folder / f".{secrets.token_hex(8)}.unfinished"
                self._file = self._temporary.open("x", encoding="utf-8")
            self._file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> RemoteStorageError:
        return RemoteStorageError(
            f"deadLetterPath: cannot write dead letters to {self._plan.dead_letter_path}: {error.strerror}"
        )

    def _file_name(self) -> str:
        task = self._task
        if isinstance(task, TailTask):
            place = f"{task.first_offset:020d}-tail"
        else:
            first = task.parts[0]
            place = f"{first.first_offset:020d}-{first.segment.start_offset:020d}-{first.start_position}"
        return f"{task.topic}-{task.partition}-{place}.jsonl"
