"""Fixtures of the object stores' tests."""

from collections.abc import Iterator

import pytest

from tests.support.s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[S3Server]:
    """One S3 server for all tests; make a bucket of your own on it."""
    with s3_server() as server:
        yield server
