"""The metadata log as the partitions of one copier read and write it. On trio; what writes is in the seam's threads.

    feed = MetadataFeed(event_log, publish, threads)
    async with feed.followed(ledger):       # everything up to the end that was sampled on entering has been noted
        await feed.publish(record)          # the ledger has noted it when this returns

One reading for each metadata partition, shared by all user partitions in it. For one that comes later the reading
begins again; those that were there skip what they have noted. Ones that come at the same time share the new reading.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from standalone.copier.ledger import Ledger
from standalone.copier.threads import WorkerThreads
from storage.errors import MetadataLogError, RetriableRemoteStorageError
from storage.metadata.encoding import encode_for_caller
from storage.metadata.event_log import Close, MetadataEventLog, metadata_partition
from storage.metadata.reading import MetadataEvent, PartitionReading, RecordTaker, partition_of
from storage.metadata.serde import MetadataRecord
from storage.model import TopicIdPartition

GATHER_S = 0.05
"""Partitions that come within so many seconds share one reading: an assignment names all of them at once."""

PUBLISH_TIMEOUT_S = 30.0
"""How long a caller waits for its own record to come back. Kafka's wait.ms for the same is two minutes by default;
a copier does better to try again."""

Publish = Callable[[int, bytes], int]
"""Appends a value to a metadata partition; its offset, once it is durable. Blocking. Raises RemoteStorageError."""


class MetadataFeed(RecordTaker):
    """Ledgers are followed by their partition, one for each. For one trio run."""

    def __init__(self, event_log: MetadataEventLog, publish: Publish, threads: WorkerThreads) -> None:
        super().__init__()
        self._event_log = event_log
        self._publish = publish
        self._threads = threads
        self._readings: dict[int, _Reading] = {}

    @asynccontextmanager
    async def followed(self, ledger: Ledger) -> AsyncIterator[None]:
        """Feed the ledger the partition's records for as long as this is open, from the first one on.

        Raises:
            RemoteStorageError: on entering, if the log cannot be read.
        """
        number = self._number(ledger.partition)
        reading = self._readings.setdefault(number, _Reading())
        assert ledger.partition not in reading.followers, "a partition has one owner in a process"
        follower = reading.followers[ledger.partition] = _Follower(ledger)
        try:
            await trio.sleep(GATHER_S)
            if not follower.is_read_for:
                self._begin(number, reading)
            await follower.loaded.wait()
            yield
        finally:
            del reading.followers[ledger.partition]
            if not reading.followers:
                reading.close()
                del self._readings[number]

    async def publish(self, record: MetadataRecord) -> None:
        """Append the record to the log; returns once its ledger, which must be followed, has noted it.

        Raises:
            RetriableRemoteStorageError: it was published or not, and did not come back in time.
            RemoteStorageError: as the log answers.
        """
        partition = partition_of(record)
        number = self._number(partition)
        value = encode_for_caller(record)
        offset = await self._threads.run(lambda: self._publish(number, value))
        follower = self._readings[number].followers[partition]
        with trio.move_on_after(PUBLISH_TIMEOUT_S):
            while follower.next_offset <= offset:
                await follower.changed.wait()
        if follower.next_offset <= offset:  # it may have come in the turn in which the time was up
            raise RetriableRemoteStorageError(
                f"{partition}: the record at {number}/{offset} of the metadata topic was published but not read back "
                f"within {PUBLISH_TIMEOUT_S} s"
            )

    def apply(self, event: MetadataEvent, record: MetadataRecord) -> None:
        """The ledger notes a record that is news to it."""
        follower = self._readings[event.partition].followers.get(partition_of(record))
        if follower is not None and follower.is_read_for and event.offset >= follower.next_offset:
            follower.next_offset = event.offset + 1
            follower.ledger.note(record)

    def _number(self, partition: TopicIdPartition) -> int:
        failure = self._event_log.failure()
        if failure is not None:
            raise MetadataLogError(failure)
        return metadata_partition(partition.topic_id, partition.partition, self._event_log.partition_count())

    def _begin(self, number: int, reading: "_Reading") -> None:
        """Read the metadata partition from its beginning, for all that follow it by now."""
        close = self._event_log.subscribe({number: 0}, self._deliver, self._advance)
        reading.close()
        reading.close = close
        for follower in reading.followers.values():
            follower.is_read_for = True

    def _deliver(self, _reading: PartitionReading, events: Sequence[MetadataEvent]) -> None:
        for event in events:
            self.take(event)

    def _advance(self, reading: PartitionReading) -> None:
        for follower in self._readings[reading.number].followers.values():
            if follower.is_read_for:
                follower.advance(reading)


@dataclass(slots=True, eq=False)
class _Follower:
    """`next_offset`: what the ledger has noted ends there."""

    ledger: Ledger
    next_offset: int = 0
    is_read_for: bool = False
    loaded: trio.Event = field(default_factory=trio.Event)
    changed: trio.Event = field(default_factory=trio.Event)

    def advance(self, reading: PartitionReading) -> None:
        self.next_offset = max(self.next_offset, reading.position)
        if reading.is_caught_up:
            self.loaded.set()
        self.changed.set()
        self.changed = trio.Event()


@dataclass(slots=True, eq=False)
class _Reading:
    """The reading of one metadata partition. `close` ends it."""

    followers: dict[TopicIdPartition, _Follower] = field(default_factory=dict)
    close: Close = lambda: None
