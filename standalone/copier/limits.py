"""How much is done at once: slots that partitions take in turn, and bytes per second (docs/configuration.md)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


class Slots:
    """`copy.concurrent.max`: a task takes a slot, copies or deletes one segment and gives it back. First come, first
    served, so partitions with much to do take turns.

    Args:
        on_change: gets (slots taken, slots in all).
    """

    def __init__(self, slots_max: int, on_change: Callable[[int, int], None]) -> None:
        self._slots = trio.CapacityLimiter(slots_max)
        self._on_change = on_change

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A slot, as long as this is open. Not to be entered twice by one task."""
        try:
            async with self._slots:
                self._tell()
                yield
        finally:
            self._tell()

    def _tell(self) -> None:
        self._on_change(int(self._slots.borrowed_tokens), int(self._slots.total_tokens))


class CopyRate:
    """`copy.max.bytes.per.second`, as Kafka's quota for copies means it (KIP-956): a segment waits while those before
    it have not had their time at this rate, and then goes as a whole. Nothing is saved up while nothing is copied.

    Args:
        bytes_per_s: None: no limit.
    """

    def __init__(self, bytes_per_s: int | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = -float("inf")

    async def wait(self, size_bytes: int) -> None:
        """Wait until a segment of this size may go. Cancellation: its time is left to others."""
        if self._bytes_per_s is None:
            return
        takes_s = size_bytes / self._bytes_per_s
        goes_at_s = max(trio.current_time(), self._free_at_s)
        self._free_at_s = goes_at_s + takes_s
        try:
            await trio.sleep_until(goes_at_s)
        except trio.Cancelled:
            self._free_at_s -= takes_s
            raise
