"""The scenarios of tests/support/client_programs.py with librdkafka, by confluent-kafka."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.client_scenarios import PARTITION_BYTES_MAX, Request, Taken, serve
from tests.support.digests import Isolation, confluent_consumer


class Confluent:
    """See ClientLibrary."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._producer: Producer | None = None

    def reader(self, request: Request, starts: Mapping[int, int | None]) -> "_Reader":
        policy = {"none": "error"}.get(request.policy, request.policy)
        consumer = self._consumer(request, {"auto.offset.reset": policy})
        consumer.assign(
            [
                TopicPartition(request.topic, partition, OFFSET_BEGINNING if offset is None else offset)
                for partition, offset in starts.items()
            ]
        )
        return _Reader(consumer, request.topic)

    def member(self, request: Request) -> "_Reader":
        settings = {"group.id": request.group, "group.protocol": request.protocol, "auto.offset.reset": "earliest"}
        if request.protocol == "classic":
            settings["heartbeat.interval.ms"] = "200"
        consumer = self._consumer(request, settings)
        consumer.subscribe([request.topic], on_revoke=_commit)
        return _Reader(consumer, request.topic)

    def offsets_for_times(self, request: Request, timestamp_ms: int) -> Mapping[int, tuple[int, ...]]:
        consumer = self._consumer(request, {})
        try:
            asked = [TopicPartition(request.topic, partition, timestamp_ms) for partition in sorted(request.lasts)]
            answered = consumer.offsets_for_times(asked, 20)
        finally:
            consumer.close()
        for each in answered:
            if each.error is not None:
                raise KafkaException(each.error)
        # librdkafka says -1, the end, where there is no such record.
        return {each.partition: (each.offset,) for each in answered if each.offset >= 0}

    def produce(self, topic: str, value: bytes) -> None:
        if self._producer is None:
            self._producer = Producer({"bootstrap.servers": self._bootstrap_servers})
        self._producer.produce(topic, value)
        self._producer.flush(20)

    def _consumer(self, request: Request, settings: Mapping[str, str]) -> Consumer:
        always: dict[str, str | int | bool] = {
            "enable.partition.eof": False,
            "max.partition.fetch.bytes": PARTITION_BYTES_MAX,
            # It is the size of a queue: by default librdkafka fetches a small topic whole before it is paused.
            "queued.max.messages.kbytes": 16,
            "fetch.queue.backoff.ms": 10,
        }
        if request.sasl is not None:
            always |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": request.sasl.mechanism,
                "sasl.username": request.sasl.username,
                "sasl.password": request.sasl.password,
            }
        return confluent_consumer(self._bootstrap_servers, cast(Isolation, request.isolation), {**always, **settings})


def _commit(consumer: Consumer, _revoked: list[TopicPartition]) -> None:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:
            raise


class _Reader:
    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def poll(self, timeout_s: float) -> Iterator[Taken]:
        # One at a time: a batch may mix records from before and after a rebalance.
        for _ in range(500):
            message = self._consumer.poll(timeout_s)
            if message is None:
                return
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            if partition is None or offset is None:
                raise RuntimeError("a record without a place")
            # Produced ones may hold text or a mapping, consumed ones are bytes and a list of pairs.
            headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            yield Taken(partition, offset, message.timestamp()[1], message.key(), message.value(), headers)

    def assigned(self) -> Collection[int]:
        return [each.partition for each in self._consumer.assignment()]

    def pause(self, partitions: Collection[int]) -> None:
        self._consumer.pause(self._of(partitions))

    def resume(self, partitions: Collection[int]) -> None:
        self._consumer.resume(self._of(partitions))

    def close(self) -> None:
        self._consumer.close()

    def _of(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in partitions]


if __name__ == "__main__":
    serve(Confluent)
