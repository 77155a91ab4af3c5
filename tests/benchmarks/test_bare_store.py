"""A store's SDK in a process of its own: what it reads, what it reports, how it fails."""

import pytest

from benchmarks.support.bare_store import RANGE_BYTES, SdkProcess
from benchmarks.support.shaped_store import BUCKET, s3_client
from tests.support.s3_server import s3_server

SIZE_BYTES = RANGE_BYTES + 1000


def test_it_reads_every_byte_and_reports_its_own_processor_time(capfd: pytest.CaptureFixture[str]) -> None:
    with s3_server() as server:
        server.make_bucket(BUCKET)
        client = s3_client(server.endpoint_url)
        client.put_object(Bucket=BUCKET, Key="log", Body=bytes(SIZE_BYTES))
        client.close()
        with SdkProcess("s3", server.endpoint_url) as process:
            for _ in range(2):
                transfer, processor_s = process.read([("log", SIZE_BYTES)])
                assert transfer.read_bytes == SIZE_BYTES
                assert 0 < processor_s < 16 * transfer.seconds
            with pytest.raises(RuntimeError, match="has ended: 1"):
                process.read([("log", SIZE_BYTES + 1)])
    assert "EOFError: log: 1000 bytes in place of 1001" in capfd.readouterr().err
