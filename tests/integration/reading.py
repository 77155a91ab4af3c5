"""What several files here read with: a consumer that goes on as far as it should, and an answer that is waited for."""

from collections.abc import Callable, Sequence
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.support.digests import Isolation, Settings, TopicDigest, confluent_consumer
from tests.support.waiting import HANG_S_MAX, wait_until

SLOW = {"queued.min.messages": 1, "fetch.message.max.bytes": 32 * 1024, "fetch.queue.backoff.ms": 5}
"""A consumer that holds hardly anything in advance."""


class Reading:
    """A librdkafka consumer with an assignment of its own. Ends of partitions are noted, and errors that end its
    reading."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        settings: Settings | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        partitions: Sequence[int] = (0,),
        first_offset: int = 0,
    ) -> None:
        self.first_offset = first_offset
        self.offsets: dict[int, list[int]] = {partition: [] for partition in partitions}
        self.errors: list[int] = []
        self.digest = TopicDigest(self.offsets)
        self.value_bytes = 0
        self._is_over = False
        self._topic = topic
        self._consumer: Consumer = confluent_consumer(bootstrap_servers, isolation, {**SLOW, **(settings or {})})

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(self._topic, each, self.first_offset) for each in self.offsets])
        return self

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()

    @property
    def jumps_at(self) -> int:
        """Return how many records of partition 0 from the first on came without a gap."""
        run = (at for at, offset in enumerate(self.offsets[0]) if offset != self.first_offset + at)
        return next(run, len(self.offsets[0]))

    def read_to(self, offset: int) -> None:
        """Up to the record before this offset, of partition 0."""
        self.read_on(lambda: bool(self.offsets[0]) and self.offsets[0][-1] >= offset - 1)

    def read_to_end(self) -> None:
        """To the end of the partition, or to an error."""
        self.read_on(lambda: self._is_over)

    def read_on(self, until: Callable[[], bool]) -> None:
        def is_there() -> bool:
            if not until():
                for message in self._consumer.consume(50, 0.1):
                    self._take(message)
            return until()

        had = {partition: len(offsets) for partition, offsets in self.offsets.items()}
        wait_until(is_there, f"a consumer that has {had} records to read on", timeout_s=HANG_S_MAX)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            partition, offset = self.digest.add_message(message)
            self.offsets[partition].append(offset)
            self.value_bytes += len(message.value() or b"")
            return
        self._is_over = True
        if error.code() != KafkaError._PARTITION_EOF:
            self.errors.append(error.code())
