"""Fixtures of the stores' tests: a server that answers as a test says, and stores of it."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from storage.object_store.object_store import ObjectStore
from storage.object_store.s3.store import S3Store
from storage.object_store.uploads import UploadRetries
from tests.support.http_stores import OPENERS, OpenScripted
from tests.support.s3_server import S3Server
from tests.support.s3_stores import OpenS3
from tests.support.scripted_http import ScriptedHttp, scripted_http


@pytest.fixture
def http() -> Iterator[ScriptedHttp]:
    with scripted_http() as server:
        yield server


@pytest.fixture
def open_store(request: pytest.FixtureRequest) -> Iterator[OpenS3]:
    """Without a server, one of `any_http` where the test uses that, and of `http` elsewhere."""
    stores = list[S3Store]()

    def open_store(
        server: ScriptedHttp | S3Server | None = None,
        bucket: str = "tier",
        retries: UploadRetries | None = None,
        **changes: object,
    ) -> S3Store:
        server = server or request.getfixturevalue("any_http" if "any_http" in request.fixturenames else "http")
        settings = S3Server(server.endpoint_url).settings(bucket, **{"read_timeout_s": 30.0, **changes})
        stores.append(S3Store(settings, retries=retries))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def open_scripted(http: ScriptedHttp) -> Iterator[OpenScripted]:
    """By kind, over `http`."""
    with ExitStack() as stack:

        def open_store(kind: str, **changes: object) -> ObjectStore:
            store = OPENERS[kind](http.endpoint_url, **{"read_timeout_s": 30.0, **changes})
            stack.callback(store.close)
            return store

        yield open_store
