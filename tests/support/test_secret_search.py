import base64
import json

from tests.support.for_each import for_each
from tests.support.secret_search import found_in

SECRET = 'p"ss/w0rd+é-of-the-test'


@for_each(
    "text",
    [
        f"a {SECRET} b".encode(),
        json.dumps({"a": SECRET}).encode(),
        SECRET.encode().hex().encode(),
        SECRET.encode("utf-16-be"),
        *(base64.b64encode(b"x" * before + SECRET.encode() + b"yy") for before in range(4)),
        b"?q=p%22ss%2Fw0rd%2B%C3%A9-of-the-test&",
    ],
)
def test_a_secret_is_found_however_it_is_written(text: bytes) -> None:
    assert found_in(SECRET, [("there", text), ("not there", b"nothing")]) == ["there"]
