"""What a client connection needs of whoever answers its requests (`proxy.process.client_exchanges`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.connection.upstream_wire import UpstreamWire
from proxy.upstream.transport import Bytes


@dataclass(frozen=True, slots=True)
class Relay:
    """The frame is relayed, which may have been patched in place.

    `on_response_head` is handed the first `head_bytes` of the response (length field included; all of it, when it is
    shorter), before they go to the client; it may patch them in place.
    """

    head_bytes: int = 0
    on_response_head: Callable[[memoryview], None] | None = None


RELAY = Relay()
"""Relay it, and never mind the response."""

Answer = Sequence[Bytes]
"""A whole response frame, in buffers. If it is a list, it belongs to whoever sends it."""


class RequestHandlers(Protocol):
    """What decides about a request and answers it; one for each connection."""

    async def fetch(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about a Fetch."""
        ...

    async def list_offsets(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about a ListOffsets."""
        ...

    def on_answered(self) -> None:
        """The last answer was sent, or cannot be."""
        ...

    def close(self) -> None:
        """The connection has ended."""
        ...

    def forget_authority(self) -> None:
        """The client may be somebody else from now on, or have other rights."""
        ...

    def on_log_start_moved(self) -> None:
        """A DeleteRecords or DeleteTopics passed here: every connection's good probes are void."""
        ...
