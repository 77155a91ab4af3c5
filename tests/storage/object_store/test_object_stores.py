"""The contract of ObjectStore, over what a quick test may start."""

from pathlib import Path

import pytest

from storage.object_store.files.store import FileSystemStore
from storage.object_store.s3.store import S3Store
from tests.contract.object_store import ObjectStoreContract, OpenStore
from tests.support.memory_store import MemoryStore
from tests.support.s3_server import S3Server
from tests.support.scripted_object_store import ScriptedObjectStore

PART_BYTES = 5 * 1024 * 1024


class TestS3Store(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, s3_endpoint: S3Server) -> OpenStore:
        bucket = s3_endpoint.make_bucket()
        return lambda: S3Store(s3_endpoint.settings(bucket, part_bytes=PART_BYTES))


class TestFileSystemStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        (tmp_path / "bucket").mkdir()
        return lambda: FileSystemStore(tmp_path / "bucket")


class TestScriptedMemory(ObjectStoreContract):
    """The fakes of other tests are as the stores are, while nothing is scripted."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        memory = MemoryStore()
        return lambda: ScriptedObjectStore(memory)
