"""An S3 server on this machine: moto's, in memory, in a process of its own.

    with s3_server() as server:
        store = S3Store(server.settings(server.make_bucket("tier")))

A process of its own, because moto hooks itself into every boto3 client of the process that imports it, and because its
threads' warnings would be this process' errors. It ends when its standard input does, also when we are killed.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from storage.object_store.s3.config import S3Settings, StaticCredentials

REGION: Final = "eu-west-1"
CREDENTIALS = StaticCredentials("test-access-key", "test-secret-key")

_PROGRAM = """
import logging, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
moto, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_by_one(environ, start_response):
    with turn:
        return moto(environ, start_response)

server = make_server("127.0.0.1", 0, one_by_one, threaded=True, request_handler=MotoRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""
# moto's dictionaries are not made for several threads: one lists a bucket while another deletes from it, and the answer
# is 500. Connections are served side by side, requests in turn.


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server; buckets of tests do not meet when each test makes its own."""

    endpoint_url: str

    def make_bucket(self, name: str | None = None) -> str:
        """Make a bucket, of a name that nobody has unless one is given, and give its name."""
        import boto3

        bucket = name or f"bucket-{secrets.token_hex(6)}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS.access_key_id,
            aws_secret_access_key=CREDENTIALS.secret_access_key,
        )
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        client.close()
        return bucket

    def at(self, endpoint_url: str) -> "S3Server":
        """The same server, reached another way."""
        return S3Server(endpoint_url)

    def settings(self, bucket: str, **changes: object) -> S3Settings:
        """Settings that reach a bucket; `changes` are other fields of S3Settings."""
        given: dict[str, object] = {
            "bucket": bucket,
            "region": REGION,
            "endpoint_url": self.endpoint_url,
            "path_style": True,
            "credentials": CREDENTIALS,
        }
        return S3Settings(**{**given, **changes})  # type: ignore[arg-type]  # the caller's fields, by name

    def config(self, bucket: str) -> dict[str, str]:
        """The same as a storage manager's keys, the broker's prefix stripped."""
        return {
            "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
            "storage.s3.bucket.name": bucket,
            "storage.s3.region": REGION,
            "storage.s3.endpoint.url": self.endpoint_url,
            "storage.s3.path.style.access.enabled": "true",
            "storage.aws.access.key.id": CREDENTIALS.access_key_id,
            "storage.aws.secret.access.key": CREDENTIALS.secret_access_key,
        }


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server and stop it at the end; it takes about two seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "AWS_DEFAULT_REGION": REGION},
    )
    with process:
        try:
            if process.stdout is None or process.stdin is None:
                raise AssertionError("both are pipes")
            port = process.stdout.readline().strip()
            if not port.isdigit():
                raise RuntimeError(f"moto's server did not start: {process.poll()}")
            yield S3Server(f"http://127.0.0.1:{port.decode()}")
        finally:
            process.kill()
