"""The scenarios of tests/support/client_programs.py for client libraries of Python, each behind an adapter.

    serve(lambda bootstrap_servers: KafkaPython(bootstrap_servers))

A program is asked by a line of JSON on stdin and answers by a line of JSON on stdout, until stdin ends; the bootstrap
servers are its only argument. What an adapter raises is the answer's "failure" (or, in `reset`, what is compared).
"""

import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.digests import Headers, TopicDigest

RESET_S_MAX = 30.0
"""How long a read out of range may bring nothing."""

HANG_S_MAX = 120.0
"""What is waited for is what ends a scenario; a group's two rebalances have taken 30 s on a busy machine."""

LINGER_S = 0.2
PRODUCE_EVERY_S = 0.3
PARTITION_BYTES_MAX = 16 * 1024
"""A consumer's limit for a partition in one Fetch: a topic needs many of them."""


@dataclass(frozen=True, slots=True)
class Sasl:
    """How to sign in. `handshake` is the version of SaslHandshake, for clients that have a choice."""

    mechanism: str
    username: str
    password: str
    handshake: int = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One line of stdin; a scenario has the members that it needs. `lasts` are the last visible offsets."""

    scenario: str
    topic: str
    group: str = ""
    protocol: str = "classic"
    isolation: str = "read_uncommitted"
    lasts: dict[int, int] = field(default_factory=dict)
    timestamps_ms: tuple[int, ...] = ()
    records: int = 0
    paused: tuple[int, ...] = ()
    policy: str = "none"
    offset: int = 0
    start: int = 0
    end: int = 0
    sasl: Sasl | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """One record as a client gave it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Reader(Protocol):
    """A consumer, alone or of a group."""

    def poll(self, timeout_s: float) -> Iterable[Taken]: ...
    def assigned(self) -> Collection[int]: ...
    def pause(self, partitions: Collection[int]) -> None: ...
    def resume(self, partitions: Collection[int]) -> None: ...
    def close(self) -> None: ...


class ClientLibrary(Protocol):
    """What makes consumers. `starts` are offsets by partition, None is the beginning."""

    def reader(self, request: Request, starts: Mapping[int, int | None]) -> Reader: ...
    def member(self, request: Request) -> Reader:
        """One that commits what it has read before it gives it up."""

    def offsets_for_times(self, request: Request, timestamp_ms: int) -> Mapping[int, tuple[int, ...]]:
        """Offset first, then whatever else the library tells; no entry, no such record."""

    def produce(self, topic: str, value: bytes) -> None: ...


def serve(library_of: Callable[[str], ClientLibrary]) -> None:
    """Answer until stdin ends."""
    library = library_of(sys.argv[1])
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            answer = {"answer": _run(library, _request(json.loads(line)))}
        except Exception as error:
            answer = {"failure": "".join(traceback.format_exception(error))}
        print(json.dumps(answer), flush=True)


def _request(members: dict[str, Any]) -> Request:
    members["lasts"] = {int(partition): last for partition, last in members.get("lasts", {}).items()}
    if members.get("sasl"):
        members["sasl"] = Sasl(**members["sasl"])
    return Request(**members)


def _run(library: ClientLibrary, request: Request) -> dict[str, Any]:
    scenarios = {"digest": _digest, "timestamps": _timestamps, "group": _group, "pause": _pause, "reset": _reset}
    return scenarios[request.scenario](library, request)


class _Read:
    """A read in order: a digest, and how far each partition has come."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self.digest = TopicDigest(partitions)
        self.last: dict[int, int] = {}
        self.count: dict[int, int] = {}

    def take(self, each: Taken) -> None:
        self.digest.add(each.partition, each.offset, each.timestamp_ms, each.key, each.value, each.headers)
        self.last[each.partition] = each.offset
        self.count[each.partition] = self.count.get(each.partition, 0) + 1

    def reached(self, lasts: Mapping[int, int], left_out: Collection[int] = ()) -> bool:
        wanted = {partition: last for partition, last in lasts.items() if partition not in left_out}
        return all(self.last.get(partition, -1) >= last for partition, last in wanted.items())

    def result(self) -> dict[int, Any]:
        return {partition: dataclasses.asdict(each) for partition, each in self.digest.result().items()}


def _digest(library: ClientLibrary, request: Request) -> dict[str, Any]:
    read = _Read(request.lasts)
    reader = library.reader(request, dict.fromkeys(request.lasts))
    try:
        _poll_until(lambda: read.reached(request.lasts), [reader], read.take)
        for each in reader.poll(LINGER_S):
            read.take(each)
    finally:
        reader.close()
    return {"partitions": read.result()}


def _timestamps(library: ClientLibrary, request: Request) -> dict[str, Any]:
    found = []
    for timestamp_ms in request.timestamps_ms:
        offsets = library.offsets_for_times(request, timestamp_ms)
        read, wanted = _Read(request.lasts), {}
        for partition, (offset, *_) in offsets.items():
            wanted[partition] = min(request.records, request.lasts[partition] - offset + 1)
        if offsets:
            _read_some(library, request, read, {partition: each[0] for partition, each in offsets.items()}, wanted)
        found.append({"timestamp_ms": timestamp_ms, "offsets": offsets, "partitions": read.result()})
    return {"found": found}


def _read_some(
    library: ClientLibrary, request: Request, read: _Read, starts: Mapping[int, int], wanted: Mapping[int, int]
) -> None:
    def take(each: Taken) -> None:
        if read.count.get(each.partition, 0) < request.records:
            read.take(each)

    reader = library.reader(request, starts)
    try:
        _poll_until(lambda: all(read.count.get(each, 0) >= count for each, count in wanted.items()), [reader], take)
    finally:
        reader.close()


def _group(library: ClientLibrary, request: Request) -> dict[str, Any]:
    records: dict[tuple[int, int], Taken] = {}
    partitions = sorted(request.lasts)

    def take(each: Taken) -> None:
        records[each.partition, each.offset] = each

    def has_all() -> bool:
        return sorted(first.assigned()) == partitions and bool(records)

    def have_both() -> bool:
        shares = [first.assigned(), second.assigned()]
        return all(shares) and sorted([*shares[0], *shares[1]]) == partitions

    first = library.member(request)
    try:
        _poll_until(has_all, [first], take)
        second = library.member(request)
        try:
            _poll_until(have_both, [first, second], take)
        finally:
            second.close()
        _poll_until(lambda: has_all() and all(last in records for last in request.lasts.items()), [first], take)
    finally:
        first.close()
    read = _Read(partitions)
    for _, each in sorted(records.items()):
        read.take(each)
    return {"partitions": read.result()}


def _pause(library: ClientLibrary, request: Request) -> dict[str, Any]:
    read = _Read(request.lasts)
    reader = library.reader(request, dict.fromkeys(request.lasts))
    try:
        _poll_until(lambda: all(each in read.last for each in request.paused), [reader], read.take)
        reader.pause(request.paused)
        _poll_until(lambda: read.reached(request.lasts, request.paused), [reader], read.take)
        stopped = all(read.last[each] < request.lasts[each] for each in request.paused)
        reader.resume(request.paused)
        _poll_until(lambda: read.reached(request.lasts), [reader], read.take)
    finally:
        reader.close()
    return {"stopped": stopped, "partitions": read.result()}


def _reset(library: ClientLibrary, request: Request) -> dict[str, Any]:
    reader = library.reader(request, {0: request.offset})
    deadline_s = time.monotonic() + RESET_S_MAX
    first: int | None = None
    try:
        while first is None and time.monotonic() < deadline_s:
            first = next((each.offset for each in reader.poll(PRODUCE_EVERY_S)), None)
            library.produce(request.topic, b"something new")
    except Exception as error:
        return {"error": _name(error)}
    finally:
        reader.close()
    if first == request.start:
        return {"first": "start"}
    return {"first": "end" if first is not None and first >= request.end else first}


def _name(error: Exception) -> str:
    """librdkafka has one exception for all its errors."""
    names = [each.name() for each in error.args if hasattr(each, "name")]
    return " ".join([type(error).__name__, *names])


def _poll_until(done: Callable[[], bool], readers: Sequence[Reader], take: Callable[[Taken], None]) -> None:
    deadline_s = time.monotonic() + HANG_S_MAX
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no end in {HANG_S_MAX:g} s")
        for reader in readers:
            for each in reader.poll(0.05):
                take(each)
