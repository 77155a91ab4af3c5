"""What a client connection needs of whoever answers its Fetches (`proxy.fetch_service`)."""

from collections.abc import Sequence
from typing import Protocol

from proxy.upstream.transport import Bytes
from proxy.upstream_wire import UpstreamWire


class FetchHandler(Protocol):
    """What decides about a Fetch and answers it; one for each connection."""

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Sequence[Bytes] | None:
        """The whole answer, or None: relay the frame, which may have been patched in place."""
        ...

    def on_answered(self) -> None:
        """The answer that `handle` gave was sent, or cannot be."""
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
