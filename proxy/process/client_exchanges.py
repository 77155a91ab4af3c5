"""One client connection's exchanges: its Fetches and its ListOffsets, and what they have in common."""

from proxy.connection.request_handlers import Answer, Relay
from proxy.connection.upstream_wire import UpstreamWire
from proxy.fetch.authority import LogStartGeneration
from proxy.fetch.service import FetchService
from proxy.offsets.service import ListOffsetsService


class ClientExchanges:
    """Implements `RequestHandlers`."""

    def __init__(self, fetches: FetchService, offsets: ListOffsetsService, generation: LogStartGeneration) -> None:
        self._fetches = fetches
        self._offsets = offsets
        self._generation = generation

    async def fetch(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """See `proxy.fetch.service`."""
        return await self._fetches.handle(frame, wire)

    async def list_offsets(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """See `proxy.offsets.service`."""
        return await self._offsets.handle(frame, wire)

    def on_answered(self) -> None:
        """What the answer held of the tier's memory is free."""
        self._fetches.on_answered()

    def close(self) -> None:
        """The client has gone."""
        self._fetches.close()

    def forget_authority(self) -> None:
        """The client may be somebody else from now on, or have other rights."""
        self._fetches.forget_authority()

    def on_log_start_moved(self) -> None:
        """Every connection's good probes are void."""
        self._generation.value += 1
