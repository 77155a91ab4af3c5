"""The contract of RemoteStorageManager, run on every format that can be written."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from storage.errors import RemoteStoreNotFoundError
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.remote_storage_manager import RemoteStorageManager
from tests.contract.remote_storage_manager import OpenManager, RemoteStorageManagerContract
from tests.support.aiven_tier import StoreServer
from tests.support.s3_server import S3Server

OpenPlain = Callable[[Mapping[str, str]], RemoteStorageManager]


@pytest.fixture
def open_plain() -> Iterator[OpenPlain]:
    """Opens a manager by its keys, and closes it when the test has ended."""
    managers: list[PlainObjects] = []

    def open_manager(config: Mapping[str, str]) -> PlainObjects:
        managers.append(PlainObjects(config))
        return managers[-1]

    yield open_manager
    for manager in managers:
        manager.close()


class TestLocalTieredStorage(RemoteStorageManagerContract):
    @pytest.fixture
    def open_manager(self, tmp_path: Path) -> OpenManager:
        # As a broker does when it starts.
        (tmp_path / "tier" / ROOT_DIRECTORY_NAME).mkdir(parents=True)
        return lambda: LocalTieredStorage({"dir": str(tmp_path / "tier")})

    @pytest.fixture
    def open_elsewhere(self, tmp_path: Path) -> OpenManager:
        return lambda: LocalTieredStorage({"dir": str(tmp_path / "another tier")})


class TestPlainObjectsInFiles(RemoteStorageManagerContract):
    @pytest.fixture
    def open_manager(self, open_plain: OpenPlain, tmp_path: Path) -> OpenManager:
        return lambda: open_plain(self.config(tmp_path / "tier"))

    @pytest.fixture
    def open_elsewhere(self, open_plain: OpenPlain, tmp_path: Path) -> OpenManager:
        return lambda: open_plain(self.config(tmp_path / "another tier"))

    @staticmethod
    def config(root: Path) -> dict[str, str]:
        root.mkdir(exist_ok=True)
        backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
        return {"storage.backend.class": backend, "storage.root": str(root)}


class TestPlainObjectsInS3(RemoteStorageManagerContract):
    @pytest.fixture
    def server(self, s3_endpoint: S3Server) -> StoreServer:
        return s3_endpoint

    @pytest.fixture
    def open_manager(self, open_plain: OpenPlain, server: StoreServer) -> OpenManager:
        config = server.config(server.make_bucket())
        return lambda: open_plain(config)

    @pytest.fixture
    def open_elsewhere(self, open_plain: OpenPlain, server: StoreServer) -> OpenManager:
        config = server.config(server.make_bucket())
        return lambda: open_plain(config)


class TestPlainObjectsBelowAPrefix(RemoteStorageManagerContract):
    """Two tiers in one bucket."""

    @pytest.fixture
    def bucket(self, s3_endpoint: S3Server) -> dict[str, str]:
        return s3_endpoint.config(s3_endpoint.make_bucket())

    @pytest.fixture
    def open_manager(self, open_plain: OpenPlain, bucket: dict[str, str]) -> OpenManager:
        return lambda: open_plain({**bucket, "key.prefix": "tiers/one/"})

    @pytest.fixture
    def open_elsewhere(self, open_plain: OpenPlain, bucket: dict[str, str]) -> OpenManager:
        return lambda: open_plain({**bucket, "key.prefix": "tiers/two-"})


@pytest.mark.needs("versitygw")
class TestPlainObjectsInAnotherS3(TestPlainObjectsInS3):
    """versitygw, which keeps each object in a file."""

    @pytest.fixture
    def server(self, gateway: StoreServer) -> StoreServer:
        return gateway


@pytest.mark.needs("fake-gcs-server")
class TestPlainObjectsInGcs(TestPlainObjectsInS3):
    @pytest.fixture
    def server(self, gcs: StoreServer) -> StoreServer:
        return gcs


@pytest.mark.needs("azurite")
class TestPlainObjectsInAzure(TestPlainObjectsInS3):
    @pytest.fixture
    def server(self, azure: StoreServer) -> StoreServer:
        return azure


@pytest.mark.parametrize(
    ("server", "key"),
    [
        pytest.param("s3_endpoint", "s3.bucket.name"),
        pytest.param("gateway", "s3.bucket.name", marks=pytest.mark.needs("versitygw")),
        pytest.param("gcs", "gcs.bucket.name", marks=pytest.mark.needs("fake-gcs-server")),
        pytest.param("azure", "azure.container.name", marks=pytest.mark.needs("azurite")),
    ],
)
def test_a_bucket_that_is_not_there_is_no_empty_tier_and_its_key_is_named(
    server: str, key: str, open_plain: OpenPlain, request: pytest.FixtureRequest
) -> None:
    """A listing took it for empty, so that a misspelt bucket had no orphans."""
    config = request.getfixturevalue(server).config("there-is-no-such-bucket")
    manager = open_plain(config)
    calls: list[Callable[[], object]] = [lambda: list(manager.list_objects()), lambda: list(manager.list_objects("a"))]
    if server != "gcs":  # Google names the bucket (test_gcs.py); fake-gcs-server says no more than "Not Found"
        calls.append(manager.ask)
    for call in calls:
        with pytest.raises(RemoteStoreNotFoundError, match=rf"check rsm\.config\.storage\.{key}"):
            call()
