"""The scenarios of tests/support/client_programs.py with aiokafka, whose event loop runs while it is asked."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition

from tests.support.client_scenarios import PARTITION_BYTES_MAX, Request, Taken, serve

T = TypeVar("T")


class AioKafka:
    """See ClientLibrary."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._loop = asyncio.new_event_loop()
        self._producer: Any = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def reader(self, request: Request, starts: Mapping[int, int | None]) -> "_Reader":
        return self.run(self._reader(request, starts))

    def member(self, request: Request) -> "_Reader":
        return self.run(self._member(request))

    def offsets_for_times(self, request: Request, timestamp_ms: int) -> Mapping[int, tuple[int, ...]]:
        return self.run(self._offsets_for_times(request, timestamp_ms))

    def produce(self, topic: str, value: bytes) -> None:
        self.run(self._produce(topic, value))

    async def _reader(self, request: Request, starts: Mapping[int, int | None]) -> "_Reader":
        consumer = self._consumer(request, auto_offset_reset=request.policy)
        await consumer.start()
        consumer.assign([TopicPartition(request.topic, partition) for partition in starts])
        for partition, offset in starts.items():
            if offset is None:
                await consumer.seek_to_beginning(TopicPartition(request.topic, partition))
            else:
                consumer.seek(TopicPartition(request.topic, partition), offset)
        return _Reader(self, consumer, request.topic)

    async def _member(self, request: Request) -> "_Reader":
        settings = {"group_id": request.group, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 200}
        consumer = self._consumer(request, **settings)
        consumer.subscribe([request.topic], listener=_CommitWhenRevoked(consumer))
        await consumer.start()
        return _Reader(self, consumer, request.topic)

    async def _offsets_for_times(self, request: Request, timestamp_ms: int) -> Mapping[int, tuple[int, ...]]:
        consumer = self._consumer(request)
        await consumer.start()
        try:
            asked = {TopicPartition(request.topic, partition): timestamp_ms for partition in request.lasts}
            answered = await consumer.offsets_for_times(asked)
            return {
                partition.partition: (each.offset, each.timestamp)
                for partition, each in sorted(answered.items())
                if each is not None
            }
        finally:
            await consumer.stop()

    async def _produce(self, topic: str, value: bytes) -> None:
        if self._producer is None:
            self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap_servers)
            await self._producer.start()
        await self._producer.send_and_wait(topic, value)

    def _consumer(self, request: Request, **settings: Any) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            isolation_level=request.isolation,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=PARTITION_BYTES_MAX,
            **{"auto_offset_reset": "none", **settings},
        )


class _CommitWhenRevoked(ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        if revoked:
            await self._consumer.commit()

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        pass


class _Reader:
    def __init__(self, library: AioKafka, consumer: Any, topic: str) -> None:
        self._library = library
        self._consumer = consumer
        self._topic = topic

    def poll(self, timeout_s: float) -> Iterable[Taken]:
        answered = self._library.run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        for records in answered.values():
            for each in records:
                yield Taken(each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)

    def assigned(self) -> Collection[int]:
        return [each.partition for each in self._consumer.assignment()]

    def pause(self, partitions: Collection[int]) -> None:
        self._library.run(self._call(self._consumer.pause, partitions))

    def resume(self, partitions: Collection[int]) -> None:
        self._library.run(self._call(self._consumer.resume, partitions))

    def close(self) -> None:
        self._library.run(self._consumer.stop())

    async def _call(self, method: Callable[..., None], partitions: Collection[int]) -> None:
        """In the running loop, where alone these plain methods work."""
        method(*self._of(partitions))

    def _of(self, partitions: Iterable[int]) -> list[Any]:
        return [TopicPartition(self._topic, partition) for partition in partitions]


if __name__ == "__main__":
    serve(AioKafka)
