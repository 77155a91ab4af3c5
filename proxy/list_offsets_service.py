"""A connection's ListOffsets handling (spec/kafka-remote.md §4)."""

from protocol import api_02_list_offsets
from protocol.headers import decode_request_header
from proxy.request_handlers import RELAY, Answer, Relay
from proxy.upstream_wire import UpstreamWire


class ListOffsetsService:
    """One for each client connection."""

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request."""
        api_02_list_offsets.decode_request(frame, decode_request_header(frame))
        return RELAY
