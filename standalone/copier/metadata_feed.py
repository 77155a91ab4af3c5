"""The metadata log as the partitions of one copier read and write it. On trio; what reads and writes is in the seam's
threads.

    feed = MetadataFeed(event_log, publish, threads)
    async with feed.followed(ledger):       # everything up to the end that was sampled on entering has been noted
        await feed.publish(record)          # the ledger has noted it when this returns

- One reading for each metadata partition, shared by all user partitions in it. For one that comes later the reading
  begins again; those that were there skip what they have noted. Ones that come at the same time share the new reading.
- Records are decoded where the log delivers them and noted in the trio thread: ledgers are that thread's alone.
- A record that cannot be decoded, or that breaks KIP-405's rules, is logged and skipped.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog
import trio

from standalone.copier.ledger import Ledger
from standalone.copier.threads import Threads
from storage.errors import MetadataLogError, MetadataRecordError, RemoteStorageError, RetriableRemoteStorageError
from storage.metadata.encoding import encode_for_caller
from storage.metadata.event_log import MetadataEvent, MetadataEventLog, Subscription, metadata_partition
from storage.metadata.manager import PUBLISH_TIMEOUT_S
from storage.metadata.serde import MetadataRecord, decode
from storage.model import RemoteLogSegmentMetadataUpdate, TopicIdPartition

GATHER_S = 0.05
"""Partitions that come within so many seconds share one reading: an assignment names all of them at once."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


Publish = Callable[[int, bytes], int]
"""Appends a value to a metadata partition; its offset, once it is durable. Blocking. Raises RemoteStorageError."""


class MetadataFeed:
    """Ledgers are followed by their partition, one for each. For one trio run."""

    def __init__(self, event_log: MetadataEventLog, publish: Publish, threads: Threads) -> None:
        self._event_log = event_log
        self._publish = publish
        self._threads = threads
        self._token = trio.lowlevel.current_trio_token()
        self._readings: dict[int, _Reading] = {}

    @asynccontextmanager
    async def followed(self, ledger: Ledger) -> AsyncIterator[None]:
        """Feed the ledger the partition's records for as long as this is open, from the first one on.

        Raises:
            RemoteStorageError: on entering, if the log cannot be read.
        """
        number = self._number(ledger.partition)
        reading = self._readings.setdefault(number, _Reading())
        follower = _Follower(ledger)
        assert ledger.partition not in reading.followers, "a partition has one owner in a process"
        reading.followers[ledger.partition] = follower
        try:
            await trio.sleep(GATHER_S)
            if follower.end_offset is None and not follower.is_read_for:
                self._begin(number, reading)
            await follower.loaded.wait()
            if follower.failure is not None:
                raise follower.failure
            yield
        finally:
            del reading.followers[ledger.partition]
            if not reading.followers:
                reading.end()
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

    def _number(self, partition: TopicIdPartition) -> int:
        failure = self._event_log.failure()
        if failure is not None:
            raise MetadataLogError(failure)
        return metadata_partition(partition.topic_id, partition.partition, self._event_log.partition_count())

    def _begin(self, number: int, reading: "_Reading") -> None:
        """Read the metadata partition from its beginning, for all that follow it by now."""
        reading.end()
        reading.attempt += 1
        attempt = reading.attempt
        for follower in reading.followers.values():
            follower.is_read_for = True

        def deliver(events: Sequence[MetadataEvent]) -> None:
            decoded = [(event.offset, record) for event in events if (record := _decoded(event)) is not None]
            self._post(lambda: reading.note(attempt, decoded, events[-1].offset + 1))

        def progress(_number: int, position: int, end_offset: int) -> None:
            self._post(lambda: reading.advance(attempt, position, end_offset))

        try:
            reading.subscription = self._event_log.subscribe({number: 0}, deliver, progress)
        except RemoteStorageError as error:
            reading.fail(error)

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return  # nobody is left who would want to know


@dataclass(slots=True, eq=False)
class _Follower:
    """`next_offset`: what the ledger has noted ends there. `end_offset`: where the log ended when it was assigned."""

    ledger: Ledger
    next_offset: int = 0
    end_offset: int | None = None
    is_read_for: bool = False
    failure: RemoteStorageError | None = None
    loaded: trio.Event = field(default_factory=trio.Event)
    changed: trio.Event = field(default_factory=trio.Event)

    def note(self, offset: int, record: MetadataRecord) -> None:
        if offset < self.next_offset:
            return
        self.next_offset = offset + 1
        try:
            self.ledger.note(record)
        except RemoteStorageError as error:
            _log.warning("metadata_record_rejected", partition=str(self.ledger.partition), reason=str(error))

    def advance(self, position: int) -> None:
        self.next_offset = max(self.next_offset, position)
        self.changed.set()
        self.changed = trio.Event()


@dataclass(slots=True, eq=False)
class _Reading:
    """The reading of one metadata partition. What an earlier attempt still has under way is dropped."""

    followers: dict[TopicIdPartition, _Follower] = field(default_factory=dict)
    subscription: Subscription | None = None
    attempt: int = 0

    def note(self, attempt: int, records: Sequence[tuple[int, MetadataRecord]], position: int) -> None:
        if attempt != self.attempt:
            return
        for offset, record in records:
            follower = self.followers.get(partition_of(record))
            if follower is not None and follower.is_read_for:
                follower.note(offset, record)
        for follower in self.followers.values():
            if follower.is_read_for:
                follower.advance(position)

    def advance(self, attempt: int, position: int, end_offset: int) -> None:
        if attempt != self.attempt:
            return
        for follower in self.followers.values():
            if not follower.is_read_for:
                continue
            if follower.end_offset is None:
                follower.end_offset = end_offset
            if position >= follower.end_offset:
                follower.loaded.set()
            follower.advance(position)

    def fail(self, error: RemoteStorageError) -> None:
        for follower in self.followers.values():
            follower.failure = error
            follower.loaded.set()

    def end(self) -> None:
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.close()


def _decoded(event: MetadataEvent) -> MetadataRecord | None:
    if event.value is None:
        return None
    try:
        return decode(event.value)
    except MetadataRecordError as error:
        _log.warning(
            "metadata_record_skipped", metadata_partition=event.partition, offset=event.offset, reason=str(error)
        )
        return None


def partition_of(record: MetadataRecord) -> TopicIdPartition:
    """Which partition the record is about."""
    return (
        record.segment_id.topic_id_partition
        if isinstance(record, RemoteLogSegmentMetadataUpdate)
        else record.topic_id_partition
    )
