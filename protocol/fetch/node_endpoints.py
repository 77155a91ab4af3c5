"""Node endpoints (KIP-951, v16+) of Fetch answers that are put together here from several of upstream's.

Upstream names the leaders of partitions that moved in tagged field 0 of a response, each once. An answer made of
several responses names those of all, with Tidegate's addresses in place of upstream's (docs/protocol.md#l7). Other
tagged fields of the responses say nothing of the answer, and are left out; so are nodes that are withheld
(protocol.wire.endpoints).
"""

from collections.abc import Iterable, Mapping

from protocol.fetch.messages import NO_TAGS
from protocol.fetch.walker import NODE_ENDPOINTS_TAG
from protocol.wire.endpoints import AddressSite, NodeAddress, address_bytes, read_endpoints
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import Cursor, write_uvarint


class NodeEndpoints:
    """The endpoints of several tagged sections, each node once: the last that was added counts."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[memoryview, AddressSite]] = {}
        """With the view that the site is in."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def nodes(self) -> list[NodeAddress]:
        """As upstream names them."""
        return [site.address for _, site in self._entries.values()]

    def add(self, section: bytes) -> None:
        """Take in the raw tagged section of a response.

        Raises:
            PeerProtocolError: truncated or malformed.
        """
        if section == NO_TAGS:
            return
        cursor = Cursor(memoryview(section))
        for _ in range(cursor.uvarint()):
            tag, size = cursor.uvarint(), cursor.uvarint()
            start = cursor.skip(size)
            if tag == NODE_ENDPOINTS_TAG:
                self._read(Cursor(cursor.view, start, cursor.position))

    def section(self, advertised: Mapping[int, tuple[str, int]]) -> bytes:
        """A tagged section that names those that are in `advertised` at that address; NO_TAGS if there are none."""
        told = [entry for node_id, entry in self._entries.items() if node_id in advertised]
        if not told:
            return NO_TAGS
        pieces: list[bytes | memoryview] = [write_uvarint(len(told) + 1)]
        for view, site in told:
            [(start, end, _)] = site.withheld
            address = address_bytes(advertised[site.address.node_id], flexible=True)
            pieces += (view[start : site.start], address, view[site.end : end])
        content = b"".join(pieces)
        return b"".join((write_uvarint(1), write_uvarint(NODE_ENDPOINTS_TAG), write_uvarint(len(content)), content))

    def _read(self, cursor: Cursor) -> None:
        for site in read_endpoints(cursor).sites:
            if not site.address.is_node:
                raise PeerProtocolError(f"a node endpoint names no node: {site.address}")
            self._entries[site.address.node_id] = cursor.view, site


def endpoints_of(sections: Iterable[bytes]) -> NodeEndpoints:
    """Those of several raw tagged sections."""
    endpoints = NodeEndpoints()
    for section in sections:
        endpoints.add(section)
    return endpoints
