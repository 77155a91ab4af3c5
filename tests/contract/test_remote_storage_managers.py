"""The contract of RemoteStorageManager, run on every format that can be written."""

from pathlib import Path

import pytest

from storage.formats.local_tiered_storage import LocalTieredStorage
from tests.contract.remote_storage_manager import OpenManager, RemoteStorageManagerContract


class TestLocalTieredStorage(RemoteStorageManagerContract):
    @pytest.fixture
    def open_manager(self, tmp_path: Path) -> OpenManager:
        return lambda: LocalTieredStorage({"dir": str(tmp_path / "tier")})

    @pytest.fixture
    def open_elsewhere(self, tmp_path: Path) -> OpenManager:
        return lambda: LocalTieredStorage({"dir": str(tmp_path / "another tier")})
