"""The scenarios of tests/support/client_programs.py with kafka-python."""

import queue
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.support.client_scenarios import PARTITION_BYTES_MAX, Request, Taken, serve

POLL_RECORDS_MAX = 1_000_000
MEMBER_POLL_S = 1.0
"""Long enough for a group's join to end within it."""


class KafkaPython:
    """See ClientLibrary."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers.split(",")
        self._producer: Any = None

    def reader(self, request: Request, starts: Mapping[int, int | None]) -> "_Reader":
        consumer = self._consumer(request, auto_offset_reset=request.policy)
        consumer.assign([TopicPartition(request.topic, partition) for partition in starts])
        for partition, offset in starts.items():
            if offset is None:
                consumer.seek_to_beginning(TopicPartition(request.topic, partition))
            else:
                consumer.seek(TopicPartition(request.topic, partition), offset)
        return _Reader(consumer, request.topic)

    def member(self, request: Request) -> "_Member":
        # It commits before it rejoins by itself alone: a listener of the user's is not allowed to wait for a commit.
        settings = {"group_id": request.group, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 200}
        consumer = self._consumer(request, **settings, enable_auto_commit=True)
        consumer.subscribe([request.topic])
        return _Member(consumer, request.topic)

    def offsets_for_times(self, request: Request, timestamp_ms: int) -> Mapping[int, tuple[int, ...]]:
        consumer = self._consumer(request)
        try:
            asked = {TopicPartition(request.topic, partition): timestamp_ms for partition in request.lasts}
            answered = consumer.offsets_for_times(asked)
            return {
                partition.partition: (each.offset, each.timestamp, each.leader_epoch)
                for partition, each in sorted(answered.items())
                if each is not None
            }
        finally:
            consumer.close()

    def produce(self, topic: str, value: bytes) -> None:
        if self._producer is None:
            self._producer = KafkaProducer(bootstrap_servers=self._bootstrap_servers)
        self._producer.send(topic, value).get(20)

    def _consumer(self, request: Request, **settings: Any) -> Any:
        if "isolation_level" in KafkaConsumer.DEFAULT_CONFIG:  # 2.0 knows of no transactions
            settings["isolation_level"] = request.isolation
        if request.sasl is not None:
            settings |= {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": request.sasl.mechanism,
                "sasl_plain_username": request.sasl.username,
                "sasl_plain_password": request.sasl.password,
            }
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=PARTITION_BYTES_MAX,
            # A poll gives out whole Fetch answers: 3.0 never goes on with one that is paused in the middle, if the
            # answer after it is all read by the time the partition is resumed. At the broker as through Tidegate.
            max_poll_records=POLL_RECORDS_MAX,
            **{"auto_offset_reset": "none", "enable_auto_commit": False, **settings},
        )


class _Reader:
    def __init__(self, consumer: Any, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def poll(self, timeout_s: float) -> Iterator[Taken]:
        for records in self._consumer.poll(timeout_ms=int(timeout_s * 1000)).values():
            for each in records:
                yield Taken(each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)

    def assigned(self) -> Collection[int]:
        return [each.partition for each in self._consumer.assignment()]

    def pause(self, partitions: Collection[int]) -> None:
        self._consumer.pause(*self._of(partitions))

    def resume(self, partitions: Collection[int]) -> None:
        self._consumer.resume(*self._of(partitions))

    def close(self) -> None:
        self._consumer.close()

    def _of(self, partitions: Iterable[int]) -> list[Any]:
        return [TopicPartition(self._topic, partition) for partition in partitions]


class _Member(_Reader):
    """Polled in a thread of its own: 3.0 throws away a join that ends between two polls, and sends it again, so members
    that take turns may never come to an end."""

    def __init__(self, consumer: Any, topic: str) -> None:
        super().__init__(consumer, topic)
        self._taken: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        self._assigned: Collection[int] = ()
        self._failure: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def poll(self, timeout_s: float) -> Iterator[Taken]:
        if self._failure is not None:
            raise self._failure
        try:
            yield self._taken.get(timeout=timeout_s)
            while True:
                yield self._taken.get_nowait()
        except queue.Empty:
            return

    def assigned(self) -> Collection[int]:
        return self._assigned

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        # What nobody has taken is not committed: it is the next member's.
        left: dict[int, int] = {}
        while not self._taken.empty():
            each = self._taken.get()
            left.setdefault(each.partition, each.offset)
        for partition, offset in left.items():
            self._consumer.seek(TopicPartition(self._topic, partition), offset)
        super().close()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                for each in super().poll(MEMBER_POLL_S):
                    self._taken.put(each)
                self._assigned = super().assigned()
        except Exception as error:
            self._failure = error


if __name__ == "__main__":
    serve(KafkaPython)
