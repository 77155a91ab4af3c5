"""The metadata event log on `__remote_log_metadata`, read as a plain client (docs/kafka-tier.md#reading-the-topic).

- One fetch loop for each followed partition. It samples the end offset, then fetches with a long poll for ever.
- Whatever goes wrong (leader, broker, connection, permission) is a *problem* of that partition: named by
  `problems()`, logged once when it begins and once when it is over, retried with back-off for ever.
- An offset below the log's start moves up to the start: retention took the records. An offset beyond the log's end
  is a problem: the log was truncated, and going backwards would deliver twice.
- Growth of the topic, a new topic id or a zero one is a *failure*: one log line, `failure()` says why, and managers
  are not ready. A zero id is looked at again (brokers may be upgraded under us); growth and a new id stay, because
  what was read so far is of another mapping or another topic.
- Delivery happens in the trio thread in slices of DELIVERY_RECORDS_MAX with a checkpoint after each. Each reader's
  lock is held during a slice only, so `remove` from any thread waits for one slice at most.
- Within `delivery_held` no slice is delivered: what the subscribers made of the log stands still (catalog snapshots).

No networking here: a `MetadataTopicClient` does it (proxy/upstream/metadata_topic.py), in the same trio run.
"""

import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog
import trio

from storage.backoff import Backoff
from storage.errors import MetadataLogError, MetadataNotReadyError, MetadataTopicAbsentError, RemoteStorageError
from storage.metadata.event_log import DELIVERY_RECORDS_MAX, Deliver, MetadataEvent, Progress, Subscription
from storage.metadata.record_batches import NO_TOPIC_ID, PartitionReader, TopicDescription, changed, position_within
from storage.model import ZERO_UUID

FETCH_MAX_WAIT_MS = 5_000
"""Long poll. Records end it at once, so a long one costs no latency: 50 idle partitions ask 10 times a second."""

DESCRIBE_INTERVAL_S = 60.0
"""How often growth and a changed topic id are looked for. Neither happens but by an operator's hand."""

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """One fetch's answer: records in offset order, perhaps some below the asked offset (batches are whole).

    `next_offset` is the offset after the last batch that was read, also when it held control records only or was
    compacted away; -1 when unknown: then it is the last record's offset + 1.
    """

    records: Sequence[MetadataEvent]
    high_watermark: int
    next_offset: int = -1


class MetadataTopicClient(Protocol):
    """What the log asks of the network. Methods may run concurrently; each may be cancelled.

    All raise RetriableRemoteStorageError for trouble that may pass and MetadataLogError for the rest.
    """

    async def describe(self) -> TopicDescription:
        """Look the topic up. MetadataLogError: absent or denied."""
        ...

    async def offsets(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Per partition (log start offset, high watermark)."""
        ...

    async def fetch(self, partition: int, offset: int, max_wait_ms: int) -> FetchedRecords:
        """Records from offset on, waiting up to max_wait_ms for the first.

        MetadataOffsetOutOfRange: the log does not hold that offset.
        """
        ...

    async def produce(self, partition: int, value: bytes) -> int:
        """Append one record (null key, acks=all); its offset."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class TopicMetadataEventLog:
    """The event log over the topic. `run` in the application's nursery; every other method from any thread.

    Until `run` has reported started, `partition_count` raises MetadataNotReadyError.

    Args:
        is_topic_made: a topic that is absent is no trouble: somebody here is making it.
    """

    def __init__(
        self,
        client: MetadataTopicClient,
        *,
        fetch_max_wait_ms: int = FETCH_MAX_WAIT_MS,
        describe_interval_s: float = DESCRIBE_INTERVAL_S,
        jitter_source: random.Random | None = None,
        is_topic_made: bool = False,
    ) -> None:
        self._client = client
        self._is_topic_made = is_topic_made
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._describe_interval_s = describe_interval_s
        self._jitter_source = jitter_source or random.Random()
        self._description: TopicDescription | None = None
        self.described = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._lock = threading.Lock()
        self._scopes: dict[PartitionReader, trio.CancelScope] = {}
        self._problems: dict[int, str] = {}
        self._failure: str | None = None
        self._gate = DeliveryGate()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled. Reports started once the topic was described; that is retried for ever. Called again
        after a fault, it goes on with the topic as it was described first, and with each reader where it was.

        Cancellation: ends all readers at their next checkpoint, closes the client, and fails later calls with
        MetadataLogError.
        """
        self._token = trio.lowlevel.current_trio_token()
        try:
            if self._description is None:
                await self._describe_until_usable()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    for reader in tuple(self._scopes):
                        self.start(reader)
                    self.described.set()
                    task_status.started()
                    await self._watch_topic()
                finally:
                    # Before the nursery closes: `start` must not find one that takes no more tasks.
                    self._nursery = None
        finally:
            self._token = None
            with trio.move_on_after(5, shield=True):
                await self._client.aclose()

    def description(self) -> TopicDescription:
        """The topic as it was at the start, which is what is followed; MetadataNotReadyError before that is known."""
        if self._description is None:
            raise MetadataNotReadyError("the metadata topic has not been described yet")
        return self._description

    def partition_count(self) -> int:
        return self.description().partition_count

    def publish(self, partition: int, value: bytes) -> int:
        self.check_partition(partition)
        return self._from_thread(lambda: self._client.produce(partition, value))

    async def sample_high_watermarks(self) -> Mapping[int, int]:
        """The next offset of every partition, as of now. For trio tasks."""
        offsets = await self.sample_ranges(range(self.partition_count()))
        return {partition: high_watermark for partition, (_, high_watermark) in offsets.items()}

    async def sample_ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """(log start offset, high watermark) of these partitions, for trio tasks."""
        return await self._client.offsets(partitions)

    def delivery_held(self) -> AbstractAsyncContextManager[None]:
        """Nothing is delivered within this block, and between slices is when it begins. For trio tasks."""
        return self._gate.held()

    def subscribe(
        self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress | None = None
    ) -> Subscription:
        for partition in start_offsets:
            self.check_partition(partition)
        subscription = _TopicSubscription(self, deliver, progress)
        for partition, start_offset in start_offsets.items():
            subscription.add(partition, start_offset)
        return subscription

    def problems(self) -> Mapping[int, str]:
        with self._lock:
            return dict(sorted(self._problems.items()))

    def failure(self) -> str | None:
        return self._failure

    def check_partition(self, partition: int) -> None:
        """Raises MetadataLogError for a partition that does not exist."""
        count = self.partition_count()
        if not 0 <= partition < count:
            raise MetadataLogError(f"metadata partition {partition} does not exist, the topic has {count}")

    def start(self, reader: "PartitionReader") -> None:
        """Begin a reader's fetch loop, from any thread."""
        scope = trio.CancelScope()
        with self._lock:
            self._scopes[reader] = scope
        self._in_trio(lambda: self._nursery.start_soon(self._read, reader, scope) if self._nursery else None)

    def stop(self, reader: "PartitionReader") -> None:
        """End a reader's fetch loop, from any thread; the reader is stopped already."""
        with self._lock:
            scope = self._scopes.pop(reader, None)
            self._problems.pop(reader.partition, None)
        if scope is not None and self._token is not None:
            self._in_trio(scope.cancel)

    async def _describe_until_usable(self) -> None:
        backoff = Backoff(source=self._jitter_source)
        reason = ""
        while True:
            is_awaited = False
            try:
                description = await self._client.describe()
            except Exception as error:
                trouble = f"the metadata topic cannot be described: {_reason(error)}"
                is_awaited = self._is_topic_made and isinstance(error, MetadataTopicAbsentError)
            else:
                if description.topic_id != ZERO_UUID:
                    self._description = description
                    self._failure = None
                    return
                trouble = f"the metadata topic {NO_TOPIC_ID}"
            self._failure = trouble
            if trouble != reason and is_awaited:
                _log.info("metadata_topic_awaited", reason=trouble)
            elif trouble != reason:
                _log.error("metadata_topic_not_usable", reason=trouble)
            reason = trouble
            await trio.sleep(backoff.next_delay_s())

    async def _watch_topic(self) -> None:
        assert self._description is not None, "run() described the topic before"
        while self._failure is None:
            await trio.sleep(self._describe_interval_s)
            try:
                description = await self._client.describe()
            except Exception as error:
                _log.warning("metadata_topic_not_described", reason=_reason(error))
                continue
            reason = changed(self._description, description)
            self._failure = None if reason is None else f"the metadata topic {reason}; restart to read it"
        _log.error("metadata_topic_not_usable", reason=self._failure)
        await trio.sleep_forever()

    async def _read(self, reader: "PartitionReader", scope: trio.CancelScope) -> None:
        """One partition, for ever; everything that fails is retried."""
        backoff = Backoff(source=self._jitter_source)
        with scope:
            while True:
                try:
                    await self._read_until_trouble(reader, backoff)
                except Exception as error:
                    # Every kind: a bug in the client must cost one partition its freshness, never the process.
                    self._note_problem(reader, error)
                    await trio.sleep(backoff.next_delay_s())

    async def _read_until_trouble(self, reader: "PartitionReader", backoff: Backoff) -> None:
        await self._sample(reader)
        while True:
            answer = await self._client.fetch(reader.partition, reader.position, self._fetch_max_wait_ms)
            self._note_recovery(reader, backoff)
            records = [record for record in answer.records if record.offset >= reader.position]
            for start in range(0, len(records), DELIVERY_RECORDS_MAX):
                await self._gate.passed()
                reader.hand_over(records[start : start + DELIVERY_RECORDS_MAX])
                await trio.lowlevel.checkpoint()
            reader.advance(answer.next_offset)
            await trio.lowlevel.checkpoint()

    async def _sample(self, reader: "PartitionReader") -> None:
        """Learn the log's range: at assignment for readiness, after trouble to see whether retention passed us."""
        offsets = await self._client.offsets([reader.partition])
        log_start_offset, high_watermark = offsets[reader.partition]
        position_within(reader.partition, reader.position, log_start_offset, high_watermark)
        reader.assign(log_start_offset, high_watermark)

    def _note_problem(self, reader: "PartitionReader", error: Exception) -> None:
        reason = _reason(error)
        with self._lock:
            if reader not in self._scopes:
                return
            is_new = reader.partition not in self._problems
            self._problems[reader.partition] = reason
        if is_new:
            _log.warning("metadata_partition_in_trouble", metadata_partition=reader.partition, reason=reason)

    def _note_recovery(self, reader: "PartitionReader", backoff: Backoff) -> None:
        backoff.reset()
        with self._lock:
            was_in_trouble = self._problems.pop(reader.partition, None) is not None
        if was_in_trouble:
            _log.info("metadata_partition_read_again", metadata_partition=reader.partition, position=reader.position)

    def _in_trio(self, call: Callable[[], object]) -> None:
        token = self._token
        if token is None:
            raise MetadataLogError("the metadata log is not running")
        try:
            token.run_sync_soon(call)
        except trio.RunFinishedError as error:
            raise MetadataLogError("the metadata log is not running") from error

    def _from_thread(self, call: Callable[[], Awaitable[T]]) -> T:
        token = self._token
        if token is None:
            raise MetadataLogError("the metadata log is not running")
        try:
            return trio.from_thread.run(call, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            # Cancelled comes from the trio side, which is ending; this thread is not a trio task.
            raise MetadataLogError("the metadata log was closed meanwhile") from error


class _TopicSubscription:
    """Its lock guards the table of readers only and is never held while a reader's is waited for."""

    def __init__(self, log: TopicMetadataEventLog, deliver: Deliver, progress: Progress | None) -> None:
        self._event_log = log
        self._deliver = deliver
        self._progress = progress
        self._lock = threading.Lock()
        self._readers: dict[int, PartitionReader] = {}
        self._closed = False

    def add(self, partition: int, start_offset: int) -> None:
        self._event_log.check_partition(partition)
        reader = PartitionReader(partition, start_offset, self._deliver, self._progress)
        with self._lock:
            if self._closed:
                raise MetadataLogError("the metadata subscription is closed")
            if partition in self._readers:
                raise MetadataLogError(f"metadata partition {partition} is assigned already")
            self._readers[partition] = reader
        self._event_log.start(reader)

    def remove(self, partition: int) -> None:
        with self._lock:
            reader = self._readers.pop(partition, None)
        if reader is not None:
            reader.stop()
            self._event_log.stop(reader)

    def assigned(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._readers)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for partition in self.assigned():
            self.remove(partition)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RemoteStorageError) else repr(error)


class DeliveryGate:
    """A gate that records pass one slice at a time, and that is shut while somebody needs the catalog to stand still.

    Owned by the trio thread. Records that wait are delivered after it, in order; a waiter can be cancelled.

    Open, unless somebody holds it.
    """

    def __init__(self) -> None:
        self._holders = 0
        self._opened = trio.Event()
        self._opened.set()

    async def passed(self) -> None:
        """Return when the gate is open. It stays so until the caller's next checkpoint."""
        while self._holders:
            await self._opened.wait()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Nobody passes within this block. It may be held several times at once."""
        if not self._holders:
            self._opened = trio.Event()
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self._opened.set()
