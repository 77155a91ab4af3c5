"""Real clients that read a whole topic side by side, each in a thread of its own, whatever happens to Tidegate.

    with Backfills(bootstrap_servers, topic, ends) as backfills:
        ...                                     # kill and start Tidegate; nobody tells the clients
        digests = backfills.finish()            # by client, to be compared with the broker's own

Each client checks as it goes that a partition's records come one behind the other, from offset 0 to its end: nothing
twice, nothing left out. The topic must have neither transactions nor gaps. A client takes small bites and waits when it
is far ahead of the slowest, so that at any moment of the whole all of them are in the middle of reading.

kafka-python is not among them: it leaves sockets open that could not connect, which is an error in this test run.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final, Self

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.support.digests import Digests, Headers, TopicDigest, confluent_consumer, fields_of
from tests.support.kafka import fresh_name
from tests.support.waiting import POLL_S, wait_until

STALL_S: Final = 60.0
"""Without a record for so long a client has failed."""
FINISH_S: Final = 200.0
"""Ten times what it takes: other work on the machine must not fail a test."""
LEAD_MAX: Final = 0.1
"""How far a client may be ahead of the slowest, as a share of the topic."""
BITE_RECORDS: Final = 200
BITE_S: Final = 0.05
"""What a client does with a bite: they do not read as fast as they can, so that a kill has time to be meant."""
FETCH_PARTITION_BYTES: Final = 64 * 1024
RECONNECT_MS_MAX: Final = 200

TRANSPORT_ERRORS: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
"""What librdkafka says of a Tidegate that is not there; it repeats by itself."""


class Backfill:
    """One client, and how far it has come."""

    def __init__(self, name: str, topic: str, ends: Mapping[int, int], may_go_on: Callable[["Backfill"], bool]) -> None:
        self.name: Final = name
        self.topic: Final = topic
        self.ends: Final = dict(ends)
        self.records = 0
        self.transport_errors = 0
        self.failure: BaseException | None = None
        self._may_go_on = may_go_on
        self._digest = TopicDigest(ends)
        self._next = dict.fromkeys(ends, 0)
        self._heard_s = time.monotonic()

    @property
    def is_done(self) -> bool:
        return self._next == self.ends

    def take(
        self, partition: int, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """The next record.

        Raises:
            AssertionError: it is not the one behind the last.
        """
        expected = self._next[partition]
        assert offset == expected, f"{self.name}: partition {partition}: offset {offset} where {expected} comes next"
        self._digest.add(partition, offset, timestamp_ms, key, value, headers)
        self._next[partition] = offset + 1
        self.records += 1
        self._heard_s = time.monotonic()

    def must_wait(self) -> bool:
        """Whether the others have to catch up first.

        Raises:
            AssertionError: nothing has come for STALL_S.
        """
        if not self._may_go_on(self):
            self._heard_s = time.monotonic()
            return True
        silent_s = time.monotonic() - self._heard_s
        assert silent_s < STALL_S, f"{self.name}: nothing for {silent_s:.0f} s at {self._next} of {self.ends}"
        return False

    def result(self) -> Digests:
        return self._digest.result()


Read = Callable[[str, Backfill], None]
"""Bootstrap servers, and whom to give the records."""


class BackfillsStopped(Exception):
    """The test has ended, and with it whoever still reads."""


class Backfills:
    """All clients of `readers`, running; a context manager, which ends them."""

    def __init__(
        self, bootstrap_servers: str, topic: str, ends: Mapping[int, int], readers: Mapping[str, Read] | None = None
    ) -> None:
        chosen = READERS if readers is None else readers
        self.total_records: Final = sum(ends.values()) * len(chosen)
        self._lead_max_records = LEAD_MAX * sum(ends.values())
        self._are_stopped = False
        self._clients = {name: Backfill(name, topic, ends, self._may_go_on) for name in chosen}
        self._threads = [
            threading.Thread(target=self._run, args=(read, bootstrap_servers, self._clients[name]), name=name)
            for name, read in chosen.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._are_stopped = True
        for thread in self._threads:
            thread.join(STALL_S)

    @property
    def clients(self) -> Sequence[Backfill]:
        return list(self._clients.values())

    @property
    def records(self) -> int:
        """What all have read up to now."""
        return sum(client.records for client in self._clients.values())

    def wait_records(self, records: int) -> None:
        """Block until all together have read so many.

        Raises:
            AssertionError: a client has failed, or they do not get so far.
        """
        deadline_s = time.monotonic() + FINISH_S
        while self.records < records:
            self.check()
            assert time.monotonic() < deadline_s, f"{self.records} of {records} records in {FINISH_S:g} s"
            # Short: the moment is meant to be one of their progress.
            time.sleep(0.001)

    def finish(self) -> dict[str, Digests]:
        """Wait for all; what each has read."""
        wait_until(self._have_ended, "all clients have read everything", timeout_s=FINISH_S)
        self.check()
        assert all(client.is_done for client in self.clients)
        return {name: client.result() for name, client in self._clients.items()}

    def check(self) -> None:
        """Raise what a client has failed by."""
        for client in self.clients:
            if client.failure is not None:
                raise AssertionError(f"{client.name} has failed: {client.failure!r}") from client.failure

    def _have_ended(self) -> bool:
        self.check()
        return not any(thread.is_alive() for thread in self._threads)

    def _may_go_on(self, client: Backfill) -> bool:
        if self._are_stopped:
            raise BackfillsStopped
        return client.records - min(each.records for each in self.clients) <= self._lead_max_records

    @staticmethod
    def _run(read: Read, bootstrap_servers: str, client: Backfill) -> None:
        try:
            read(bootstrap_servers, client)
        except BackfillsStopped:
            return
        except BaseException as error:  # of a thread: told to whoever waits for the client
            client.failure = error


def _read_assigned(bootstrap_servers: str, client: Backfill) -> None:
    with closing(_confluent(bootstrap_servers, client, {})) as consumer:
        consumer.assign([TopicPartition(client.topic, partition, OFFSET_BEGINNING) for partition in client.ends])
        _drain(consumer, client)


def _read_as_a_group(bootstrap_servers: str, client: Backfill) -> None:
    # Should it ever be sent to the beginning again, `take` says so.
    settings = {"group.id": fresh_name("restarted"), "auto.offset.reset": "earliest"}
    with closing(_confluent(bootstrap_servers, client, settings)) as consumer:
        consumer.subscribe([client.topic])
        _drain(consumer, client)


def _confluent(bootstrap_servers: str, client: Backfill, settings: Mapping[str, str]) -> Consumer:
    def note(error: KafkaError) -> None:
        if error.code() in TRANSPORT_ERRORS:
            client.transport_errors += 1
        else:
            client.failure = AssertionError(str(error))

    small_bites = {
        "enable.partition.eof": False,
        "fetch.message.max.bytes": FETCH_PARTITION_BYTES,
        "queued.min.messages": 1,
        "queued.max.messages.kbytes": 256,
        "fetch.queue.backoff.ms": 5,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
    }
    return confluent_consumer(bootstrap_servers, "read_uncommitted", {**small_bites, "error_cb": note, **settings})


def _drain(consumer: Consumer, client: Backfill) -> None:
    while not client.is_done:
        if client.must_wait():
            time.sleep(POLL_S)
            continue
        time.sleep(BITE_S)
        for message in consumer.consume(BITE_RECORDS, 0.1):
            error = message.error()
            if error is not None:
                assert error.code() in TRANSPORT_ERRORS, str(error)
                client.transport_errors += 1
                continue
            client.take(*fields_of(message))


def _read_with_aiokafka(bootstrap_servers: str, client: Backfill) -> None:
    asyncio.run(_read_asynchronously(bootstrap_servers, client))


async def _read_asynchronously(bootstrap_servers: str, client: Backfill) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=100,
        max_partition_fetch_bytes=FETCH_PARTITION_BYTES,
    )
    await consumer.start()
    try:
        of_partition = [AioTopicPartition(client.topic, partition) for partition in client.ends]
        consumer.assign(of_partition)
        await consumer.seek_to_beginning()
        while not client.is_done:
            if client.must_wait():
                await asyncio.sleep(POLL_S)
                continue
            await asyncio.sleep(BITE_S)
            for records in (await consumer.getmany(timeout_ms=100, max_records=BITE_RECORDS)).values():
                for each in records:
                    client.take(each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
    finally:
        await consumer.stop()


READERS: Final[Mapping[str, Read]] = {
    "librdkafka": _read_assigned,
    "librdkafka, a group": _read_as_a_group,
    "aiokafka": _read_with_aiokafka,
}
