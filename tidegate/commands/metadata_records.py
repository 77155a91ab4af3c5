"""The records of the metadata topic from its first to its last, for a command that must have seen every one of them.

Unlike a catalog it never begins with a snapshot, forgets nothing with a partition that went, and fails where `serve`
would go on: records that are lost by retention, or that could not be taken in, are an error that says so.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from proxy.upstream.metadata_topic import METADATA_TOPIC, KafkaMetadataTopicClient
from storage.errors import TierError
from storage.metadata.reading import MetadataEvent, PartitionReading
from storage.metadata.topic_log import TopicMetadataEventLog
from tidegate.commands.tier import POLL_S, SILENCE_S, MetadataTopic, Told

DESCRIBE_S_MAX: Final = 30.0

Take = Callable[[Sequence[MetadataEvent]], None]


class WholeTopic:
    """Every record is handed to `take` in the trio thread; `catch_up` returns when all that there are now have been."""

    def __init__(self, event_log: TopicMetadataEventLog, take: Take) -> None:
        self._event_log = event_log
        self._take = take
        self._failure: Exception | None = None
        self._numbers = range(event_log.partition_count())
        self._positions = dict.fromkeys(self._numbers, 0)
        event_log.subscribe(self._positions, self._deliver, self._advance)

    async def catch_up(self, told: Told | None = None) -> None:
        """Return once every record has been taken in that the topic holds now.

        Raises:
            TierError: a partition cannot be read or has lost records, or the topic is another one by now.
            RemoteStorageError: it does not say where it ends.
        """
        self._check()
        ranges = await self._event_log.sample_ranges(self._numbers)
        for number, (log_start_offset, _) in ranges.items():
            if log_start_offset > 0:
                raise TierError(
                    f"{METADATA_TOPIC}-{number} begins at offset {log_start_offset}: the records before are lost, by"
                    " retention or deletion, and brokers may still serve segments that only those named. Set its"
                    " retention.ms and retention.bytes to -1"
                )
        total = sum(end for _, end in ranges.values())
        left_before, heard_at_s = -1, trio.current_time()
        while left := sum(max(0, end - self._positions[number]) for number, (_, end) in ranges.items()):
            self._check()
            if told is not None:
                told(total - left, total)
            if left != left_before:
                left_before, heard_at_s = left, trio.current_time()
            elif trio.current_time() - heard_at_s >= SILENCE_S:
                problems = "; ".join(self._event_log.problems().values()) or "its partitions say nothing"
                raise TierError(
                    f"{METADATA_TOPIC} gave none of the {left} records that are left for {SILENCE_S:g} s"
                    f" ({problems}): see whether its partitions have leaders, and run the command again"
                )
            await trio.sleep(POLL_S)
        for number, reason in self._event_log.problems().items():
            raise TierError(
                f"{METADATA_TOPIC}-{number} cannot be read: {reason}; see to its leader, and run the command again"
            )

    def _check(self) -> None:
        if self._failure is not None:
            raise TierError(
                f"records could not be taken in: {self._failure!r}: run the command again, where more memory is free"
            ) from self._failure
        failure = self._event_log.failure()
        if failure is not None:
            raise TierError(f"{failure}: run the command again")

    def _deliver(self, _reading: PartitionReading, events: Sequence[MetadataEvent]) -> None:
        try:
            self._take(events)
        except Exception as error:
            # The log goes on behind a slice that failed; who must have seen every record cannot.
            self._failure = error
            raise

    def _advance(self, reading: PartitionReading) -> None:
        self._positions[reading.number] = reading.position


@asynccontextmanager
async def whole_topic(topic: MetadataTopic, nursery: trio.Nursery, take: Take) -> AsyncIterator[WholeTopic]:
    """Follow a metadata topic from its beginning. What follows it lives in the nursery.

    Raises:
        TierError: it is not described within DESCRIBE_S_MAX.
    """
    event_log = TopicMetadataEventLog(KafkaMetadataTopicClient(topic.cluster))
    with trio.move_on_after(DESCRIBE_S_MAX) as described:
        await nursery.start(event_log.run)
    if described.cancelled_caught:
        why = event_log.failure() or f"{METADATA_TOPIC} was not described within {DESCRIBE_S_MAX:g} s"
        raise TierError(f"{why}; `tidegate check FILE` tries each step by itself")
    yield WholeTopic(event_log, take)
