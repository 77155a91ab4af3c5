"""A resumable upload of Google Cloud Storage, by its documented protocol (Cloud Storage, "Resumable uploads").

The SDK's own writer cannot go on after an answer that was lost: it neither asks how far it got nor keeps what it sent.
Here each chunk is kept until it is stored, and after trouble the session is asked what it has first.

Only the last chunk may have any size and says how large the object is; which one it is shows when nothing comes behind
it. So each chunk is sent when the next one is there, and the last by `finish`.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

from crc32c import crc32c

from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.object_store.http.store import REFUSAL_BYTES_MAX, RefusedAnswer
from storage.object_store.uploads import Part

_STORED = re.compile(r"bytes=0-(\d{1,15})", re.ASCII)
_GONE = frozenset({204, 404, 410, 499})
"""What a DELETE of a session is answered with: 499 is Google's own for one that was cancelled."""


class GcsUpload:
    """A PartUpload.

    Args:
        request: sends an HTTP request (method, URL, keywords of `requests`) with the credentials' headers.
        url: of the API's endpoint.
        what: the words for it, for messages.
        errors: translates errors.
        holds: whether the object is there and has that size and that CRC-32C.
    """

    def __init__(
        self,
        request: Callable[..., Any],
        url: str,
        bucket: str,
        key: str,
        what: str,
        errors: Callable[[], AbstractContextManager[None]],
        holds: Callable[[int, int], bool],
    ) -> None:
        self._request = request
        self._begin_url = (
            f"{url}/upload/storage/v1/b/{quote(bucket, safe='')}/o?uploadType=resumable&name={quote(key, safe='')}"
        )
        self._what = what
        self._errors = errors
        self._holds = holds
        self._checksum = 0
        self._session_url = ""
        self._kept: Part = b""
        self._kept_number = 0
        self._start = 0
        """Where the chunk that is kept begins in the object."""
        self._is_unsure = False

    def begin(self) -> None:
        """Open a session. One whose answer was lost ends by itself after a week."""
        answer = self._ask(
            "POST", self._begin_url, {"X-Upload-Content-Type": "application/octet-stream"}, b"", (200, 201)
        )
        self._session_url = answer.get("location", "")
        if not self._session_url:
            raise RemoteStorageError(f"{self._what}: an upload was opened without a word where")

    def part(self, number: int, data: Part) -> None:
        """Send the chunk before this one, and keep this one."""
        if number > 1:
            self._send(is_last=False)
        if number != self._kept_number:
            self._start += len(self._kept)
            self._kept, self._kept_number = data, number
            self._checksum = crc32c(data, self._checksum)

    def finish(self) -> None:
        """Send the last chunk: then the object is there."""
        self._send(is_last=True)

    def is_done(self) -> bool:
        """Look at the object: a session that has ended may be forgotten."""
        return self._holds(self._start + len(self._kept), self._checksum)

    def abort(self) -> None:
        """Cancel the session."""
        self._ask("DELETE", self._session_url, {}, b"", _GONE)

    def _send(self, *, is_last: bool) -> None:
        end = self._start + len(self._kept)
        total = str(end) if is_last else "*"
        stored: int | None = self._start
        if self._is_unsure:
            stored = self._stored_bytes()
            self._is_unsure = False
        # None: the answer that was lost said that the object is there. The last request has to say how large it is.
        while stored is not None and (stored < end or is_last):
            self._is_unsure = True
            view = memoryview(self._kept)[stored - self._start :]
            span = f"{stored}-{end - 1}" if view else "*"
            answer = self._ask(
                "PUT", self._session_url, {"Content-Range": f"bytes {span}/{total}"}, bytes(view), (200, 201, 308)
            )
            self._is_unsure = False
            if answer["status"] != "308":
                return
            before, stored = stored, self._checked(_stored(answer))
            if stored <= before:
                self._is_unsure = True
                raise RetriableRemoteStorageError(f"{self._what}: nothing of bytes {before} to {end - 1} was stored")

    def _stored_bytes(self) -> int | None:
        """Return how much of the object the session has; None: all of it, it is finished."""
        answer = self._ask("PUT", self._session_url, {"Content-Range": "bytes */*"}, b"", (200, 201, 308))
        return self._checked(_stored(answer)) if answer["status"] == "308" else None

    def _checked(self, stored: int) -> int:
        if not self._start <= stored <= self._start + len(self._kept):
            raise RemoteStorageError(f"{self._what}: {stored} bytes are said to be stored, and {self._start} were")
        return stored

    def _ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: bytes,
        expected: "frozenset[int] | tuple[int, ...]",
    ) -> dict[str, str]:
        """The answer's headers, in lower case, and its `status`."""
        with self._errors():
            # 308 is no redirect here.
            response = self._request(method, url, headers=dict(headers), data=data, allow_redirects=False)
            found = {name.lower(): value for name, value in response.headers.items()}
            if response.status_code not in expected:
                raise RefusedAnswer(response.status_code, found, response.content[:REFUSAL_BYTES_MAX])
            response.content  # noqa: B018  # read, so that the connection can be used again
            return {**found, "status": str(response.status_code)}


def _stored(answer: Mapping[str, str]) -> int:
    """Without a Range header nothing is stored yet."""
    matched = _STORED.fullmatch(answer.get("range", "bytes=0-").removeprefix(" "))
    return int(matched[1]) + 1 if matched is not None else 0
