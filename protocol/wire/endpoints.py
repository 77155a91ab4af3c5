"""Where addresses stand in a response, and putting others in their place without re-encoding the rest.

Rule 1. In every API that names brokers, the fields are node id, host, port, one after the other. Only host and
        port are replaced; node ids stay upstream's own, because leaders and preferred replicas refer to them.
Rule 2. All bytes outside host and port are kept as they came, so unknown tagged fields survive (docs/protocol.md#l7).
Rule 3. "No node" (a negative node id or an empty host, as FindCoordinator answers with an error) is left alone.
Rule 4. A node without an advertised address is withheld: upstream's own address never passes. In an array of nodes its
        element is left out. Leaders and replicas go on naming it by id, as Kafka's own do with a broker that is down:
        clients take a leader that is in no list for one that is not available, and ask again.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES
from protocol.wire.primitives import Cursor, write_array_length, write_string, write_uvarint

_INT32 = struct.Struct(">i")

Edit = tuple[int, int, bytes]
"""`view[start:end]` is replaced by other bytes."""


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


NO_NODE = NodeAddress(-1, "", -1)
"""What Kafka names where there is none."""


@dataclass(frozen=True, slots=True)
class AddressSite:
    """One address in a view: host and port occupy `view[start:end]`. `withheld`: what is done in its place when
    clients are not to hear of the node."""

    address: NodeAddress
    start: int
    end: int
    withheld: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class ArrayCount:
    """How many elements an array has, which stands in `view[start:end]`."""

    start: int
    end: int
    count: int


@dataclass(frozen=True, slots=True)
class SizedSection:
    """A tagged field's content `view[start:end]`, preceded by its size as a varint in `view[size_start:start]`."""

    size_start: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AddressLayout:
    """All addresses of one response, in order. `section` holds all of them where they stand in a tagged field;
    `count` is that of the array whose elements they are."""

    sites: tuple[AddressSite, ...]
    flexible: bool
    section: SizedSection | None = None
    count: ArrayCount | None = None


def read_address(cursor: Cursor, *, flexible: bool) -> tuple[NodeAddress, int]:
    """Read node id, host and port, leaving the cursor after the port; the node, and where its host begins.

    Raises:
        PeerProtocolError: truncated, or the host is null.
    """
    node_id = cursor.int32()
    start = cursor.position
    host = cursor.string(flexible=flexible)
    if host is None:
        raise PeerProtocolError(f"node {node_id} has a null host")
    return NodeAddress(node_id, host, cursor.int32()), start


def read_nodes(cursor: Cursor, *, flexible: bool, skip_rest: Callable[[Cursor], None]) -> AddressLayout:
    """Read an array of nodes; null counts as empty.

    Args:
        skip_rest: passes what an element holds behind its port.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    count_start = cursor.position
    count = cursor.array_length(flexible=flexible)
    count_end = cursor.position
    sites = []
    for _ in range(count):
        element_start = cursor.position
        address, start = read_address(cursor, flexible=flexible)
        end = cursor.position
        skip_rest(cursor)
        sites.append(AddressSite(address, start, end, ((element_start, cursor.position, b""),)))
    return AddressLayout(tuple(sites), flexible, count=ArrayCount(count_start, count_end, count))


def read_endpoints(cursor: Cursor) -> AddressLayout:
    """Read a compact array of NodeEndpoint: node id, host, port, rack, tags (KIP-951)."""
    return read_nodes(cursor, flexible=True, skip_rest=_skip_rack_and_tags)


def nodes(sites: Iterable[AddressSite]) -> list[NodeAddress]:
    """The distinct nodes among the sites, in order of appearance, without "no node"."""
    return list(dict.fromkeys(site.address for site in sites if site.address.is_node))


def address_bytes(advertised: tuple[str, int], *, flexible: bool) -> bytes:
    """Host and port as a response holds them."""
    host, port = advertised
    return write_string(host, flexible=flexible) + _INT32.pack(port)


def splice_addresses(
    view: memoryview, start: int, end: int, layout: AddressLayout, advertised: Mapping[int, tuple[str, int]]
) -> list[bytes | memoryview]:
    """`view[start:end]` in pieces, with the host and port of every node replaced.

    Args:
        advertised: node id → host, port; nodes that it lacks are withheld (rule 4).
    """
    edits: list[Edit] = []
    withheld = 0
    for site in layout.sites:
        if not site.address.is_node:
            continue
        address = advertised.get(site.address.node_id)
        if address is None:
            withheld += 1
            edits += site.withheld
        else:
            edits.append((site.start, site.end, address_bytes(address, flexible=layout.flexible)))
    if withheld and layout.count is not None:
        at = layout.count
        edits.append((at.start, at.end, write_array_length(at.count - withheld, flexible=layout.flexible)))
    pieces: list[bytes | memoryview] = []
    kept_to = start
    for edit_start, edit_end, replacement in sorted(edits):
        pieces += (view[kept_to:edit_start], replacement)
        kept_to = edit_end
    pieces.append(view[kept_to:end])
    return pieces


def splice_layout(frame: memoryview, layout: AddressLayout, advertised: Mapping[int, tuple[str, int]]) -> bytes:
    """A whole frame with every address of the layout replaced, or withheld where `advertised` has none; the length
    field and the size of the tagged field that holds the addresses are corrected."""
    section = layout.section
    start, end = (LENGTH_BYTES, len(frame)) if section is None else (section.start, section.end)
    pieces = splice_addresses(frame, start, end, layout, advertised)
    if section is not None:
        content_bytes = sum(map(len, pieces))
        pieces = [frame[LENGTH_BYTES : section.size_start], write_uvarint(content_bytes), *pieces, frame[end:]]
    return b"".join((_INT32.pack(sum(map(len, pieces))), *pieces))


def _skip_rack_and_tags(cursor: Cursor) -> None:
    cursor.skip_string(flexible=True)
    cursor.skip_tags()
