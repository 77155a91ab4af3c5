"""An object store on this machine, and the slow link in front of it: versitygw, fake-gcs-server or Azurite over a
folder, toxiproxy before it.

    with shaped_store(work, ["http", "https"], first_byte_ms=30, connection_megabytes_per_s=60) as store:
        store.plain_url             # to fill it
        store.ways["https"].url     # to measure: each answer begins so much later, each connection carries no more

Each scheme has a versitygw of its own over the one folder; the other stores speak HTTP alone here. toxiproxy passes TLS
through and sleeps between the pieces of a body: on a machine with few cores it, too, takes its share of them. The
certificate is made here; clients of this process, and of those that it starts meanwhile, trust it by AWS_CA_BUNDLE.
"""

import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from tests.support.azurite import ACCOUNT, AzureServer, azurite_options
from tests.support.azurite import COMMAND as AZURITE_COMMAND
from tests.support.certificates import server_certificate
from tests.support.fake_gcs import OPTIONS as GCS_OPTIONS
from tests.support.fake_gcs import GcsServer
from tests.support.needs import TOOLS
from tests.support.s3_server import CREDENTIALS, REGION, S3Server
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_process import JavaProcess
from tools.demo.kafka_properties import HOST

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "tier"

_READY_TIMEOUT_S = 20.0
_POLL_S = 0.1
_API_TIMEOUT_S = 5.0
_CONNECTIONS_MAX = 64


KINDS = ("s3", "gcs", "azure")
"""Kinds of stores: their names here, and for `--store`."""


@dataclass(frozen=True, slots=True)
class Way:
    """One scheme's way to the bucket over the slow link."""

    kind: str
    url: str
    server_pid: int
    link_pid: int

    def tidegate_keys(self) -> dict[str, str]:
        """Return what a broker's properties would hold to reach the bucket this way, without `rsm.config.`."""
        return stand_in(self.kind, self.url).config(BUCKET)


@dataclass(frozen=True, slots=True)
class ShapedStore:
    """Several ways to one bucket."""

    kind: str
    plain_url: str
    ways: Mapping[str, Way]

    def plain_keys(self) -> dict[str, str]:
        """The same as `Way.tidegate_keys`, past the slow link."""
        return stand_in(self.kind, self.plain_url).config(BUCKET)


def stand_in(kind: str, url: str) -> S3Server | GcsServer | AzureServer:
    """Return what answers at `url`."""
    if kind == "azure":
        return AzureServer(f"{url}/{ACCOUNT}")
    return GcsServer(url) if kind == "gcs" else S3Server(url)


@contextmanager
def shaped_store(
    work: Path, schemes: Sequence[str], *, first_byte_ms: int, connection_megabytes_per_s: int, kind: str = "s3"
) -> Iterator[ShapedStore]:
    """Start them with an empty bucket; the caller removes `work`. 0 MB/s a connection: nothing stands before the store.

    Raises:
        FileNotFoundError: a tool was not built.
    """
    objects = work / "s3"
    objects.mkdir()
    certificate, key = server_certificate(work)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, objects, ignore_errors=True)
        stack.enter_context(mock.patch.dict(os.environ, AWS_CA_BUNDLE=str(certificate)))
        ways: dict[str, Way] = {}
        for scheme in schemes:
            server = f"{HOST}:{free_port()}"
            tls = ("--cert", str(certificate), "--key", str(key)) if scheme == "https" else ()
            gateway = _start(stack, work, *_program(kind, server, objects, tls))
            ways[scheme] = Way(kind, f"{scheme}://{server}", gateway.pid, 0)
            _wait_answers(ways[scheme].url, certificate)
        plain_url = ways[schemes[0]].url
        if connection_megabytes_per_s:
            link = {"first_byte_ms": first_byte_ms, "connection_megabytes_per_s": connection_megabytes_per_s}
            ways = {scheme: stack.enter_context(slowed(work, way, **link)) for scheme, way in ways.items()}
        store = ShapedStore(kind, plain_url, ways)
        stand_in(kind, store.plain_url).make_bucket(BUCKET)
        yield store


@contextmanager
def slowed(work: Path, way: Way, *, first_byte_ms: int, connection_megabytes_per_s: int) -> Iterator[Way]:
    """The same way over a slow link."""
    scheme, _, server = way.url.partition("://")
    api, shaped = (f"{HOST}:{free_port()}" for _ in range(2))
    with ExitStack() as stack:
        link = _start(stack, work, "toxiproxy-server", "-host", HOST, "-port", api.rpartition(":")[2])
        _wait_answers(f"http://{api}/version", None)
        _shape(api, scheme, shaped, server, first_byte_ms, connection_megabytes_per_s)
        yield replace(way, url=f"{scheme}://{shaped}", link_pid=link.pid)


def s3_client(endpoint_url: str, *, connections_max: int = _CONNECTIONS_MAX) -> "S3Client":
    """boto3 as anyone would make it for this server; threads may share it."""
    import boto3  # half a second: not for those who only ask for options
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS.access_key_id,
        aws_secret_access_key=CREDENTIALS.secret_access_key,
        config=Config(signature_version="s3v4", max_pool_connections=connections_max, s3={"addressing_style": "path"}),
    )


def _program(kind: str, server: str, objects: Path, tls: Sequence[str]) -> tuple[str, ...]:
    """The tool that serves the folder at that address, and its arguments."""
    if kind == "azure":
        return ("azurite", *azurite_options(server.rpartition(":")[2]), "--location", str(objects))
    if kind == "gcs":
        address = ("-scheme", "http", "-host", HOST, "-port", server.rpartition(":")[2])
        return ("fake-gcs-server", "-backend", "filesystem", "-filesystem-root", str(objects), *address, *GCS_OPTIONS)
    return (
        *("versitygw", "--port", server, *tls),
        *("--access", CREDENTIALS.access_key_id, "--secret", CREDENTIALS.secret_access_key),
        # Without it every GET would pay for a connection of its own.
        *("--region", REGION, "--keep-alive", "--quiet", "posix", str(objects)),
    )


def _start(stack: ExitStack, work: Path, tool: str, *arguments: str) -> JavaProcess:
    """Start a tool that was built, until the stack ends."""
    path = TOOLS / tool
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built: run `make build/tools/{tool}`")
    command = AZURITE_COMMAND if tool == "azurite" else (str(path),)
    process = JavaProcess(tool, (*command, *arguments), work / f"{tool}.log")
    stack.callback(process.kill)
    return process


def _shape(
    api: str, name: str, listen: str, upstream: str, first_byte_ms: int, connection_megabytes_per_s: int
) -> None:
    """One proxy with two toxics, both on what the store answers (toxiproxy's HTTP API)."""
    _post(f"http://{api}/proxies", {"name": name, "listen": listen, "upstream": upstream, "enabled": True})
    toxics = {"latency": {"latency": first_byte_ms}, "bandwidth": {"rate": connection_megabytes_per_s * 1000}}
    for kind, attributes in toxics.items():
        toxic = {"name": kind, "type": kind, "stream": "downstream", "attributes": attributes}
        _post(f"http://{api}/proxies/{name}/toxics", toxic)


def _wait_answers(url: str, certificate: Path | None) -> None:
    """Until a server answers anything at all."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    context = ssl.create_default_context(cafile=certificate)
    while True:
        try:
            urllib.request.urlopen(url, timeout=_API_TIMEOUT_S, context=context).close()
        except urllib.error.HTTPError as error:
            error.close()
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
