"""versitygw: an S3 server over a folder, each bucket a folder below it and each object a file.

    with versitygw(folder, work, keeps_metadata=False) as server:      # `folder`/tier is a bucket of that name
        store = S3Store(server.settings("tier"))

Files that somebody else wrote there are objects as well. Without metadata of its own (`--nometa`) it leaves no trace
beside them, and cannot put uploads in parts together: it forgets the parts' ETags.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.needs import VERSITYGW
from tests.support.s3_server import CREDENTIALS, REGION, S3Server
from tests.support.server_process import server_process
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST


@contextmanager
def versitygw(folder: Path, work: Path, *, keeps_metadata: bool = True) -> Iterator[S3Server]:
    """Serve the folder until the block ends. Log and metadata go to `work`."""
    sidecar = work / "sidecar"
    sidecar.mkdir(parents=True)
    port = free_port()
    user = ("--access", CREDENTIALS.access_key_id, "--secret", CREDENTIALS.secret_access_key)
    command = (
        *(str(VERSITYGW), "--port", f"{HOST}:{port}", *user, "--region", REGION, "--keep-alive", "--quiet"),
        *("posix", *(("--sidecar", str(sidecar)) if keeps_metadata else ("--nometa",)), str(folder)),
    )
    with server_process("versitygw", command, work, port=port):
        yield S3Server(f"http://{HOST}:{port}")
