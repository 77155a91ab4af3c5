"""What goes wrong with the calls of a fake store, and when: the core of every store that fails as a test says.

Thread-safe. Faults are applied in the order they were added; each counts down by itself, once for a call that it
matches.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.support.waiting import until

HOLD_S_MAX = 30.0
"""A held call gives up after this long: a failing test must not leave threads behind."""

C = TypeVar("C")


class Gate:
    """Holds threads until `release`."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._reached = threading.Event()
        self._arrived = threading.Semaphore(0)

    def wait_for_callers(self, count: int) -> None:
        """Block until `count` more callers are held."""
        for _ in range(count):
            if not self._arrived.acquire(timeout=HOLD_S_MAX):
                raise TimeoutError("no call came")

    def release(self) -> None:
        self._opened.set()

    def hold(self) -> None:
        self._reached.set()
        self._arrived.release()
        if not self._opened.wait(HOLD_S_MAX):
            raise TimeoutError("the gate was never released")

    @property
    def is_reached(self) -> bool:
        """Return whether a thread is or was held."""
        return self._reached.is_set()

    async def reached(self) -> None:
        """Wait until a thread is held; real time, so that no virtual time passes meanwhile."""
        await until(self._reached.is_set)


@dataclass(slots=True, eq=False)
class Fault(Generic[C]):
    """`before` runs before the store is asked, `at` when a body is read beyond its first `after_bytes`; `act` makes
    what the caller sees of what the store gave from a position on."""

    matches: Callable[[C], bool]
    times: int | None
    before: Callable[[C], None] | None = None
    act: Callable[[int, bytes], bytes] | None = None
    after_bytes: int = 0
    at: Callable[[C], None] | None = None


class Faults(Generic[C]):
    """`calls` are all calls so far in the order they began, also those that failed."""

    def __init__(self) -> None:
        self.calls: list[C] = []
        self.streams_open = 0
        self._faults: list[Fault[C]] = []
        self._lock = threading.Lock()

    def heal(self) -> None:
        """Forget all faults; bodies that have begun keep theirs."""
        with self._lock:
            self._faults.clear()

    def add(self, fault: Fault[C]) -> None:
        with self._lock:
            self._faults.append(fault)

    @contextmanager
    def gated(self, gate: Gate, fault: Fault[C]) -> Iterator[Gate]:
        """The fault holds calls until the gate is released, at the end of the block at the latest."""
        self.add(fault)
        try:
            yield gate
        finally:
            gate.release()
            with self._lock:
                if fault in self._faults:
                    self._faults.remove(fault)

    def begin(self, call: C) -> list[Fault[C]]:
        """Record the call and run what comes before it; the faults that it meets, each counted down."""
        with self._lock:
            self.calls.append(call)
            faults = [fault for fault in self._faults if fault.matches(call)]
            for fault in faults:
                if fault.times is not None:
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
        for fault in faults:
            if fault.before is not None:
                fault.before(call)
        return faults

    def count_streams(self, change: int) -> None:
        """A body was opened or closed."""
        with self._lock:
            self.streams_open += change


def raising(error: Exception) -> Callable[[object], None]:
    """Return what raises it."""

    def act(_call: object) -> None:
        raise error

    return act


def acted(faults: list[Fault[C]], start: int, data: bytes) -> bytes:
    """Return what the caller sees of bytes from that position on."""
    for fault in faults:
        if fault.act is not None:
            data = fault.act(start, data)
    return data


def flipping(position: int, bit: int) -> Callable[[int, bytes], bytes]:
    """Return what flips one bit of the byte at that position."""

    def act(start: int, data: bytes) -> bytes:
        at = position - start
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] if 0 <= at < len(data) else data

    return act
