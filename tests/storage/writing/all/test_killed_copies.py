"""A process that is killed in the midst of an upload: what others see of it, and that the next copy is fine."""

import json
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import RemoteResourceNotFoundError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.object_store.registry import open_object_store
from storage.object_store.s3 import S3Store
from tests.support.s3_server import S3Server
from tests.support.segments import filled_segment, metadata_of
from tests.support.waiting import wait_until
from tests.support.writing_tiers import PARTITION, aiven_config, copied, found_segment, private_keys

ROOT = Path(__file__).resolve().parents[4]
SEGMENT = filled_segment(100)
LOG_BYTES = 64 * 1024 * 1024
RATE = 12 * 1024 * 1024
"""Bytes a second: the upload has begun after half a second, and would last for five."""

PROGRAM = """
import json, sys
from pathlib import Path
from dataclasses import replace
from storage.formats.aiven.manager import AivenRemoteStorageManager
from tests.storage.writing.all.test_killed_copies import LOG_BYTES, SEGMENT
from tests.support.segments import metadata_of, segment_files
from tests.support.writing_tiers import PARTITION
data = segment_files(Path(sys.argv[2]), SEGMENT)
with data.log_segment.open("wb") as file:
    file.truncate(LOG_BYTES)
metadata = replace(metadata_of(PARTITION, SEGMENT), segment_size_bytes=LOG_BYTES)
AivenRemoteStorageManager(json.loads(sys.argv[1])).copy_log_segment_data(metadata, data)
"""


def uploading(config: dict[str, str], folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(config), str(folder)], cwd=ROOT)


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_a_killed_upload_is_seen_by_nobody(where: str, s3_endpoint: S3Server, tmp_path: Path) -> None:
    bucket = s3_endpoint.make_bucket()
    root = tmp_path / "bucket"
    root.mkdir()
    backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
    stores = {
        "folder": {"storage.backend.class": backend, "storage.root": str(root)},
        "s3": {**s3_endpoint.config(bucket), "storage.s3.multipart.upload.part.size": str(5 * 1024 * 1024)},
    }
    config = {
        **stores[where],
        **aiven_config(tmp_path / "keys", encryption=True, chunk_bytes=1024 * 1024),
        "upload.rate.limit.bytes.per.second": str(RATE),
    }
    with closing(open_object_store(config)) as store, closing(AivenRemoteStorageManager(config)) as manager:

        def has_begun() -> bool:
            if where == "folder":
                return any(path.stat().st_size > 0 for path in root.rglob("*.tmp"))
            assert isinstance(store, S3Store)
            return "Uploads" in store.boto3_client().list_multipart_uploads(Bucket=bucket)

        with uploading(config, tmp_path / "local") as process:
            try:
                wait_until(has_begun, "the upload has begun")
            finally:
                process.kill()
        assert process.returncode == -signal.SIGKILL, "it was in the midst of it"
        assert list(store.list("")) == []
        metadata = replace(metadata_of(PARTITION, SEGMENT), segment_size_bytes=LOG_BYTES)
        with pytest.raises(RemoteResourceNotFoundError):
            manager.open_log_segment(metadata)
        copied(manager, tmp_path / "again", SEGMENT)
        found = found_segment(store, metadata, private_keys(tmp_path / "keys", "key1"))
        assert found is not None
        assert found.files == SEGMENT.objects()
