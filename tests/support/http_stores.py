"""What tests of S3, GCS and Azure over a scripted server share. Fixtures: tests/storage/object_store/conftest.py."""

import json
from collections.abc import Callable, Mapping

from storage.object_store.azure.store import AzureStore
from storage.object_store.gcs.store import GcsStore
from storage.object_store.object_store import ObjectStore
from storage.object_store.s3.store import S3Store
from tests.support.azurite import AzureServer
from tests.support.fake_gcs import GcsServer
from tests.support.s3_server import S3Server
from tests.support.scripted_http import response

OpenScripted = Callable[..., ObjectStore]
"""Opens a store of that kind with the bucket `tier`; then settings by their names."""

OPENERS: Mapping[str, Callable[..., ObjectStore]] = {
    "s3": lambda url, retries=None, **changes: S3Store(S3Server(url).settings("tier", **changes), retries=retries),
    "gcs": lambda url, retries=None, **changes: GcsStore(GcsServer(url).settings("tier", **changes), retries=retries),
    "azure": lambda url, retries=None, **changes: AzureStore(
        AzureServer(url).settings("tier", **changes), retries=retries
    ),
}
"""By kind; from the server's URL, and settings by their names."""


def gcs_error(status: int, reason: str, message: str = "scripted") -> bytes:
    """An answer with Google's body of an error."""
    body = {"error": {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}}
    return response(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def azure_error(status: int, code: str, *, in_body: bool = False, **headers: str) -> bytes:
    """An answer with Azure's code of an error, in its header or in its body alone."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
    named = {} if in_body else {"x-ms-error-code": code}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return response(status, body, {"Content-Type": "application/xml", **named, **given})


def batch_answer(status: int, *answers: bytes) -> bytes:
    """An answer to a batch, with the answers to its parts."""
    parts = [
        b"--boundary\r\nContent-Type: application/http\r\nContent-ID: <response-%d>\r\n\r\n%b\r\n" % (number, answer)
        for number, answer in enumerate(answers)
    ]
    body = b"".join((*parts, b"--boundary--\r\n"))
    return response(status, body, {"Content-Type": "multipart/mixed; boundary=boundary"})
