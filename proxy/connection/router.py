"""What happens to a request: the only place that decides (ARCHITECTURE.md#one-request-end-to-end). Pure.

Everything not named here is relayed unread. An api key or version that we do not announce is the client's
error, as it is at a broker: relaying it could hand out addresses that nobody rewrote.
"""

import enum
from collections.abc import Container

from protocol.list_offsets import LIST_OFFSETS_VERSION_MIN
from protocol.wire.addresses import carries_addresses
from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.versions import is_known


class RequestRoute(enum.Enum):
    """What the request side does."""

    RELAY = "relay"
    """Bytes pass as they come."""
    PRODUCE = "produce"
    """Relayed; acks are peeked, as acks=0 has no response."""
    EXCHANGE = "exchange"
    """Held whole and decoded: we may answer it, or it is relayed after all. Not ListOffsets v0, which asks for lists of
    offsets."""
    SASL_HANDSHAKE = "sasl_handshake"
    """Held whole, for the mechanism that it names (`protocol.sign_in`)."""
    SASL_AUTHENTICATE = "sasl_authenticate"
    """Relayed; its answer may be the one that signs the client in."""
    UNKNOWN_API_VERSIONS = "unknown_api_versions"
    """ApiVersions newer than we know: answered by us, as a broker would. Upstream may know that version, and its
    answer in a shape that we do not know could not be cut."""


class ResponseRoute(enum.Enum):
    """What the response side does."""

    RELAY = "relay"
    """Streamed as it comes."""
    ADDRESSES = "addresses"
    """Held whole; brokers' addresses are replaced by our listeners'."""
    API_VERSIONS = "api_versions"
    """Held whole; versions are cut."""
    FETCH = "fetch"
    """Walked as it streams by, held only when small (docs/protocol.md#l7)."""
    AUTHENTICATION = "authentication"
    """Relayed; afterwards the client may be somebody else, so good probes are forgotten."""
    LOG_START_MOVES = "log_start_moves"
    """Relayed; afterwards good probes are forgotten on every connection."""


_REQUEST_ROUTES: dict[int, RequestRoute] = {
    ApiKey.PRODUCE: RequestRoute.PRODUCE,
    ApiKey.SASL_HANDSHAKE: RequestRoute.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE: RequestRoute.SASL_AUTHENTICATE,
}

_RESPONSE_ROUTES: dict[int, ResponseRoute] = {
    ApiKey.API_VERSIONS: ResponseRoute.API_VERSIONS,
    ApiKey.SASL_AUTHENTICATE: ResponseRoute.AUTHENTICATION,
    ApiKey.DELETE_RECORDS: ResponseRoute.LOG_START_MOVES,
    ApiKey.DELETE_TOPICS: ResponseRoute.LOG_START_MOVES,
}


def route_request(
    api_key: int, api_version: int, exchanges: Container[int], *, is_signed_in: bool = True
) -> RequestRoute:
    """Return what to do with a request. Before sign-in what would cost us work, as decoding it and the questions and
    reads that follow do, is relayed: the broker refuses it.

    Args:
        exchanges: API keys of requests that we may answer.

    Raises:
        PeerProtocolError: an api key or version that is not announced.
    """
    if not is_known(api_key, api_version):
        if api_key == ApiKey.API_VERSIONS:
            return RequestRoute.UNKNOWN_API_VERSIONS
        raise PeerProtocolError(f"request with api key {api_key} version {api_version}, which is not announced")
    if api_key not in exchanges:
        return _REQUEST_ROUTES.get(api_key, RequestRoute.RELAY)
    is_unknown_form = api_key == ApiKey.LIST_OFFSETS and api_version < LIST_OFFSETS_VERSION_MIN
    return RequestRoute.EXCHANGE if is_signed_in and not is_unknown_form else RequestRoute.RELAY


def route_response(api_key: int, api_version: int) -> ResponseRoute:
    """Return what to do with the response to a request that was relayed."""
    route = _RESPONSE_ROUTES.get(api_key)
    if route is not None:
        return route
    if not carries_addresses(api_key, api_version):
        return ResponseRoute.RELAY
    return ResponseRoute.FETCH if api_key == ApiKey.FETCH else ResponseRoute.ADDRESSES
