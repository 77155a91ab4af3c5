"""An S3 server on this machine, and the slow link before it: versitygw over a folder, toxiproxy in front.

    with shaped_store(work, first_byte_ms=30, connection_megabytes_per_s=60) as store:
        store.plain_url     # to fill it
        store.shaped_url    # to measure: each answer begins so much later, each connection carries no more

toxiproxy sleeps between the pieces of a body: on a machine with few cores it, too, takes its share of them.
"""

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.demo.kafka_cluster import free_port
from proxy.demo.kafka_process import JavaProcess
from proxy.demo.kafka_properties import HOST

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

TOOLS = Path(__file__).resolve().parents[2] / "build" / "tools"
BUCKET = "tier"
REGION = "us-east-1"
# Of a server that lives for a few minutes, on loopback.
ACCESS_KEY_ID, SECRET_ACCESS_KEY = "benchmark", "benchmark-secret"

_READY_TIMEOUT_S = 20.0
_POLL_S = 0.1
_API_TIMEOUT_S = 5.0
_CONNECTIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class ShapedStore:
    """Two ways to one bucket."""

    plain_url: str
    shaped_url: str

    def tidegate_keys(self) -> dict[str, str]:
        """What a broker's properties would hold to reach the bucket over the slow link, without `rsm.config.`."""
        return {
            "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
            "storage.s3.bucket.name": BUCKET,
            "storage.s3.region": REGION,
            "storage.s3.endpoint.url": self.shaped_url,
            "storage.s3.path.style.access.enabled": "true",
            "storage.aws.access.key.id": ACCESS_KEY_ID,
            "storage.aws.secret.access.key": SECRET_ACCESS_KEY,
        }


@contextmanager
def shaped_store(work: Path, *, first_byte_ms: int, connection_megabytes_per_s: int) -> Iterator[ShapedStore]:
    """Start both with an empty bucket; the caller removes `work`.

    Raises:
        FileNotFoundError: a tool was not built.
    """
    objects = work / "s3"
    objects.mkdir()
    server, api, shaped = (f"{HOST}:{free_port()}" for _ in range(3))
    gateway = JavaProcess(
        "versitygw",
        (
            *(_tool("versitygw"), "--port", server, "--access", ACCESS_KEY_ID, "--secret", SECRET_ACCESS_KEY),
            # Without it every GET would pay for a connection of its own.
            *("--region", REGION, "--keep-alive", "--quiet", "posix", str(objects)),
        ),
        work / "versitygw.log",
    )
    try:
        host, _, port = api.rpartition(":")
        link = JavaProcess(
            "toxiproxy", (_tool("toxiproxy-server"), "-host", host, "-port", port), work / "toxiproxy.log"
        )
        try:
            store = ShapedStore(f"http://{server}", f"http://{shaped}")
            _make_bucket(store)
            _shape(api, shaped, server, first_byte_ms, connection_megabytes_per_s)
            yield store
        finally:
            link.kill()
    finally:
        gateway.kill()
        shutil.rmtree(objects, ignore_errors=True)


def s3_client(endpoint_url: str, *, connections_max: int = _CONNECTIONS_MAX) -> "S3Client":
    """boto3 as anyone would make it for this server; threads may share it."""
    import boto3  # half a second: not for those who only ask for options
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(max_pool_connections=connections_max, s3={"addressing_style": "path"}),
    )


def _tool(name: str) -> str:
    path = TOOLS / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built: run `make build/tools/{name}`")
    return str(path)


def _make_bucket(store: ShapedStore) -> None:
    _wait_answers(store.plain_url)
    client = s3_client(store.plain_url)
    client.create_bucket(Bucket=BUCKET)
    client.close()


def _shape(api: str, listen: str, upstream: str, first_byte_ms: int, connection_megabytes_per_s: int) -> None:
    """One proxy with two toxics, both on what the store answers (toxiproxy's HTTP API)."""
    _wait_answers(f"http://{api}/version")
    _post(f"http://{api}/proxies", {"name": "s3", "listen": listen, "upstream": upstream, "enabled": True})
    toxics = {"latency": {"latency": first_byte_ms}, "bandwidth": {"rate": connection_megabytes_per_s * 1000}}
    for kind, attributes in toxics.items():
        toxic = {"name": kind, "type": kind, "stream": "downstream", "attributes": attributes}
        _post(f"http://{api}/proxies/s3/toxics", toxic)


def _wait_answers(url: str) -> None:
    """Until a server answers anything at all."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=_API_TIMEOUT_S).close()
        except urllib.error.HTTPError:
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{url} does not answer: {error}") from error
            time.sleep(_POLL_S)
        else:
            return


def _post(url: str, content: object) -> None:
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=_API_TIMEOUT_S).close()
