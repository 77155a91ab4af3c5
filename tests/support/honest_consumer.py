"""An honest consumer in a process of its own: it reads a topic again and again, and says how long it waited.

    with HonestConsumer(tidegate.address, "orders", ends) as honest:
        quiet = honest.measure(seconds=1)
        ...                                     # somebody misbehaves
        busy = honest.measure(seconds=3)
        assert busy.digests == {right}
        assert busy.worst_s < 0.5

What it waits for is bytes: an answer without records does not end a wait, it goes on with the next request. So does a
connection that ends; the consumer connects again and counts that. Its own process keeps the test's work out of its
times. It pauses a moment after each answer, as a consumer that works does, and so that it leaves the machine to others.

As a program it takes one JSON object, and then a command a line: `look` prints what was seen since the last `reset`,
`pause` and `go` stop and start the reading; it is not connected meanwhile. It ends with its standard input.
"""

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from protocol.record_batches import iterate_batches
from tests.support.needs import ROOT
from tests.support.raw_client import RawClient
from tests.support.waiting import HANG_S_MAX, wait_until

VERSION = 17
MAX_WAIT_MS = 500
ANSWER_BYTES = 1024 * 1024
WORK_S = 0.005
"""What it does with an answer."""
RETRY_S = 0.05
CLIENT_TIMEOUT_S = 60.0

PAUSE_S_MAX = 20.0
STARVED_S = 8.0
"""One wait that is so long says all: what is measured ends."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the consumer saw in some time. `worst_s` is its longest wait for bytes, one that goes on included."""

    rounds: int
    digests: frozenset[str]
    worst_s: float
    answers: int
    reconnects: int
    errors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Target:
    """What is read: every partition from offset 0 to its end here, one after the other."""

    host: str
    port: int
    topic: str
    ends: Mapping[int, int]
    user: str | None = None
    password: str = ""
    work_s: float = WORK_S


class HonestConsumer:
    """The process, as a context manager. Not thread-safe."""

    def __init__(
        self,
        address: tuple[str, int],
        topic: str,
        ends: Mapping[int, int],
        *,
        user: str | None = None,
        password: str = "",
    ) -> None:
        self._target = Target(*address, topic, ends, user, password)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.honest_consumer"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        target = self._target
        named = {name: getattr(target, name) for name in ("host", "port", "topic", "user", "password")}
        self._say(json.dumps({**named, "ends": list(target.ends.items())}))
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def measure(self, seconds: float, *, rounds: int = 1) -> Measured:
        """Return what is seen from now on, in at least so many seconds and whole rounds.

        It ends early when one wait is longer than STARVED_S.
        """
        self._say("reset")
        begun_s = time.monotonic()

        def is_enough(seen: Measured) -> bool:
            return seen.worst_s > STARVED_S or (seen.rounds >= rounds and time.monotonic() - begun_s >= seconds)

        def look() -> Measured | None:
            seen = self.look()
            return seen if is_enough(seen) else None

        found = wait_until(look, f"{rounds} rounds of the honest consumer", timeout_s=HANG_S_MAX)
        assert found is not None
        return found

    def look(self) -> Measured:
        """Return what was seen since the last reset."""
        seen = json.loads(self._ask("look"))
        del seen["is_paused"]
        return Measured(**{**seen, "digests": frozenset(seen["digests"])})

    def pause(self) -> None:
        """Let it stop behind an answer and close its connection, and return when it has."""
        assert json.loads(self._ask("pause"))["is_paused"], f"still no answer: {self.look()}"

    def go_on(self) -> None:
        self._ask("go")

    def _ask(self, command: str) -> str:
        self._say(command)
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the honest consumer ended with {self._process.wait()}"
        return line

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def read_once(address: tuple[str, int], topic: str, ends: Mapping[int, int]) -> str:
    """The digest of one round, read in this process: at a broker, it is what the consumer must get."""
    reading = Reading(Target(*address, topic, ends))
    reading.running.set()
    try:
        reading.round()
    finally:
        reading.close()
    (digest,) = reading.digests
    return digest


@dataclass(slots=True)
class Reading:
    """The loop of the program and what it has seen; `forever` runs in a thread of its own until `is_over` is set."""

    target: Target
    digests: set[str] = field(default_factory=set)
    rounds: int = 0
    answers: int = 0
    reconnects: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    worst_s: float = 0.0
    running: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    _waits_since_s: float | None = None
    _client: RawClient | None = None
    _topic_id: bytes = b""

    def forever(self) -> None:
        self.running.set()
        while not self.is_over.is_set():
            self.round()
        self.close()

    def round(self) -> None:
        """Read everything once; a connection that ends is made again where it was."""
        digest = hashlib.sha256()
        for partition, end in sorted(self.target.ends.items()):
            offset = 0
            while offset < end:
                if self.is_over.is_set():
                    return
                offset = self._step(digest, partition, offset)
        self.digests.add(digest.hexdigest())
        self.rounds += 1

    def reset(self) -> None:
        self.digests.clear()
        self.errors.clear()
        self.rounds = self.answers = self.reconnects = 0
        self.worst_s = 0.0
        if self._waits_since_s is not None:
            self._waits_since_s = time.monotonic()

    def seen(self) -> dict[str, Any]:
        since_s = self._waits_since_s
        waiting_s = 0.0 if since_s is None else time.monotonic() - since_s
        return {
            "rounds": self.rounds,
            "digests": sorted(self.digests),
            "worst_s": max(self.worst_s, waiting_s),
            "answers": self.answers,
            "reconnects": self.reconnects,
            "errors": dict(self.errors),
        }

    def _step(self, digest: "hashlib._Hash", partition: int, offset: int) -> int:
        """The offset behind what came, after one answer that has bytes."""
        self._waits_since_s = time.monotonic()
        while not (records := self.ask(partition, offset)):
            if self.is_over.is_set():
                return offset
        self.worst_s = max(self.worst_s, time.monotonic() - self._waits_since_s)
        self._waits_since_s = None
        self.answers += 1
        for position, header in iterate_batches([records]):
            if header.last_offset >= offset:
                digest.update(records[position : position + header.size_bytes])
                offset = header.last_offset + 1
        self.is_over.wait(self.target.work_s)
        if not self.running.is_set():
            self.close()
            self.paused.set()
            self.running.wait()
        return offset

    def ask(self, partition: int, offset: int) -> bytes:
        """The records of one answer; b"" after an error, too."""
        try:
            client = self._connected()
            target = (self.target.topic, self._topic_id, partition, offset, ANSWER_BYTES)
            (answer,) = client.fetch(VERSION, [target], max_bytes=ANSWER_BYTES, max_wait_ms=MAX_WAIT_MS).partitions
        except (OSError, EOFError) as error:
            self.errors[type(error).__name__] += 1
            self.reconnects += 1
            self.close()
            time.sleep(RETRY_S)
            return b""
        if answer.error_code:
            self.errors[str(answer.error_code)] += 1
            time.sleep(RETRY_S)
        return answer.records

    def _connected(self) -> RawClient:
        if self._client is None:
            with self._signed_in(self.target.host, self.target.port) as bootstrap:
                metadata = bootstrap.metadata([self.target.topic])
                (topic,) = metadata.topics
                leaders = {int(each.leader_id) for each in topic.partitions}
                (broker,) = (each for each in metadata.brokers if int(each.node_id) in leaders)
                self._topic_id = bytes(topic.topic_id.bytes)
            self._client = self._signed_in(broker.host, broker.port)
        return self._client

    def _signed_in(self, host: str, port: int) -> RawClient:
        client = RawClient(host, port, client_id="honest", timeout_s=CLIENT_TIMEOUT_S)
        if self.target.user is not None:
            try:
                assert client.sasl_plain(self.target.user, self.target.password) == 0
            except BaseException:
                client.close()
                raise
        return client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    ends = {int(partition): int(end) for partition, end in settings.pop("ends")}
    reading = Reading(Target(ends=ends, **settings))
    threading.Thread(target=reading.forever, daemon=True).start()
    for line in sys.stdin:
        command = line.strip()
        if command == "reset":
            reading.reset()
            continue
        if command == "pause":
            reading.running.clear()
            reading.paused.wait(PAUSE_S_MAX)
        elif command == "go":
            reading.paused.clear()
            reading.running.set()
        print(json.dumps({**reading.seen(), "is_paused": reading.paused.is_set()}), flush=True)


if __name__ == "__main__":
    main()
