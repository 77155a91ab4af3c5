"""Every api key and version: what is decoded, what passes, what is refused."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.versions import NEWEST, OLDEST
from proxy.connection.router import RequestRoute, ResponseRoute, route_request, route_response

ANNOUNCED = [(key, version) for key, newest in NEWEST.items() for version in range(OLDEST.get(key, 0), newest + 1)]
DECODED: dict[int, RequestRoute] = {
    ApiKey.PRODUCE: RequestRoute.PRODUCE,
    ApiKey.FETCH: RequestRoute.FETCH,
    ApiKey.LIST_OFFSETS: RequestRoute.LIST_OFFSETS,
    ApiKey.SASL_HANDSHAKE: RequestRoute.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE: RequestRoute.SASL_AUTHENTICATE,
}
int16 = st.integers(-(2**15), 2**15 - 1)


@pytest.mark.parametrize(("api_key", "api_version"), ANNOUNCED)
def test_what_is_announced_is_relayed_but_for_the_few_that_are_decoded(api_key: int, api_version: int) -> None:
    # ListOffsets v0 failed before: it was decoded, though there is no codec for its shape.
    expected = RequestRoute.RELAY if (api_key, api_version) == (ApiKey.LIST_OFFSETS, 0) else DECODED.get(api_key)
    assert route_request(api_key, api_version) is (expected or RequestRoute.RELAY)
    # Failed before: who has not signed in cost us a decoding, questions and reads.
    before_sign_in = RequestRoute.RELAY if api_key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS) else expected
    assert route_request(api_key, api_version, is_signed_in=False) is (before_sign_in or RequestRoute.RELAY)


@pytest.mark.parametrize(("api_key", "api_version"), ANNOUNCED)
def test_where_the_tier_is_our_own_two_more_are_decoded(api_key: int, api_version: int) -> None:
    own: dict[int, RequestRoute] = {
        ApiKey.DELETE_RECORDS: RequestRoute.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: RequestRoute.OFFSET_FOR_LEADER_EPOCH,
    }
    as_ever = {signed_in: route_request(api_key, api_version, is_signed_in=signed_in) for signed_in in (False, True)}
    assert route_request(api_key, api_version, owns_tier=True) is own.get(api_key, as_ever[True])
    assert route_request(api_key, api_version, is_signed_in=False, owns_tier=True) is as_ever[False]


@given(int16, int16)
@example(ApiKey.FETCH, 19)
@example(ApiKey.FETCH, 3)
@example(ApiKey.SHARE_FETCH, 0)
@example(93, 0)
@example(0x4745, 0x5420)
@example(-1, 0)
@example(ApiKey.METADATA, -1)
@example(ApiKey.SASL_HANDSHAKE, 2)
def test_what_is_not_announced_is_the_clients_error(api_key: int, api_version: int) -> None:
    if (api_key, api_version) in ANNOUNCED or api_key == ApiKey.API_VERSIONS:
        route_request(api_key, api_version)
        return
    with pytest.raises(PeerProtocolError, match=f"api key {api_key} version {api_version}"):
        route_request(api_key, api_version)


@pytest.mark.parametrize("api_version", [5, 6, 32767, -1])
def test_api_versions_that_we_do_not_know_are_answered_by_us(api_version: int) -> None:
    # Failed before: v5 was relayed, and an answer of an upstream that knows v5 could not have been cut.
    for is_signed_in in (False, True):
        route = route_request(ApiKey.API_VERSIONS, api_version, is_signed_in=is_signed_in)
        assert route is RequestRoute.UNKNOWN_API_VERSIONS


@pytest.mark.parametrize(
    ("api_key", "first"),
    [
        (ApiKey.METADATA, 0),
        (ApiKey.FIND_COORDINATOR, 0),
        (ApiKey.DESCRIBE_CLUSTER, 0),
        (ApiKey.SHARE_FETCH, 1),
        (ApiKey.SHARE_ACKNOWLEDGE, 1),
        (ApiKey.PRODUCE, 10),
    ],
)
def test_answers_with_addresses_are_rewritten(api_key: ApiKey, first: int) -> None:
    for version in range(OLDEST.get(api_key, 0), NEWEST[api_key] + 1):
        expected = ResponseRoute.ADDRESSES if version >= first else ResponseRoute.RELAY
        assert route_response(api_key, version) is expected, version


@pytest.mark.parametrize("api_version", range(4, 19))
def test_fetch_answers_are_walked_from_the_version_that_names_brokers(api_version: int) -> None:
    expected = ResponseRoute.FETCH if api_version >= 16 else ResponseRoute.RELAY
    assert route_response(ApiKey.FETCH, api_version) is expected


@pytest.mark.parametrize(("api_key", "api_version"), ANNOUNCED)
def test_each_other_answer_has_the_route_of_its_api(api_key: int, api_version: int) -> None:
    with_addresses = {0, 1, 3, 10, 60, 78, 79}
    expected = {
        18: ResponseRoute.API_VERSIONS,
        20: ResponseRoute.LOG_START_MOVES,
        21: ResponseRoute.LOG_START_MOVES,
        36: ResponseRoute.AUTHENTICATION,
    }.get(api_key, ResponseRoute.RELAY)
    if api_key not in with_addresses:
        assert route_response(api_key, api_version) is expected
