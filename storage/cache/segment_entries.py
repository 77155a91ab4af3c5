"""One entry in memory for each segment: loaded once however many ask, within limits, gone with its segment.

Rule 1. A load runs in the application's nursery and outlives those who asked for it (docs/protocol.md#l3).
Rule 2. A failure goes to everyone who waits at that moment and is not kept.
Rule 3. A segment that is dropped while its entry is loaded keeps nothing: a waiter gets the entry, it does not land,
        and the next question loads it again.
Rule 4. One entry may be larger than all that may be kept: it stays until the next lands.

A load is async: it may take several GETs and wait between them, without holding a worker thread meanwhile.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from storage.model import Uuid
from storage.tasks import TaskNursery

V = TypeVar("V")

# A computation under way, that any number of readers may wait for.
#
# Rule 1. It runs in the application's nursery, never in a client's: a caller that is cancelled stops to wait, the
#         computation goes on, and the next caller finds its result (docs/protocol.md#l3).
# Rule 2. A failure goes to everyone who waits at that moment and is not kept: the next caller starts afresh.


class Flight(Generic[V]):
    """A computation under way."""

    __slots__ = ("_done", "_error", "_followers", "_value")

    def __init__(self) -> None:
        self._done = trio.Event()
        self._value: V | None = None
        self._error: Exception | None = None
        self._followers: list[Flight[V]] = []

    async def wait(self) -> V:
        """The value, or the error that the computation raised.

        Cancellation: the flight goes on.
        """
        await self._done.wait()
        if self._error is not None:
            # A fresh traceback for every waiter: raising one object from many tasks would grow its own.
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]  # set before _done whenever there is no error

    def follow(self, other: "Flight[V]") -> None:
        """Let this one, which nothing else ends, end as the other does."""
        other._followers.append(self)

    def land(self, value: V) -> None:
        self._value = value
        self._done.set()
        for follower in self._followers:
            follower.land(value)

    def fail(self, error: Exception) -> None:
        self._error = error
        self._done.set()
        for follower in self._followers:
            follower.fail(error)


ENTRIES_MAX = 10_000
"""Entries cost a few hundred bytes of Python objects beside the bytes that they are counted with."""


class SegmentEntries(Generic[V]):
    """Entries by segment id, the least recently used leaves first. Owned by the trio thread.

    Args:
        bytes_max: of all entries, by the size that their load gave.
        on_change: called with the number of entries whenever it may have changed.
    """

    def __init__(self, nursery: TaskNursery, *, bytes_max: int, on_change: Callable[[int], None] | None = None) -> None:
        self._nursery = nursery
        self._bytes_max = bytes_max
        self._on_change = on_change
        self._entries: OrderedDict[Uuid, tuple[V, int]] = OrderedDict()
        self._flights: dict[Uuid, Flight[V]] = {}
        self.size_bytes = 0

    def resident(self, segment_id: Uuid) -> V | None:
        """The entry if it is in memory."""
        entry = self._entries.get(segment_id)
        if entry is None:
            return None
        self._entries.move_to_end(segment_id)
        return entry[0]

    def under_way(self, segment_id: Uuid) -> Flight[V] | None:
        """The load under way."""
        return self._flights.get(segment_id)

    def start(self, segment_id: Uuid, load: Callable[[], Awaitable[tuple[V, int]]]) -> Flight[V]:
        """The load under way, started now if there is none. `load` gives the entry and its size in bytes.

        It replaces the entry that is there.
        """
        flight = self._flights.get(segment_id)
        if flight is None:
            flight = Flight()
            # First, because it raises once the nursery is closed: nobody may find a flight that never starts.
            self._nursery.start_soon(self._run, segment_id, flight, load)
            self._flights[segment_id] = flight
        return flight

    def drop(self, segment_id: Uuid) -> None:
        """Forget a segment, also the load that is under way."""
        self._flights.pop(segment_id, None)
        self._remove(segment_id)
        self._changed()

    async def _run(self, segment_id: Uuid, flight: Flight[V], load: Callable[[], Awaitable[tuple[V, int]]]) -> None:
        try:
            value, size_bytes = await load()
        except Exception as error:  # every failure belongs to the waiters; the nursery must live on
            self._ended(segment_id, flight)
            flight.fail(error)
        except BaseException:  # shutdown: nobody may be left waiting for a flight that no longer exists
            self._ended(segment_id, flight)
            flight.fail(trio.ClosedResourceError("the application is shutting down"))
            raise
        else:
            if self._ended(segment_id, flight):
                self._keep(segment_id, value, size_bytes)
            flight.land(value)

    def _ended(self, segment_id: Uuid, flight: Flight[V]) -> bool:
        """Return whether the flight is still the segment's own; it is not, from now on."""
        is_own = self._flights.get(segment_id) is flight
        if is_own:
            del self._flights[segment_id]
        return is_own

    def _keep(self, segment_id: Uuid, value: V, size_bytes: int) -> None:
        self._remove(segment_id)
        self._entries[segment_id] = (value, size_bytes)
        self.size_bytes += size_bytes
        while len(self._entries) > 1 and (self.size_bytes > self._bytes_max or len(self._entries) > ENTRIES_MAX):
            self._remove(next(iter(self._entries)))
        self._changed()

    def _remove(self, segment_id: Uuid) -> None:
        entry = self._entries.pop(segment_id, None)
        if entry is not None:
            self.size_bytes -= entry[1]

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(len(self._entries))
