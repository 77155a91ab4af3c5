"""fake-gcs-server: Google Cloud Storage's JSON API in memory, in a process of its own.

    with fake_gcs(work) as server:
        store = GcsStore(server.settings(server.make_bucket()))

It asks nobody who they are; answers that deny are scripted (tests.support.scripted_http).
"""

import json
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.object_store.gcs.config import AnonymousCredentials, GcsSettings
from tests.support.needs import FAKE_GCS
from tests.support.server_process import server_process
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

API_TIMEOUT_S = 5.0
CHUNK_BYTES = 2 * 1024 * 1024
OPTIONS = ("-log-level", "error")


@dataclass(frozen=True, slots=True)
class GcsServer:
    """A running server; buckets of tests do not meet when each test makes its own."""

    endpoint_url: str

    def make_bucket(self, name: str | None = None) -> str:
        """Make a bucket; without a name, of one that nobody has."""
        bucket = name or f"bucket-{secrets.token_hex(6)}"
        body = json.dumps({"name": bucket}).encode()
        url = f"{self.endpoint_url}/storage/v1/b?project=tests"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=API_TIMEOUT_S) as answer:
            answer.read()
        return bucket

    def at(self, endpoint_url: str) -> "GcsServer":
        """The same server, reached another way."""
        return GcsServer(endpoint_url)

    def settings(self, bucket: str, **changes: object) -> GcsSettings:
        """Settings that reach a bucket; `changes` are other fields of GcsSettings."""
        given: dict[str, object] = {
            "bucket": bucket,
            "endpoint_url": self.endpoint_url,
            "credentials": AnonymousCredentials(),
            "chunk_bytes": CHUNK_BYTES,
        }
        return GcsSettings(**{**given, **changes})  # type: ignore[arg-type]  # the caller's fields, by name

    def config(self, bucket: str) -> dict[str, str]:
        """The same as a storage manager's keys, the broker's prefix stripped."""
        return {
            "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.gcs.GcsStorage",
            "storage.gcs.bucket.name": bucket,
            "storage.gcs.endpoint.url": self.endpoint_url,
            "storage.gcs.credentials.default": "false",
        }


@contextmanager
def fake_gcs(work: Path) -> Iterator[GcsServer]:
    """Serve until the block ends. Its log goes to `work`."""
    port = free_port()
    url = f"http://{HOST}:{port}"
    program = (str(FAKE_GCS), "-backend", "memory", "-scheme", "http", "-host", HOST, "-port", str(port))
    with server_process("fake-gcs", (*program, "-external-url", url, *OPTIONS), work, port=port):
        yield GcsServer(url)
