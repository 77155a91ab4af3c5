"""Puts that a store carried out and whose answer was lost: what is sent again is refused, and the object tells."""

import base64
import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from crc32c import crc32c

from storage.errors import RemoteStorageError
from storage.object_store.gcs.config import CHUNK_BYTES_UNIT
from storage.object_store.uploads import UploadRetries
from tests.contract.object_store import fetched
from tests.support.http_stores import OpenScripted, azure_error, gcs_error
from tests.support.s3_front import s3_front
from tests.support.s3_server import S3Server
from tests.support.s3_stores import OpenS3
from tests.support.scripted_http import ScriptedHttp, response, s3_error

WHOLE = b"one whole object"
PARTED = bytes(range(256)) * (CHUNK_BYTES_UNIT // 256) + b"end"
PART_BYTES = CHUNK_BYTES_UNIT
LEAST_PART_BYTES = 5 * 1024 * 1024
MODIFIED = "Wed, 21 Oct 2026 07:28:00 GMT"


def md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def quoted(data: bytes) -> str:
    return f'"{md5(data).hex()}"'


def s3_head(size_bytes: int, etag: str) -> bytes:
    return response(200, headers={"Content-Length": str(size_bytes), "ETag": etag, "Last-Modified": MODIFIED})


def gcs_object(size_bytes: int, data: bytes | None) -> bytes:
    """`data`: whose checksum; None: a store that tells none."""
    found = {"name": "a", "size": str(size_bytes)}
    if data is not None:
        found["crc32c"] = base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()
    return response(200, json.dumps(found).encode(), {"Content-Type": "application/json"})


def azure_head(size_bytes: int, data: bytes | None) -> bytes:
    sums = {} if data is None else {"Content-MD5": base64.b64encode(md5(data)).decode()}
    given = {"x-ms-blob-type": "BlockBlob", "Last-Modified": MODIFIED, "ETag": '"0x1"'}
    return response(200, headers={"Content-Length": str(size_bytes), **given, **sums})


@dataclass(frozen=True, slots=True)
class Way:
    """A put: what is answered before its last request, the refusal when that comes again, and looks at the object that
    show that it is this one, and that it is another."""

    data: bytes
    before: Callable[[str], list[bytes]]
    refusal: bytes
    same: tuple[bytes, ...]
    other: tuple[bytes, ...]
    methods: tuple[str, ...]


S3_PARTS = [PARTED[:PART_BYTES], PARTED[PART_BYTES:]]
S3_SUM = f"{md5(b''.join(map(md5, S3_PARTS))).hex()}-2"
CREATED = b"<InitiateMultipartUploadResult><UploadId>up-1</UploadId></InitiateMultipartUploadResult>"
WAYS = {
    "s3": [
        Way(
            WHOLE,
            lambda _: [],
            s3_error(403, "AccessDenied"),
            (s3_head(len(WHOLE), quoted(WHOLE)), s3_head(len(WHOLE), '"an-opaque-one"')),
            (s3_head(len(WHOLE), quoted(b"other")), s3_head(len(WHOLE) + 1, quoted(WHOLE)), s3_error(404, "NoSuchKey")),
            ("PUT", "PUT", "HEAD"),
        ),
        Way(
            PARTED,
            lambda _: [response(200, CREATED), *(response(200, headers={"ETag": quoted(part)}) for part in S3_PARTS)],
            s3_error(404, "NoSuchUpload"),
            (s3_head(len(PARTED), f'"{S3_SUM}"'), s3_head(len(PARTED), '"an-opaque-one"')),
            (
                s3_head(len(PARTED), f'"{"0" * 32}-2"'),
                s3_head(len(PARTED) - 1, f'"{S3_SUM}"'),
                s3_error(404, "NoSuchKey"),
            ),
            ("POST", "PUT", "PUT", "POST", "POST", "HEAD"),
        ),
    ],
    "gcs": [
        Way(
            WHOLE,
            lambda _: [],
            gcs_error(403, "retentionPolicyNotMet"),
            (gcs_object(len(WHOLE), WHOLE), gcs_object(len(WHOLE), None)),
            (gcs_object(len(WHOLE), b"other"), gcs_object(0, WHOLE), gcs_error(404, "notFound")),
            ("POST", "POST", "GET"),
        ),
        Way(
            PARTED,
            lambda url: [
                response(200, headers={"Location": f"{url}/session"}),
                response(308, headers={"Range": f"bytes=0-{PART_BYTES - 1}"}),
            ],
            gcs_error(410, "uploadSessionGone"),
            (gcs_object(len(PARTED), PARTED), gcs_object(len(PARTED), None)),
            (gcs_object(len(PARTED), b"other"), gcs_object(1, PARTED), gcs_error(404, "notFound")),
            ("POST", "PUT", "PUT", "PUT", "GET"),
        ),
    ],
    "azure": [
        Way(
            WHOLE,
            lambda _: [],
            azure_error(409, "BlobImmutableDueToPolicy"),
            (azure_head(len(WHOLE), WHOLE), azure_head(len(WHOLE), None)),
            (azure_head(len(WHOLE), b"other"), azure_head(0, WHOLE), azure_error(404, "BlobNotFound")),
            ("PUT", "PUT", "HEAD"),
        ),
        Way(
            PARTED,
            lambda _: [response(201), response(201)],
            azure_error(400, "InvalidBlockList"),
            (azure_head(len(PARTED), None),),
            (azure_head(1, None), azure_error(404, "BlobNotFound")),
            ("PUT", "PUT", "PUT", "PUT", "HEAD"),
        ),
    ],
}
SIZES = {"s3": {"part_bytes": PART_BYTES}, "gcs": {"chunk_bytes": PART_BYTES}, "azure": {"block_bytes": PART_BYTES}}


@pytest.fixture(params=WAYS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def put(http: ScriptedHttp, kind: str, open_scripted: OpenScripted) -> Callable[[Way, bytes], None]:
    retries = UploadRetries(3, wait=lambda _: None)
    opened = functools.partial(open_scripted, kind, retries=retries, **SIZES[kind])

    def put(way: Way, look: bytes) -> None:
        http.forget()
        for answer in way.before(http.endpoint_url):
            http.answer(answer)
        http.answer(b"", then="close")  # it was carried out, and nobody heard of it
        http.answer(way.refusal)
        http.answer(look)
        http.answer(response(204))  # to whatever gives the upload up
        opened().put("a", iter([way.data]) if way.data is PARTED else way.data)

    return put


def test_an_object_that_is_there_as_it_should_be_is_done(
    http: ScriptedHttp, kind: str, put: Callable[[Way, bytes], None]
) -> None:
    for way in WAYS[kind]:
        for look in way.same:
            put(way, look)
            assert tuple(line.split()[0] for line in http.requests) == way.methods


def test_another_object_and_none_are_not(kind: str, put: Callable[[Way, bytes], None]) -> None:
    for way in WAYS[kind]:
        for look in way.other:
            with pytest.raises(RemoteStorageError):
                put(way, look)


def test_over_a_server_that_forgets_its_uploads(s3_endpoint: S3Server, open_store: OpenS3) -> None:
    puts_whose_answers_are_lost_are_done(s3_endpoint, open_store)


def puts_whose_answers_are_lost_are_done(server: S3Server, open_store: OpenS3) -> None:
    """Also over another server: all/test_other_servers.py."""
    bucket = server.make_bucket()
    content = bytes(2 * LEAST_PART_BYTES + 1)
    with s3_front(server.endpoint_url) as front:
        retries = UploadRetries(3, wait=lambda _: None)
        store = open_store(server.at(front.endpoint_url), bucket, retries=retries, part_bytes=LEAST_PART_BYTES)
        for method, query in (("PUT", "*partNumber=2*"), ("POST", "uploadId=*")):
            front.lose(path="*.log", method=method, query=query)
        store.put("a.log", content)
        assert fetched(store, "a.log", 0, len(content)) == content
        assert list(store.list_uploads("")) == []
