"""What `check` says of a store that a copier is to write to, over an S3 server that refuses one verb or another."""

import io
from collections.abc import Iterator
from contextlib import closing

import pytest

from storage.formats.plain_objects import PlainObjects
from storage.object_store.s3.store import S3Store
from tests.support.for_each import for_each
from tests.support.s3_front import S3Front, s3_front
from tests.support.s3_server import S3Server
from tests.support.scripted_http import s3_error
from tidegate.commands.check_writing import check_writing
from tidegate.commands.report import Report

TRIAL = "tier/tidegate-check-tries-to-write"
DENIED = s3_error(403, "AccessDenied")


@pytest.fixture
def front(s3_endpoint: S3Server) -> Iterator[S3Front]:
    with s3_front(s3_endpoint.endpoint_url) as opened:
        yield opened


def checked(server: S3Server, front: S3Front, bucket: str) -> list[str]:
    config = {**server.at(front.endpoint_url).config(bucket), "key.prefix": "tier/"}
    with closing(PlainObjects(config)) as manager:
        report = Report(out := io.StringIO())
        check_writing(manager.folder(), report)
    return out.getvalue().splitlines()


def left(server: S3Server, bucket: str) -> tuple[list[str], list[str | None]]:
    """Objects and unfinished uploads."""
    with closing(S3Store(server.settings(bucket))) as store:
        return [head.key for head in store.list("")], [upload.key for upload in store.list_uploads("")]


def test_a_store_that_does_all_is_left_as_it_was(s3_endpoint: S3Server, front: S3Front) -> None:
    bucket = s3_endpoint.make_bucket()
    assert checked(s3_endpoint, front, bucket) == ["ok      the store takes objects and uploads in parts"]
    assert left(s3_endpoint, bucket) == ([], [])


@for_each(
    "request_pattern, words, kept",
    [
        ("DELETE ", ("objects cannot be deleted", f"so does {TRIAL}: ", "it takes s3:DeleteObject"), ([TRIAL], [])),
        (
            "DELETE uploadId=*",
            (f"an upload of {TRIAL} stays", "AbortIncompleteMultipartUpload", "it takes s3:AbortMultipartUpload"),
            ([], [TRIAL]),
        ),
        ("GET *uploads*", ("unfinished uploads cannot be listed", "it takes s3:ListBucketMultipartUploads"), ([], [])),
    ],
)
def test_what_a_copier_can_do_without_is_a_warning(
    s3_endpoint: S3Server,
    front: S3Front,
    request_pattern: str,
    words: tuple[str, ...],
    kept: tuple[list[str], list[str | None]],
) -> None:
    front.heal()
    front.refuse(DENIED, request=request_pattern)
    bucket = s3_endpoint.make_bucket()
    first, warning = checked(s3_endpoint, front, bucket)
    assert first == "ok      the store takes objects and uploads in parts"
    assert warning.startswith("warning ")
    assert all(each in warning for each in words), warning
    assert left(s3_endpoint, bucket) == kept


@for_each("request_pattern", ["PUT *", "POST *uploads*"])
def test_a_store_that_takes_no_segments_is_wrong(s3_endpoint: S3Server, front: S3Front, request_pattern: str) -> None:
    front.heal()
    front.refuse(DENIED, request=request_pattern)
    bucket = s3_endpoint.make_bucket()
    [wrong] = checked(s3_endpoint, front, bucket)
    assert wrong.startswith("WRONG   the store cannot be written to, so nothing is copied: s3://")
    assert wrong.endswith("it takes s3:PutObject")
    assert left(s3_endpoint, bucket) == ([], [])
