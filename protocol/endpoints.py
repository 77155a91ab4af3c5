"""Where addresses stand in a response, and putting others in their place without re-encoding the rest.

Rule 1. In every API that names brokers, the fields are node id, host, port, one after the other. Only host and
        port are replaced; node ids stay upstream's own, because leaders and preferred replicas refer to them.
Rule 2. All bytes outside host and port are kept as they came, so unknown tagged fields survive (design L7).
Rule 3. "No node" (a negative node id or an empty host, as FindCoordinator answers with an error) is left alone.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.errors import LocalProtocolError, PeerProtocolError
from protocol.framing import LENGTH_BYTES
from protocol.primitives import Cursor, write_string, write_uvarint

_INT32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A broker as upstream names it."""

    node_id: int
    host: str
    port: int

    @property
    def is_node(self) -> bool:
        """False for Kafka's "no node", which has nothing to rewrite."""
        return self.node_id >= 0 and self.host != ""


@dataclass(frozen=True, slots=True)
class AddressSite:
    """One address in a view: host and port occupy `view[start:end]`."""

    address: NodeAddress
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SizedSection:
    """A tagged field's content `view[start:end]`, preceded by its size as a varint in `view[size_start:start]`."""

    size_start: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AddressLayout:
    """All addresses of one response, in order; `section` holds all of them where they stand in a tagged field."""

    sites: tuple[AddressSite, ...]
    flexible: bool
    section: SizedSection | None = None


def read_site(cursor: Cursor, *, flexible: bool) -> AddressSite:
    """Read node id, host and port, leaving the cursor after the port.

    Raises:
        PeerProtocolError: truncated, or the host is null.
    """
    node_id = cursor.int32()
    start = cursor.position
    host = cursor.string(flexible=flexible)
    if host is None:
        raise PeerProtocolError(f"node {node_id} has a null host")
    port = cursor.int32()
    return AddressSite(NodeAddress(node_id, host, port), start, cursor.position)


def read_endpoints(cursor: Cursor) -> tuple[AddressSite, ...]:
    """Read a compact array of NodeEndpoint: node id, host, port, rack, tags (KIP-951). Null counts as empty."""
    sites = []
    for _ in range(cursor.array_length(flexible=True)):
        sites.append(read_site(cursor, flexible=True))
        cursor.skip_string(flexible=True)
        cursor.skip_tags()
    return tuple(sites)


def find_endpoints(array: memoryview) -> list[NodeAddress]:
    """The nodes in a compact array of NodeEndpoint, which begins at the start of the view."""
    return nodes(read_endpoints(Cursor(array)))


def splice_endpoints(array: memoryview, advertised: Mapping[int, tuple[str, int]]) -> bytes:
    """A compact array of NodeEndpoint with other hosts and ports; bytes after the array are kept.

    Args:
        array: begins with the array; for Fetch and Produce, the content of the NodeEndpoints tag.
        advertised: node id → host, port.

    Raises:
        PeerProtocolError: the array is truncated or malformed.
        LocalProtocolError: a node id is not in `advertised`.
    """
    sites = read_endpoints(Cursor(array))
    return b"".join(splice_sites(array, 0, len(array), sites, advertised, flexible=True))


def nodes(sites: Iterable[AddressSite]) -> list[NodeAddress]:
    """The distinct nodes among the sites, in order of appearance, without "no node"."""
    return list(dict.fromkeys(site.address for site in sites if site.address.is_node))


def splice_sites(
    view: memoryview,
    start: int,
    end: int,
    sites: Iterable[AddressSite],
    advertised: Mapping[int, tuple[str, int]],
    *,
    flexible: bool,
) -> list[bytes | memoryview]:
    """`view[start:end]` in pieces, with each site's host and port replaced.

    Raises:
        LocalProtocolError: a node id is not in `advertised`; listeners are bound before an answer goes out.
    """
    pieces: list[bytes | memoryview] = []
    kept_to = start
    for site in sites:
        if not site.address.is_node:
            continue
        if site.address.node_id not in advertised:
            raise LocalProtocolError(f"no advertised address for node {site.address.node_id}")
        host, port = advertised[site.address.node_id]
        pieces.append(view[kept_to : site.start])
        pieces.append(write_string(host, flexible=flexible) + _INT32.pack(port))
        kept_to = site.end
    pieces.append(view[kept_to:end])
    return pieces


def splice_layout(frame: memoryview, layout: AddressLayout, advertised: Mapping[int, tuple[str, int]]) -> bytes:
    """A whole frame with every address of the layout replaced; the length field and the size of the tagged
    field that holds the addresses are corrected.

    Raises:
        LocalProtocolError: a node id is not in `advertised`.
    """
    section = layout.section
    start, end = (LENGTH_BYTES, len(frame)) if section is None else (section.start, section.end)
    pieces = splice_sites(frame, start, end, layout.sites, advertised, flexible=layout.flexible)
    if section is not None:
        content_bytes = sum(map(len, pieces))
        pieces = [frame[LENGTH_BYTES : section.size_start], write_uvarint(content_bytes), *pieces, frame[end:]]
    return b"".join((_INT32.pack(sum(map(len, pieces))), *pieces))
