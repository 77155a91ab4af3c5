"""Signatures: the published example's, and botocore's own for any key."""

import calendar
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st
from urllib3 import HTTPResponse

from storage.object_store.s3.signed_get import GetSigner, SigningKeys
from tests.support.for_each import for_each

EMPTY_HASH = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOST = "examplebucket.s3.amazonaws.com"
KEYS = SigningKeys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
MOMENT_S = calendar.timegm((2013, 5, 24, 0, 0, 0))


def signer() -> GetSigner:
    return GetSigner(HOST, "/", "us-east-1", EMPTY_HASH)


def lines_of(request: bytes) -> list[str]:
    assert request.endswith(b"\r\n\r\n")
    return request.decode("ascii").split("\r\n")[:-2]


def header(request: bytes, name: str) -> str:
    (value,) = [line.partition(":")[2].strip() for line in lines_of(request)[1:] if line.lower().startswith(f"{name}:")]
    return value


def test_another_day_another_secret_and_the_first_again() -> None:
    made = signer()
    first = made.request("a", "bytes=0-9", KEYS, MOMENT_S)
    requests = [first]
    for keys, moment_s in (
        (KEYS, MOMENT_S + 86_400),
        (SigningKeys(KEYS.access_key, "another"), MOMENT_S),
        (SigningKeys(KEYS.access_key, KEYS.secret_key, "token"), MOMENT_S),
    ):
        requests.append(made.request("a", "bytes=0-9", keys, moment_s))
        assert requests[-1] == signer().request("a", "bytes=0-9", keys, moment_s)
    assert made.request("a", "bytes=0-9", KEYS, MOMENT_S) == first
    assert len({header(request, "authorization") for request in requests}) == 4


def test_nobody_signs_an_anonymous_request() -> None:
    made = GetSigner(HOST, "/bucket/", "", "", "user-agent:me\r\n")
    assert lines_of(made.request("a", "bytes=0-9", None, MOMENT_S)) == [
        "GET /bucket/a HTTP/1.1",
        f"host:{HOST}",
        "range:bytes=0-9",
        "user-agent:me",
    ]


@for_each("keys", [SigningKeys("id\r\nx: y", "s"), SigningKeys("id", "s", "tö")])
def test_credentials_that_no_header_can_hold_are_refused(keys: SigningKeys) -> None:
    with pytest.raises(ValueError, match="no header can hold"):
        signer().request("a", "bytes=0-9", keys, MOMENT_S)


def test_no_secret_is_in_the_text_form() -> None:
    made = signer()
    made.request("a", "bytes=0-9", SigningKeys("id", "the-secret", "the-token"), MOMENT_S)
    assert "the-secret" not in f"{made!r} {SigningKeys('id', 'the-secret', 'the-token')!r}"
    assert "the-token" not in f"{made!r} {SigningKeys('id', 'the-secret', 'the-token')!r}"


class Botocore:
    """What botocore would send."""

    def __init__(self, endpoint_url: str, style: Any, token: str | None) -> None:
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name="eu-west-3",
            aws_access_key_id="id",
            aws_secret_access_key="secret",
            aws_session_token=token,
            config=Config(s3={"addressing_style": style}, response_checksum_validation="when_required"),
        )
        self.client.meta.events.register("before-send.s3.GetObject", self._keep)
        self.sent: Any = None

    def request(self, key: str, byte_range: str) -> Any:
        self.client.get_object(Bucket="bucket", Key=key, Range=byte_range)
        return self.sent

    def _keep(self, request: Any, **_: Any) -> Any:
        self.sent = request
        return AWSResponse(request.url, 200, HTTPHeaders(), HTTPResponse(b""))


@pytest.fixture(
    scope="module",
    params=[
        ("http://store.example:9000", "path", "/bucket/", "store.example:9000", None),
        ("https://store.example/base", "path", "/base/bucket/", "store.example", "a-token"),
        ("https://store.example", "virtual", "/", "bucket.store.example", None),
    ],
    ids=["path", "below a path", "virtual"],
)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Botocore, GetSigner, SigningKeys]]:
    endpoint_url, style, path_prefix, host, token = request.param
    theirs = Botocore(endpoint_url, style, token)
    yield theirs, GetSigner(host, path_prefix, "eu-west-3", EMPTY_HASH), SigningKeys("id", "secret", token)
    theirs.client.close()


KEYS_OF_OBJECTS = st.one_of(
    st.text(st.sampled_from("ab/ +~%._-?#&=:;,@!$'()*[]\\\"é→"), min_size=1, max_size=30),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    st.sampled_from(["/lead", "//two", "a//b", "a/", "./a", "a/../b", "a%2Fb", "a+b c~d", "%", "..", "\t\n"]),
)


@given(key=KEYS_OF_OBJECTS, start=st.integers(0, 10**12))
def test_path_and_signature_are_botocores(pair: tuple[Botocore, GetSigner, SigningKeys], key: str, start: int) -> None:
    botocore, made, keys = pair
    byte_range = f"bytes={start}-{start + 9}"
    theirs = botocore.request(key, byte_range)
    moment = theirs.headers["X-Amz-Date"]
    moment_s = calendar.timegm(time.strptime(moment if isinstance(moment, str) else moment.decode(), "%Y%m%dT%H%M%SZ"))
    ours = made.request(key, byte_range, keys, moment_s)
    assert lines_of(ours)[0] == f"GET {urlsplit(theirs.url).path} HTTP/1.1"
    authorization = theirs.headers["Authorization"]
    assert header(ours, "authorization").encode() == (
        authorization if isinstance(authorization, bytes) else authorization.encode()
    )
