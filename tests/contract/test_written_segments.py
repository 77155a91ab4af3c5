from pathlib import Path

import pytest

from tests.contract.written_segments import WrittenSegmentsContract
from tests.support.s3_server import S3Server


class TestInFiles(WrittenSegmentsContract):
    @pytest.fixture
    def where(self, tmp_path: Path) -> dict[str, str]:
        (tmp_path / "bucket").mkdir()
        backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
        return {"storage.backend.class": backend, "storage.root": str(tmp_path / "bucket")}


class TestInS3(WrittenSegmentsContract):
    @pytest.fixture
    def where(self, s3_endpoint: S3Server) -> dict[str, str]:
        return s3_endpoint.config(s3_endpoint.make_bucket())
