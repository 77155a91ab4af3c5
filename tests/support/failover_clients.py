"""Clients that go on while replicas behind a balancer come and go, and what each of them has in the end.

    with LibrdkafkaFleet(bootstrap, topics, ROLES) as fleet:
        fleet.mark()
        ...                                     # end a replica; nobody tells the clients
        fleet.progress()                        # by role: how much it has done, and its longest wait since `mark`
        fleet.finish()                          # by role: what it has, to be compared with what the broker has

Four roles, each a client of its own with its library's default settings, but for those that bound what it has in
advance:

    reader          reads `history` from its beginning to its end, again and again, assigned; each pass has a digest
    producer        numbers, one after the other, to `numbers`, with idempotence
    transactions    numbers to `committed`, a few in each transaction; Java's with the next number as a group's offset
    group           subscribes to `live` and commits what it has got after each poll

`tests/integration/java/FailoverClients.java` has the same roles for the Java client.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.client_programs import ClientProgram, java_command
from tests.support.digests import Digests, PartitionDigest, TopicDigest, confluent_consumer
from tests.support.waiting import wait_until

BITE_RECORDS: Final = 200
BITE_S: Final = 0.02
"""A reader's pause after each bite: it is meant to be in the midst of a topic whenever a replica ends."""
QUEUED_MAX: Final = 500
"""Numbers that a producer has handed over and that are not acknowledged yet."""
TRANSACTION_RECORDS: Final = 20
TRANSACTION_S: Final = 30.0
POLL_S: Final = 0.1
END_S_MAX: Final = 60.0
"""What a role may take to end what it has begun: twice as long as any of its requests."""

RETRIED: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
"""What librdkafka tells of a connection that ended; it goes on by itself."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topics:
    """What the roles read and write. `ends`: of `history`, by partition."""

    history: str
    ends: Mapping[int, int]
    numbers: str
    committed: str
    live: str
    group: str
    """The group of the role `group`; that of `transactions`, and its transactional id, have a suffix of their own."""

    @property
    def transactional_id(self) -> str:
        return f"{self.group}-transactions"


@dataclass(frozen=True, slots=True)
class Progress:
    """How much a role has done, and how long it did nothing at the longest since it was last marked."""

    count: int
    stall_ms: int


@dataclass(slots=True)
class Steps:
    """Counts what a role does, and times the pauses between."""

    count: int = 0
    _last_s: float = field(default_factory=time.monotonic)
    _longest_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def made(self, count: int = 1) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._longest_s = max(self._longest_s, now_s - self._last_s)
            self._last_s = now_s
            self.count += count

    def mark(self) -> None:
        with self._lock:
            self._last_s, self._longest_s = time.monotonic(), 0.0

    def progress(self) -> Progress:
        with self._lock:
            return Progress(self.count, round(1000 * max(self._longest_s, time.monotonic() - self._last_s)))


class Fleet(Protocol):
    """Clients of one library, one for each role."""

    name: str

    def mark(self) -> None:
        """From here on stalls are counted anew."""

    def progress(self) -> dict[str, Progress]:
        """By role.

        Raises:
            AssertionError: one of them has failed.
        """

    def finish(self) -> dict[str, Result]:
        """Have each role end what it has begun; what it has, by role."""


class LibrdkafkaFleet:
    """Each role in a thread of its own."""

    name = "librdkafka"

    def __init__(self, bootstrap: str, topics: Topics, roles: Sequence[str]) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._is_over = threading.Event()
        self._steps = {role: Steps() for role in roles}
        self._results: dict[str, Result] = {}
        self._failures: dict[str, BaseException] = {}
        run: Mapping[str, Callable[[Steps], Result]] = {
            "reader": self._read,
            "producer": self._produce,
            "transactions": self._transact,
            "group": self._consume,
        }
        self._threads = [
            threading.Thread(target=self._run, args=(role, run[role]), name=f"{self.name} {role}", daemon=True)
            for role in roles
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(END_S_MAX)

    def mark(self) -> None:
        for steps in self._steps.values():
            steps.mark()

    def progress(self) -> dict[str, Progress]:
        for role, failure in self._failures.items():
            raise AssertionError(f"{self.name}, {role}: {failure!r}") from failure
        return {role: steps.progress() for role, steps in self._steps.items()}

    def finish(self) -> dict[str, Result]:
        self._is_over.set()
        wait_until(lambda: not any(thread.is_alive() for thread in self._threads), "an end", timeout_s=END_S_MAX)
        self.progress()
        return dict(self._results)

    def _run(self, role: str, run: Callable[[Steps], Result]) -> None:
        try:
            self._results[role] = run(self._steps[role])
        except BaseException as error:  # of a thread: told to whoever asks for progress
            self._failures[role] = error

    def _read(self, steps: Steps) -> Result:
        """Every pass begins at offset 0 and has every record once, or `digests` has more than one."""
        ends, digests, passes = self._topics.ends, [], 0
        small = {"queued.min.messages": 1, "fetch.message.max.bytes": 64 * 1024, "fetch.queue.backoff.ms": 5}
        with closing(confluent_consumer(self._bootstrap, "read_uncommitted", small)) as consumer:
            while not self._is_over.is_set():
                consumer.assign([TopicPartition(self._topics.history, each, OFFSET_BEGINNING) for each in ends])
                digest, unfinished = TopicDigest(ends), set(ends)
                while unfinished:
                    for message in consumer.consume(BITE_RECORDS, POLL_S):
                        if is_end(message):
                            unfinished.discard(message.partition() or 0)
                        elif is_record(message):
                            digest.add_message(message)
                            steps.made()
                    time.sleep(BITE_S)
                passes += 1
                if digest.result() not in digests:
                    digests.append(digest.result())
        return {"passes": passes, "digests": digests}

    def _produce(self, steps: Steps) -> Result:
        failed: list[str] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                steps.made()
            else:
                failed.append(str(error))

        producer = Producer({**self._common(), "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._is_over.is_set():
            if len(producer) < QUEUED_MAX:
                producer.produce(self._topics.numbers, str(number).encode(), partition=0, on_delivery=delivered)
                number += 1
            producer.poll(0.001)
        assert producer.flush(END_S_MAX) == 0
        return {"sent": number, "failed": failed}

    def _transact(self, steps: Steps) -> Result:
        """A transaction that has to be aborted is done anew, with the same numbers. No offsets are in it: where a
        connection ends at the wrong moment, librdkafka's send_offsets_to_transaction never returns, whatever is on the
        other side and whatever time limit it is given (confluentinc/librdkafka#5456, open at its 2.16).
        """
        common = {**self._common(), "transaction.timeout.ms": int(1000 * TRANSACTION_S)}
        producer = Producer({**common, "transactional.id": self._topics.transactional_id})
        producer.init_transactions(TRANSACTION_S)
        number, aborted = 0, 0
        while not self._is_over.is_set():
            try:
                producer.begin_transaction()
                for each in range(number, number + TRANSACTION_RECORDS):
                    producer.produce(self._topics.committed, str(each).encode(), partition=0)
                until_done(lambda: producer.commit_transaction(TRANSACTION_S))
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                until_done(lambda: producer.abort_transaction(TRANSACTION_S))
                aborted += 1
                continue
            number += TRANSACTION_RECORDS
            steps.made()
        return {"sent": number, "aborted": aborted}

    def _consume(self, steps: Steps) -> Result:
        """`next` by partition: behind the last record, each of which came right behind the one before."""
        settings = {"group.id": self._topics.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        following: dict[int, int] = {}
        repeated, commits_again = 0, 0
        with closing(Consumer({**self._common(), **settings})) as consumer:
            consumer.subscribe([self._topics.live])
            while not self._is_over.is_set():
                records = [message for message in consumer.consume(BITE_RECORDS, POLL_S) if is_record(message)]
                for message in records:
                    partition, offset = message.partition() or 0, message.offset() or 0
                    expected = following.get(partition, 0)
                    assert offset <= expected, f"partition {partition}: offset {offset} where {expected} comes next"
                    repeated += offset < expected
                    following[partition] = max(expected, offset + 1)
                    steps.made()
                if records:
                    commits_again += self._commit(consumer, following)
        return {"next": following, "repeated": repeated, "commits_again": commits_again}

    def _commit(self, consumer: Consumer, following: Mapping[int, int]) -> int:
        """How often it had to be asked again: a commit whose connection ends is the application's to repeat."""
        offsets = [TopicPartition(self._topics.live, partition, offset) for partition, offset in following.items()]
        deadline_s = time.monotonic() + END_S_MAX
        again = 0
        while True:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
                return again
            except KafkaException as error:
                is_retried = error.args[0].retriable() or error.args[0].code() in RETRIED
                if not is_retried or time.monotonic() > deadline_s:
                    raise
                again += 1

    def _common(self) -> dict[str, Any]:
        return {"bootstrap.servers": self._bootstrap, "log_level": 2}


class JavaFleet:
    """FailoverClients.java, a process."""

    name = "java"

    def __init__(self, bootstrap: str, topics: Topics, roles: Sequence[str]) -> None:
        self._program = ClientProgram(java_command("FailoverClients"), bootstrap)
        self._plan = {"scenario": "start", "roles": list(roles), **asdict(topics)}

    def __enter__(self) -> Self:
        self._ask(self._plan)
        return self

    def __exit__(self, *_error: object) -> None:
        self._program.close()

    def mark(self) -> None:
        self._ask({"scenario": "mark"})

    def progress(self) -> dict[str, Progress]:
        return {role: Progress(*now) for role, now in self._ask({"scenario": "progress"}).items()}

    def finish(self) -> dict[str, Result]:
        results = self._ask({"scenario": "finish"})
        for reader in (results[role] for role in results if role == "reader"):
            reader["digests"] = [digests_of(each) for each in reader["digests"]]
        for group in (results[role] for role in results if role == "group"):
            group["next"] = {int(partition): offset for partition, offset in group["next"].items()}
        return results

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._program.send(request)
        said = self._program.receive()
        assert "failure" not in said, f"{self.name}: {said}"
        return said


def digests_of(lines: Mapping[str, str]) -> Digests:
    """What the Java reader prints of a pass, by partition."""
    found = {}
    for partition, line in lines.items():
        records, first, last, sha256 = line.split()
        found[int(partition)] = PartitionDigest(int(records), int(first), int(last), sha256)
    return found


def until_done(act: Callable[[], None]) -> None:
    """As librdkafka asks of whoever uses transactions: what may be called again is called again."""
    while True:
        try:
            return act()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def is_record(message: Message) -> bool:
    """False for a connection that ended, of which a consumer is only told.

    Raises:
        AssertionError: it is another error.
    """
    error = message.error()
    assert error is None or error.code() in RETRIED, str(error)
    return error is None
