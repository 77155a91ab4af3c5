"""What a client connection needs of what answers its requests (`tidegate.answering`)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.fetch.walker import PartitionEditor
from protocol.wire.endpoints import NodeAddress
from proxy.upstream.transport import Bytes

# What an exchange may do with the client's own upstream connection: send a frame, await its answer.
#
# Requests of our own stand in the stream of the client's requests, so the broker answers them in their place, as
# the client's principal (docs/protocol.md#l1). Their correlation ids are ours and never reach the client.


class PendingAnswer:
    """The answer to a request of our own.

    Args:
        held_bytes_max: of a Fetch, so much of it may be held; None: `expert.proxy.response.held.bytes.max`.
    """

    __slots__ = ("_arrived", "_frame", "dropped", "held_bytes_max")

    def __init__(self, held_bytes_max: int | None = None) -> None:
        self.held_bytes_max = held_bytes_max
        self.dropped: Sequence[int] = ()
        """For each partition in the frame: bytes of records that were dropped as they arrived; (): none of any."""
        self._arrived = trio.Event()
        self._frame = memoryview(b"")

    def deliver(self, frame: memoryview, dropped: Sequence[int] = ()) -> None:
        """The whole response frame has arrived."""
        self._frame, self.dropped = frame, dropped
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

    async def ask(
        self, api_key: int, api_version: int, correlation_id: int, frame: bytes, held_bytes_max: int | None = None
    ) -> PendingAnswer:
        """Send a request of our own; its answer is awaited on what is returned.

        Args:
            held_bytes_max: as PendingAnswer.
        """
        ...

    async def advertise(self, nodes: Sequence[NodeAddress]) -> Mapping[int, tuple[str, int]]:
        """Return what clients get for these brokers, whose listeners are bound when this returns; clients do not hear
        of one that is left out."""
        ...


@dataclass(frozen=True, slots=True)
class Relay:
    """The frame is relayed, which may have been patched in place.

    `on_response_head` is handed the first `head_bytes` of the response (length field included; all of it, when it is
    shorter), before they go to the client; it may patch them in place. `editor`: changes what a Fetch response says of
    its partitions, as it passes.
    """

    head_bytes: int = 0
    on_response_head: Callable[[memoryview], None] | None = None
    editor: PartitionEditor | None = None


RELAY = Relay()
"""Relay it, and never mind the response."""

Answer = Sequence[Bytes]
"""A whole response frame, in buffers. If it is a list, it belongs to its sender."""


Exchange = Callable[[memoryview, UpstreamWire], Awaitable[Answer | Relay]]
"""Decides about one request, a frame, and answers it if it is not to be relayed."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class RequestHandlers:
    """What decides about a connection's requests and answers them, by API key; other requests are relayed.

    Args:
        on_answered: the last answer was sent, or cannot be.
        close: the connection has ended.
        forget_authority: the client may be somebody else from now on, or have other rights.
        on_log_start_moved: a DeleteRecords or DeleteTopics passed here: every connection's good probes are void.
    """

    exchanges: Mapping[int, Exchange]
    on_answered: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing
    forget_authority: Callable[[], None] = _nothing
    on_log_start_moved: Callable[[], None] = _nothing
