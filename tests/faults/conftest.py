"""Ways to the S3 server that can be broken."""

from collections.abc import Iterator

import pytest

from tests.support.s3_front import S3Front, s3_front
from tests.support.s3_server import S3Server
from tests.support.toxiproxy import Link, Toxiproxy


@pytest.fixture
def link(toxics: Toxiproxy, s3_endpoint: S3Server) -> Iterator[Link]:
    with toxics.link(s3_endpoint.endpoint_url) as made:
        yield made


@pytest.fixture
def front(s3_endpoint: S3Server) -> Iterator[S3Front]:
    with s3_front(s3_endpoint.endpoint_url) as started:
        yield started
