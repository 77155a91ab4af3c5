"""What runs on executors: a task and how to read it go in, Arrow batches come out. Pickled with its credentials."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.logs import configure_logs
from pipeline.reading.executor_storage import ShippedStorage, open_shipped_storage
from pipeline.tasks import ReadOptions, TailTask, Task
from storage.config.model import ClientSecurity, HostPort


@dataclass(frozen=True, slots=True)
class ShippedTail:
    """How the tail is reached through Kafka."""

    bootstrap_servers: tuple[HostPort, ...]
    security: ClientSecurity = field(repr=False)


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads tasks anywhere. `tail` is None unless the read has `tail=kafka`."""

    storage: ShippedStorage
    options: ReadOptions
    tail: ShippedTail | None = None

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in order of offset.

        Raises:
            CorruptObjectError: a batch is corrupt, named by object and position.
            RemoteStorageError: the store does not give an object.
            UpstreamError: the tail cannot be read.
        """
        configure_logs()
        if isinstance(task, TailTask):
            yield from self._read_tail(task)
            return
        from pipeline.reading.segment_task import read_segment_task  # numpy: not on the driver's way

        manager = open_shipped_storage(self.storage)
        for part in task.parts:
            yield from read_segment_task(manager, part, self.options)

    def _read_tail(self, task: TailTask) -> Iterator[pa.RecordBatch]:
        from pipeline.brokers.client import BrokerClient  # kio takes a second, and few tasks are of the tail
        from pipeline.reading.tail_task import read_tail_task
        from storage.config.client_settings import client_settings

        if self.tail is None:
            raise AssertionError("a task of the tail in a read without tail=kafka")
        with BrokerClient(client_settings(self.tail.bootstrap_servers, self.tail.security)) as client:
            yield from read_tail_task(client, task, self.options)
