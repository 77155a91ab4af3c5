"""What runs on executors: a task and how to read it go in, Arrow batches come out. Pickled with its credentials."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zipimport import zipimporter

import pyarrow as pa
import structlog

from protocol.client.errors import OffsetOutOfRangeError
from protocol.record_batches import CorruptBatchError, batch_crc, iterate_batches
from storage.config.client_settings import client_settings
from storage.config.model import UpstreamConfig
from storage.errors import CorruptObjectError
from storage.log.log_walk import WalkedBatch, is_abort_marker
from storage.model import TopicIdPartition
from storage.remote_storage_manager import SegmentOpener
from table.brokers.client import BrokerClient
from table.decoding.inflated_batches import RecordDecoder
from table.logs import configure_logs
from table.planning.partition_view import OffsetRange
from table.planning.request import EARLIEST_OFFSET
from table.reading.executor_storage import ShippedStorage, open_shipped_storage
from table.reading.lost_to_retention import LostToRetention
from table.tasks import MIB, ReadOptions, TailTask, Task

if TYPE_CHECKING:
    from table.values.settled import ValuesPlan


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads tasks anywhere.

    Attributes:
        tail: how it is reached through Kafka; None unless the read has `tail=kafka`.
        values: how keys and values get types; None: they are binary, and no column is made of them.
        log_start: asks where a log starts now, when an object is missing; None: then it is an error.
    """

    storage: ShippedStorage
    options: ReadOptions
    tail: UpstreamConfig | None = field(default=None, repr=False)
    values: "ValuesPlan | None" = field(default=None, repr=False)
    log_start: Callable[[TopicIdPartition], int] | None = field(default=None, repr=False)

    def read(self, task: Task, storage: SegmentOpener | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in order of offset.

        Args:
            storage: opens its segments; None: the manager of this process.

        Raises:
            CorruptObjectError: a batch is corrupt, named by object and position.
            RemoteStorageError: the store does not give an object.
            OffsetBoundsError: retention took what was planned, and that is to fail the read.
            UpstreamError: the tail cannot be read.
            RegistryError: values have a schema, and the schema registry does not answer.
        """
        configure_logs()
        keep_archive_directories()
        batches = self._read(task, storage)
        if self.values is not None:
            from table.values.typed_columns import typed_batches  # a format's library: only for reads that want it

            batches = typed_batches(batches, task, self.values)
        return batches

    def _read(self, task: Task, storage: SegmentOpener | None) -> Iterator[pa.RecordBatch]:
        if isinstance(task, TailTask):
            yield from self._read_tail(task)
            return
        from table.reading.segment_task import read_segments  # numpy: not on the driver's way

        manager = storage or open_shipped_storage(self.storage)
        yield from read_segments(manager, task.parts, self.options, self.log_start)

    def _read_tail(self, task: TailTask) -> Iterator[pa.RecordBatch]:
        if self.tail is None:
            raise AssertionError("a task of the tail in a read without tail=kafka")
        with BrokerClient(client_settings(self.tail)) as client:
            yield from read_tail_task(client, task, self.options)


def keep_archive_directories() -> None:
    """Keep Python from reading the directory of an archive on its path again, unless the archive has changed.

    Before each task Spark has its worker forget what the path holds, and Python 3.10 and later then read all of them
    again: from Spark's own zip and the jar of its core, 6,000 names in a quarter of a second, for each task.
    """
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter) and "invalidate_caches" not in vars(finder):
            vars(finder)["invalidate_caches"] = _only_if_changed(finder)


def _only_if_changed(finder: zipimporter) -> Callable[[], None]:
    read_again, known = finder.invalidate_caches, _version_of(finder.archive)

    def invalidate_caches() -> None:
        nonlocal known
        found = _version_of(finder.archive)
        if found is None or found != known:
            known = found
            read_again()

    return invalidate_caches


def _version_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


# What is not in the tier yet, read through Kafka (`tail=kafka`): usually through Tidegate, the brokers do as well.
#
# The offsets are the planner's, fixed on the driver: the union with the tier's tasks has no gap and no repeat. Batches
# come whole, as a consumer gets them, and go through the same decoder as the tier's.
#
# READ_COMMITTED, as every Kafka consumer does it: an answer names the aborted transactions that touch it by producer
# and first offset; from that offset on the producer's transactional batches are dropped, up to its abort marker.


FETCH_BYTES_MAX = 8 * MIB
FETCH_WAIT_MS = 500
EMPTY_ANSWERS_MAX = 60
"""Half a minute without a new record below the high watermark: a consumer's request.timeout.ms."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TailUnreadableError(CorruptObjectError):
    """Offsets that the broker says it has are not given out."""


def read_tail_task(client: BrokerClient, task: TailTask, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task.

    Raises:
        UpstreamError: the broker refuses, or is gone for good.
        OffsetBoundsError: as TaskReader's.
        CorruptObjectError: a batch is corrupt, in its records unless options.skips_bad_records; or no records come.
    """
    where = f"{task.topic}-{task.partition} through Kafka"
    decoder = RecordDecoder(
        options,
        task.topic,
        task.partition,
        where=where,
        on_bad=lambda position, size_bytes, reason: _log.warning(
            "bad_batch_skipped", where=where, position=position, size_bytes=size_bytes, reason=reason
        ),
    )
    key, first, empty_answers = (task.topic, task.partition), task.first_offset, 0
    lost = LostToRetention(
        f"{task.topic}-{task.partition}",
        lambda: client.list_offsets({key: EARLIEST_OFFSET})[key].offset,
        fails_on_data_loss=options.fails_on_data_loss,
    )
    offset = first
    while offset < task.end_offset:
        try:
            answer = client.fetch(
                *key,
                offset,
                max_bytes=min(FETCH_BYTES_MAX, options.task_bytes_max // 8),
                read_committed=options.read_committed,
                max_wait_ms=FETCH_WAIT_MS,
            )
        except OffsetOutOfRangeError as error:
            offset = first = lost.skip(OffsetRange(offset, task.end_offset), error, deleted_below=offset + 1)
            continue
        batches = _whole_batches(answer.data, where)
        if not batches or batches[-1].header.last_offset < offset:
            empty_answers += 1
            if empty_answers == EMPTY_ANSWERS_MAX:
                raise TailUnreadableError(f"{where}: no records from offset {offset} on, up to {task.end_offset - 1}")
            continue
        empty_answers = 0
        kept = _committed(batches, answer.aborted) if options.read_committed else batches
        yield from decoder.decode(kept, first_offset=first, end_offset=task.end_offset)
        offset = batches[-1].header.last_offset + 1


def _whole_batches(data: bytes, where: str) -> list[WalkedBatch]:
    view, found = memoryview(data), []
    try:
        for position, header in iterate_batches([view]):
            batch = view[position : position + header.size_bytes]
            if batch_crc([batch], header.magic) != header.crc:
                raise CorruptBatchError(f"batch at {position}: wrong CRC")
            found.append(WalkedBatch(position, header, batch))
    except CorruptBatchError as error:
        raise CorruptObjectError(f"{where}: {error}") from error
    return found


def _committed(batches: Sequence[WalkedBatch], aborted: Sequence[tuple[int, int]]) -> list[WalkedBatch]:
    """The batches that are of no aborted transaction."""
    begun = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    kept = []
    for batch in batches:
        header = batch.header
        while begun and begun[-1][1] <= header.last_offset:
            aborting.add(begun.pop()[0])
        if header.is_control:
            if is_abort_marker(batch):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            kept.append(batch)
    return kept
