"""A metadata topic in memory behind MetadataTopicClient, with faults by script. Lives in one trio run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from storage.errors import MetadataOffsetOutOfRange
from storage.metadata.reading import MetadataEvent, TopicDescription
from storage.metadata.topic_log import FetchedRecords


@dataclass
class FakeMetadataTopic:
    """`faults` holds, by method name, what the next calls raise (None: that call goes through)."""

    partition_count: int = 3
    topic_id: bytes = b"metadata-topic-1"
    logs: dict[int, list[MetadataEvent]] = field(default_factory=dict)
    log_starts: dict[int, int] = field(default_factory=dict)
    faults: dict[str, list[Exception | None]] = field(default_factory=dict)
    calls: list[tuple[str, float]] = field(default_factory=list)
    fetches_open: set[int] = field(default_factory=set)
    closed: bool = False
    _changed: trio.Event = field(default_factory=trio.Event)

    async def describe(self) -> TopicDescription:
        await self._enter("describe")
        return TopicDescription(self.topic_id, self.partition_count)

    async def offsets(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        await self._enter("offsets")
        return {partition: self._range(partition) for partition in partitions}

    async def fetch(self, partition: int, offset: int, max_wait_ms: int) -> FetchedRecords:
        await self._enter("fetch")
        log_start, high_watermark = self._range(partition)
        if not log_start <= offset <= high_watermark:
            raise MetadataOffsetOutOfRange(f"{offset} is not in {log_start}..{high_watermark}")
        self.fetches_open.add(partition)
        try:
            with trio.move_on_after(max_wait_ms / 1000):
                while self._range(partition)[1] <= offset:
                    await self._changed.wait()
        finally:
            self.fetches_open.discard(partition)
        return self.answer(partition, offset)

    async def aclose(self) -> None:
        self.closed = True

    def answer(self, partition: int, offset: int) -> FetchedRecords:
        """Whole batches of ten records, so an answer may begin below the asked offset."""
        log_start, high_watermark = self._range(partition)
        first = max(offset - offset % 10, log_start)
        records = [event for event in self.logs.get(partition, []) if event.offset >= first]
        return FetchedRecords(records, high_watermark)

    def append(self, partition: int, *values: bytes | None) -> int:
        """Append from within the trio run; the last one's offset."""
        log = self.logs.setdefault(partition, [])
        for value in values:
            log.append(MetadataEvent(partition, self._range(partition)[1], 0, None, value))
        self._changed.set()
        self._changed = trio.Event()
        return log[-1].offset

    def delete_records(self, partition: int, before_offset: int) -> None:
        """Retention: the log now starts at before_offset."""
        self.logs[partition] = [event for event in self.logs[partition] if event.offset >= before_offset]
        self.log_starts[partition] = before_offset

    def _range(self, partition: int) -> tuple[int, int]:
        log = self.logs.get(partition)
        log_start = self.log_starts.get(partition, 0)
        return log_start, log[-1].offset + 1 if log else log_start

    async def _enter(self, method: str) -> None:
        self.calls.append((method, trio.current_time()))
        await trio.lowlevel.checkpoint()
        script = self.faults.get(method)
        fault = script.pop(0) if script else None
        if fault is not None:
            raise fault
