"""The metadata event log on `__remote_log_metadata`, read as a plain client (docs/kafka-tier.md#reading-the-topic).

- One fetch loop for each followed partition. It samples the end offset, then fetches with a long poll for ever.
- Whatever goes wrong (leader, broker, connection, permission) is a *problem* of that partition: named by
  `problems()`, logged once when it begins and once when it is over, retried with back-off for ever.
- An offset below the log's start moves up to the start: retention took the records. An offset beyond the log's end
  is a problem: the log was truncated, and going backwards would deliver twice.
- Growth of the topic, a new topic id or a zero one is a *failure*: one log line, `failure()` says why, and managers
  are not ready. A zero id is looked at again (brokers may be upgraded under us); growth and a new id stay, because
  what was read so far is of another mapping or another topic.
- Delivery happens in slices of DELIVERY_RECORDS_MAX with a checkpoint after each.
- Within `delivery_held` no slice is delivered: what the subscribers made of the log stands still (catalog snapshots).

No networking here: a `MetadataTopicClient` does it (proxy/upstream/metadata_topic.py), in the same trio run.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog
import trio

from storage.backoff import Backoff
from storage.errors import MetadataLogError, MetadataNotReadyError, MetadataTopicAbsentError, RemoteStorageError
from storage.metadata.event_log import DELIVERY_RECORDS_MAX, Close, Deliver, Progress, call_receiver
from storage.metadata.reading import NO_TOPIC_ID, MetadataEvent, PartitionReading, TopicDescription, changed
from storage.model import ZERO_UUID

FETCH_MAX_WAIT_MS = 5_000
"""Long poll. Records end it at once, so a long one costs no latency: 50 idle partitions ask 10 times a second."""

DESCRIBE_INTERVAL_S = 60.0
"""How often growth and a changed topic id are looked for. Neither happens but by an operator's hand."""

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

    async def aclose(self) -> None:
        """Close all connections."""
        ...


@dataclass(slots=True, eq=False)
class _Reader:
    """What one subscription reads of one partition."""

    reading: PartitionReading
    deliver: Deliver
    progress: Progress
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class TopicMetadataEventLog:
    """The event log over the topic. `run` in the application's nursery.

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
        self._nursery: trio.Nursery | None = None
        self._readers: list[_Reader] = []
        self._problems: dict[int, str] = {}
        self._failure: str | None = None
        self._gate = DeliveryGate()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled. Reports started once the topic was described; that is retried for ever. Called again
        after a fault, it goes on with the topic as it was described first, and with each reader where it was.

        Cancellation: ends all readers at their next checkpoint, closes the client, and fails later subscriptions.
        """
        try:
            if self._description is None:
                await self._describe_until_usable()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    for reader in self._readers:
                        self._start(reader, nursery)
                    self.described.set()
                    task_status.started()
                    await self._watch_topic()
                finally:
                    # Before the nursery closes: `subscribe` must not find one that takes no more tasks.
                    self._nursery = None
        finally:
            with trio.move_on_after(5, shield=True):
                await self._client.aclose()

    def description(self) -> TopicDescription:
        """The topic as it was at the start, which is what is followed; MetadataNotReadyError before that is known."""
        if self._description is None:
            raise MetadataNotReadyError("the metadata topic has not been described yet")
        return self._description

    def partition_count(self) -> int:
        return self.description().partition_count

    async def sample_high_watermarks(self) -> Mapping[int, int]:
        """The next offset of every partition, as of now."""
        offsets = await self.sample_ranges(range(self.partition_count()))
        return {partition: high_watermark for partition, (_, high_watermark) in offsets.items()}

    async def sample_ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """(log start offset, high watermark) of these partitions."""
        return await self._client.offsets(partitions)

    def delivery_held(self) -> AbstractAsyncContextManager[None]:
        """Nothing is delivered within this block, and between slices is when it begins."""
        return self._gate.held()

    def subscribe(self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress) -> Close:
        count = self.partition_count()
        if strangers := [number for number in start_offsets if not 0 <= number < count]:
            raise MetadataLogError(f"metadata partition {strangers[0]} does not exist, the topic has {count}")
        if self._nursery is None:
            raise MetadataLogError("the metadata log is not running")
        readings = [PartitionReading(number, offset) for number, offset in start_offsets.items()]
        readers = [_Reader(reading, deliver, progress) for reading in readings]
        for reader in readers:
            self._readers.append(reader)
            self._start(reader, self._nursery)

        def close() -> None:
            for reader in readers:
                if reader in self._readers:
                    self._readers.remove(reader)
                    self._problems.pop(reader.reading.number, None)
                    reader.scope.cancel()

        return close

    def problems(self) -> Mapping[int, str]:
        """Return partitions that cannot be read at the moment, with the reason in one sentence."""
        return dict(sorted(self._problems.items()))

    def failure(self) -> str | None:
        return self._failure

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

    def _start(self, reader: _Reader, nursery: trio.Nursery) -> None:
        reader.scope = trio.CancelScope()
        nursery.start_soon(self._read, reader)

    async def _read(self, reader: _Reader) -> None:
        """One partition, for ever; everything that fails is retried."""
        backoff = Backoff(source=self._jitter_source)
        with reader.scope:
            while True:
                try:
                    await self._read_until_trouble(reader, backoff)
                except Exception as error:
                    # Every kind: a bug in the client must cost one partition its freshness, never the process.
                    self._note_problem(reader, error)
                    await trio.sleep(backoff.next_delay_s())

    async def _read_until_trouble(self, reader: _Reader, backoff: Backoff) -> None:
        reading = reader.reading
        # At assignment for readiness, after trouble to see whether retention passed us.
        reading.move_into(*(await self._client.offsets([reading.number]))[reading.number])
        self._report(reader)
        while True:
            answer = await self._client.fetch(reading.number, reading.position, self._fetch_max_wait_ms)
            self._note_recovery(reader, backoff)
            records = reading.unread(answer.records)
            for start in range(0, len(records), DELIVERY_RECORDS_MAX):
                await self._gate.passed()
                self._hand_over(reader, records[start : start + DELIVERY_RECORDS_MAX])
                await trio.lowlevel.checkpoint()
            if reading.advance(answer.next_offset):
                self._report(reader)
            await trio.lowlevel.checkpoint()

    def _hand_over(self, reader: _Reader, records: Sequence[MetadataEvent]) -> None:
        """Deliver one slice and move behind it."""
        if reader in self._readers:
            call_receiver(reader.deliver, reader.reading, records)
            reader.reading.advance(records[-1].offset + 1)
            self._report(reader)

    def _report(self, reader: _Reader) -> None:
        if reader in self._readers:
            call_receiver(reader.progress, reader.reading)

    def _note_problem(self, reader: _Reader, error: Exception) -> None:
        if reader not in self._readers:
            return
        reason, number = _reason(error), reader.reading.number
        if number not in self._problems:
            _log.warning("metadata_partition_in_trouble", metadata_partition=number, reason=reason)
        self._problems[number] = reason

    def _note_recovery(self, reader: _Reader, backoff: Backoff) -> None:
        backoff.reset()
        if self._problems.pop(reader.reading.number, None) is not None:
            reading = reader.reading
            _log.info("metadata_partition_read_again", metadata_partition=reading.number, position=reading.position)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RemoteStorageError) else repr(error)


class DeliveryGate:
    """A gate that records pass one slice at a time, and that is shut while somebody needs the catalog to stand still.

    Records that wait are delivered after it, in order; a waiter can be cancelled.

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
