"""The scenarios of tests/support/client_programs.py with kafka-python."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.support.client_scenarios import PARTITION_BYTES_MAX, Request, Taken, serve

POLL_RECORDS_MAX = 1_000_000


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

    def member(self, request: Request) -> "_Reader":
        # It commits before it rejoins by itself alone: a listener of the user's is not allowed to wait for a commit.
        settings = {"group_id": request.group, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 200}
        consumer = self._consumer(request, **settings, enable_auto_commit=True)
        consumer.subscribe([request.topic])
        return _Reader(consumer, request.topic)

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


if __name__ == "__main__":
    serve(KafkaPython)
