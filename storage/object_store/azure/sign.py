"""GET requests for Azure's blobs, as bytes to send: who asks is said by a signature, in the URL, or by a token.

Sources of the rules: the Blob service's REST API, "Get Blob" and "Authorize with Shared Key" (a header of the request's
own lines, joined, signed with HMAC-SHA256; the resource is the account and the path as it is sent).
"""

import base64
import hmac
from email.utils import formatdate
from urllib.parse import quote, urlsplit

from storage.object_store.azure.config import SasToken, SharedKey
from storage.object_store.http.store import USER_AGENT
from storage.object_store.http.tokens import Token

API_VERSION = "2021-12-02"
"""For our GETs alone; the SDK has its own."""


class GetRequests:
    """Makes the requests for one container. Thread-safe."""

    def __init__(self, endpoint_url: str, container: str, credentials: SharedKey | SasToken | None) -> None:
        parts = urlsplit(endpoint_url)
        self._host = parts.netloc
        self._folder = f"{parts.path}/{quote(container, safe='$')}/"
        self._credentials = credentials

    def request(self, key: str, byte_range: str, now_s: float, token: Token | None = None) -> bytes:
        """The whole request.

        Args:
            byte_range: the value of the Range header.
            now_s: seconds since the epoch.
            token: shown where there are no other credentials.
        """
        path = self._folder + quote(key, safe="/~")
        headers = {"x-ms-date": formatdate(now_s, usegmt=True), "x-ms-version": API_VERSION}
        target, given = path, self._credentials
        lines = [f"host: {self._host}", f"range: {byte_range}", f"user-agent: {USER_AGENT}"]
        lines += [f"{name}: {headers[name]}" for name in headers]
        if isinstance(given, SasToken):
            target = f"{path}?{given.token}"
        elif isinstance(given, SharedKey):
            lines.append(f"authorization: {_signature(given, path, byte_range, headers)}")
        elif token is not None:
            lines.append(f"authorization: Bearer {token.text}")
        return "\r\n".join((f"GET {target} HTTP/1.1", *lines, "", "")).encode("ascii")


def _signature(given: SharedKey, path: str, byte_range: str, headers: dict[str, str]) -> str:
    # The method, ten headers that are not sent, the range, Azure's own headers in ascending order, the resource.
    own = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    text = "GET" + "\n" * 11 + f"{byte_range}\n{own}/{given.account}{path}"
    signature = base64.b64encode(hmac.digest(given.key, text.encode(), "sha256")).decode()
    return f"SharedKey {given.account}:{signature}"
