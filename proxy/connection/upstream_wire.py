"""What an exchange may do with the client's own upstream connection: send a frame, await its answer.

Requests of our own stand in the stream of the client's requests, so the broker answers them in their place, as
the client's principal (docs/protocol.md#l1). Their correlation ids are ours and never reach the client.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import trio

from protocol.wire.endpoints import NodeAddress


class PendingAnswer:
    """The answer to a request of our own."""

    __slots__ = ("_arrived", "_frame")

    def __init__(self) -> None:
        self._arrived = trio.Event()
        self._frame = memoryview(b"")

    def deliver(self, frame: memoryview) -> None:
        """The whole response frame has arrived."""
        self._frame = frame
        self._arrived.set()

    async def frame(self) -> memoryview:
        """The whole response frame, length field included.

        When the upstream connection ends first, the connection's own scope cancels this.
        """
        await self._arrived.wait()
        return self._frame


class UpstreamWire(Protocol):
    """The client's upstream connection as an exchange sees it."""

    @property
    def node_id(self) -> int | None:
        """The broker at the other end; None where that is not known (a bootstrap connection)."""
        ...

    def next_correlation_id(self) -> int:
        """An id for a request of our own."""
        ...

    async def ask(self, api_key: int, api_version: int, correlation_id: int, frame: bytes) -> PendingAnswer:
        """Send a request of our own; its answer is awaited on what is returned."""
        ...

    async def advertise(self, nodes: Sequence[NodeAddress]) -> Mapping[int, tuple[str, int]]:
        """What clients are told for these brokers, whose listeners are bound when this returns; clients do not hear
        of one that is left out."""
        ...
