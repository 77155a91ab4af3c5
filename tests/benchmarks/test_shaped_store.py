"""The slow link: one bucket over HTTP and HTTPS, as boto3 and Tidegate's own store reach it."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.support.shaped_store import BUCKET, s3_client, shaped_store
from storage.object_store.s3 import S3Store
from storage.object_store.s3_config import s3_settings

FIRST_BYTE_MS = 100


@pytest.mark.needs("toxiproxy")
@pytest.mark.needs("versitygw")
def test_both_ways_lead_to_one_bucket_and_the_first_byte_is_late(tmp_path: Path) -> None:
    before = os.environ.get("AWS_CA_BUNDLE")
    with shaped_store(tmp_path, ["http", "https"], first_byte_ms=FIRST_BYTE_MS, connection_megabytes_per_s=60) as store:
        filler = S3Store(s3_settings(store.plain_keys()))
        filler.put("log", b"0123456789")
        filler.close()
        for scheme, way in store.ways.items():
            assert way.url.startswith(f"{scheme}://")
            bucket = S3Store(s3_settings(way.tidegate_keys()))
            started_s = time.monotonic()
            assert bucket.head("log").size_bytes == 10
            assert time.monotonic() - started_s >= FIRST_BYTE_MS / 1000
            bucket.close()
            client = s3_client(way.url)
            assert client.get_object(Bucket=BUCKET, Key="log")["Body"].read() == b"0123456789"
            client.close()
    assert os.environ.get("AWS_CA_BUNDLE") == before
