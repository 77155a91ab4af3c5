"""Ways to the store that can be broken: a module's own `server`, or the S3 server."""

from collections.abc import Iterator

import pytest

from tests.support.aiven_tier import StoreServer
from tests.support.s3_front import S3Front, s3_front
from tests.support.toxiproxy import Link, Toxiproxy


@pytest.fixture(scope="module")
def server(s3_endpoint: StoreServer) -> StoreServer:
    return s3_endpoint


@pytest.fixture
def link(toxics: Toxiproxy, server: StoreServer) -> Iterator[Link]:
    with toxics.link(server.endpoint_url) as made:
        yield made


@pytest.fixture
def front(server: StoreServer) -> Iterator[S3Front]:
    with s3_front(server.endpoint_url) as started:
        yield started
