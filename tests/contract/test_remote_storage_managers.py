"""The contract of RemoteStorageManager, on files and on moto; on other servers: all/test_remote_storage_managers.py."""

from pathlib import Path

import pytest

from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from tests.contract.remote_storage_manager import BucketContract, OpenManager, OpenPlain, RemoteStorageManagerContract
from tests.support.s3_server import S3Server


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


class TestPlainObjectsInS3(BucketContract):
    bucket_key = "s3.bucket.name"

    @pytest.fixture
    def server(self, s3_endpoint: S3Server) -> S3Server:
        return s3_endpoint
