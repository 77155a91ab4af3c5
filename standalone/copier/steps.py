"""Does what `segment_copy` says: records into the metadata log, files into the store, objects out of it."""

from typing import Final, TypeVar

import structlog
import trio

from metrics.copy_meters import CopyMeter
from standalone.copier.metadata_feed import MetadataFeed
from standalone.copier.segment_copy import DeleteObjects, Publish, Step, Steps, Upload
from standalone.copier.threads import WorkerThreads
from storage.errors import DeletionRefusedError, RemoteStorageError
from storage.model import CustomMetadata, RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager

T = TypeVar("T")

REFUSED_S: Final = 3600.0
"""A store that lets nobody delete is asked once in so long, whatever there is to delete."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class StepRunner:
    """Steps of any number of partitions, side by side."""

    def __init__(
        self, feed: MetadataFeed, storage: RemoteStorageManager, threads: WorkerThreads, meter: CopyMeter
    ) -> None:
        self._feed = feed
        self._storage = storage
        self._threads = threads
        self._meter = meter
        self._refused: tuple[float, str] | None = None

    def deletion_refusal(self) -> str | None:
        """Why the store does not let us delete; None: it does, or it is time to ask."""
        if self._refused is None or trio.current_time() - self._refused[0] >= REFUSED_S:
            return None
        return self._refused[1]

    async def do(self, steps: Steps[T]) -> T:
        """Take the steps to their end.

        Raises:
            RemoteStorageError: as the steps let it through.

        Cancellation: none. What was begun is finished or given back, and each step ends by itself, as the store and the
        metadata log have timeouts.
        """
        outcome: CustomMetadata | None = None
        failure: RemoteStorageError | None = None
        while True:
            try:
                step = steps.send(outcome) if failure is None else steps.throw(failure)
            except StopIteration as done:
                result: T = done.value
                return result
            outcome, failure = None, None
            with trio.CancelScope(shield=True):
                try:
                    outcome = await self._take(step)
                except RemoteStorageError as error:
                    failure = error

    async def _take(self, step: Step) -> CustomMetadata | None:
        match step:
            case Publish(record):
                await self._feed.publish(record)
            case Upload(segment, files):
                topic = segment.topic_id_partition.topic
                self._meter.on_copy_started(topic)
                try:
                    return await self._threads.run(lambda: self._storage.copy_log_segment_data(segment, files))
                except RemoteStorageError:
                    self._meter.on_copy_error(topic)
                    raise
            case DeleteObjects(segment):
                await self._delete(segment)
        return None

    async def _delete(self, segment: RemoteLogSegmentMetadata) -> None:
        if (refusal := self.deletion_refusal()) is not None:
            raise DeletionRefusedError(refusal)
        topic = segment.topic_id_partition.topic
        self._meter.on_delete_started(topic)
        try:
            await self._threads.run(lambda: self._storage.delete_log_segment_data(segment))
        except RemoteStorageError as error:
            self._meter.on_delete_error(topic)
            if isinstance(error, DeletionRefusedError):
                self._refused = trio.current_time(), str(error)
                _log.error("deletion_refused", segment=str(segment.segment_id), reason=str(error))
            raise
        self._refused = None
