"""A gate that records pass one slice at a time, and that can be shut while somebody needs the catalog to stand still.

Owned by the trio thread. Records that wait are delivered after it, in order; whoever waits can be cancelled.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class DeliveryGate:
    """Open, unless somebody holds it."""

    def __init__(self) -> None:
        self._holders = 0
        self._opened = trio.Event()
        self._opened.set()

    async def passed(self) -> None:
        """Return when the gate is open. It stays so until the caller's next checkpoint."""
        while self._holders:
            await self._opened.wait()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Nobody passes within this block. It may be held several times at once."""
        if not self._holders:
            self._opened = trio.Event()
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self._opened.set()
