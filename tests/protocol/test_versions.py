"""The version table is complete and current, and ranges are cut, never raised."""

from hypothesis import strategies as st

from protocol.wire.identifiers import ApiKey
from protocol.wire.versions import NEWEST, OLDEST, cut
from tests.support.for_each import for_each

versions = st.integers(0, 40)


def test_every_api_that_is_decoded_is_in_the_table() -> None:
    assert set(ApiKey) <= set(NEWEST)
    assert set(OLDEST) <= set(NEWEST)


@for_each(
    "api_key, upstream, announced",
    [
        (ApiKey.PRODUCE, (0, 13), (0, 13)),
        (ApiKey.PRODUCE, (0, 14), (0, 13)),
        (ApiKey.PRODUCE, (3, 11), (3, 11)),
        (ApiKey.FETCH, (0, 15), (4, 15)),
        (ApiKey.FETCH, (4, 99), (4, 18)),
        (ApiKey.FETCH, (0, 3), None),
        (ApiKey.METADATA, (0, 12), (0, 12)),
        (ApiKey.METADATA, (14, 15), None),
        (ApiKey.LIST_OFFSETS, (0, 8), (0, 8)),
        # Failed before: announced from 1 on, and librdkafka before 2.11 signs in only where it sees version 0.
        (ApiKey.SASL_HANDSHAKE, (0, 1), (0, 1)),
        (ApiKey.SASL_HANDSHAKE, (0, 0), (0, 0)),
        (ApiKey.SHARE_FETCH, (0, 0), None),
        (ApiKey.SHARE_FETCH, (1, 2), (1, 2)),
        (ApiKey.API_VERSIONS, (0, 5), (0, 4)),
        (7, (0, 3), None),
        (999, (0, 0), None),
        (-1, (0, 0), None),
        (ApiKey.METADATA, (5, 3), None),
    ],
)
def test_ranges(api_key: int, upstream: tuple[int, int], announced: tuple[int, int] | None) -> None:
    assert cut(api_key, *upstream) == announced
