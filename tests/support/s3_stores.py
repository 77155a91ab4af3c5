"""What tests of S3 stores over a scripted server share. Fixtures: tests/storage/object_store/conftest.py."""

from collections.abc import Callable

from storage.object_store.s3.store import S3Store
from tests.support.scripted_http import response

BODY = bytes(range(256)) * 40

OpenS3 = Callable[..., S3Store]
"""Opens a store of the scripted server, or of the one that is given; then its bucket, and settings by their names."""


def ranged(body: bytes = BODY, *, start: int = 0, total: int | None = None, **headers: str) -> bytes:
    """An answer with that part of an object of `total` bytes; without it, with the last part."""
    end = start + len(body)
    found = {"Content-Range": f"bytes {start}-{end - 1}/{total or end}"}
    return response(206, body, {**found, **{name.replace("_", "-"): value for name, value in headers.items()}})
