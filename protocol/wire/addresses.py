"""The one entry point for rewriting broker addresses in responses (docs/protocol.md#l7, docs/protocol.md#addresses).

Two steps, because a listener must be bound before the answer that names it goes out: `find_nodes` tells which
brokers a response names, `rewrite` puts the advertised addresses in their place. Frames are whole: length field,
header, body. Fetch v16+ carries addresses too, but its responses are streamed: protocol.fetch.messages.

Not rewritten, on purpose: members' endpoints of streams groups (the application's own), hosts in ACLs (clients'),
controllers in DescribeCluster and DescribeQuorum.
"""

import struct
from collections.abc import Callable, Mapping

from protocol.wire import describe_cluster, find_coordinator, metadata, produce, share_acknowledge, share_fetch
from protocol.wire.endpoints import AddressLayout, NodeAddress, nodes, splice_layout
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES
from protocol.wire.identifiers import ApiKey
from protocol.wire.versions import is_known

__all__ = ["NodeAddress", "carries_addresses", "find_nodes", "rewrite"]

_CARRIES_FROM: dict[int, int] = {
    ApiKey.PRODUCE: produce.ENDPOINTS_FROM,
    ApiKey.FETCH: 16,
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}
"""First version whose responses may carry addresses."""

_LOCATE: dict[int, Callable[[memoryview, int], AddressLayout]] = {
    ApiKey.PRODUCE: produce.locate,
    ApiKey.METADATA: metadata.locate,
    ApiKey.FIND_COORDINATOR: find_coordinator.locate,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.locate,
    ApiKey.SHARE_FETCH: share_fetch.locate,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge.locate,
}
_LENGTH = struct.Struct(">i")


def carries_addresses(api_key: int, api_version: int) -> bool:
    """Return whether a response of that version may name brokers by address; true for versions newer than we know."""
    first = _CARRIES_FROM.get(api_key)
    return first is not None and api_version >= first


def find_nodes(api_key: int, api_version: int, frame: memoryview) -> list[NodeAddress]:
    """The distinct brokers that a whole response frame names, as upstream names them.

    Raises:
        PeerProtocolError: the frame is truncated or malformed.
        LocalProtocolError: not an API and version that is rewritten here.
    """
    return nodes(_locate(api_key, api_version, frame).sites)


def rewrite(api_key: int, api_version: int, frame: memoryview, advertised: Mapping[int, tuple[str, int]]) -> bytes:
    """A new whole frame that names the brokers by their advertised host and port; all else is kept byte for byte.

    Args:
        advertised: node id → host, port. A node that it lacks is withheld: left out where brokers are listed, and no
            coordinator (COORDINATOR_NOT_AVAILABLE).

    Raises:
        PeerProtocolError: the frame is truncated or malformed.
        LocalProtocolError: not an API and version that is rewritten here.
    """
    return splice_layout(frame, _locate(api_key, api_version, frame), advertised)


def _locate(api_key: int, api_version: int, frame: memoryview) -> AddressLayout:
    locate = _LOCATE.get(api_key)
    if locate is None or not is_known(api_key, api_version):
        raise LocalProtocolError(f"addresses of api key {api_key} version {api_version} cannot be rewritten")
    if len(frame) < LENGTH_BYTES or _LENGTH.unpack_from(frame)[0] != len(frame) - LENGTH_BYTES:
        raise PeerProtocolError(f"response of api key {api_key}: {len(frame)} bytes are not one whole frame")
    return locate(frame, api_version)
