"""What stores with plain HTTP GETs share (GCS, Azure): a GET's answer as a body or a refusal, puts whole or in parts,
listings by the page, deletes in batches, and errors on the way.

A GET is one request of our own over a connection of our own (storage.object_store.http.get), whatever its answer: what
is not plain is read by http.client, and a refusal is judged by its status and the store's code for it. No GET goes
through an SDK.
"""

import http.client
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from storage.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
)
from storage.object_store import bodies
from storage.object_store.bodies import AnswerBody, BodySource, BodyStream, body_size_bytes
from storage.object_store.cloud_store import CloudStore
from storage.object_store.http.get import Answer, ConnectionPool, OpenSocket, OpenSockets, parsed
from storage.object_store.http.tokens import Token, Tokens
from storage.object_store.multipart import parts
from storage.object_store.object_store import ObjectHead
from storage.object_store.refusals import DELETE, DELETE_MANY, cause_words
from storage.object_store.uploads import PartUpload, UploadRetries, upload_parts

REFUSAL_BYTES_MAX = 64 * 1024
"""For an error's body: enough for every store's words, and received whole, so that its connection serves another."""

USER_AGENT = "Tidegate"
"""For our own GETs, for the store's logs."""

Translate = Callable[[Exception, str], RemoteStorageError | None]
"""From an error, and the words for what was asked for, to one of ours; None for an error of another kind."""


class RefusedAnswer(Exception):
    """An answer that is no success. Header names in lower case."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.headers = headers
        self.body = body


class Made(ABC):
    """What a store's first call makes: its SDK's client, and the connections of our own GETs.

    Args:
        tokens: what GETs show; None: nothing, or what does not change.
    """

    def __init__(
        self, sockets: OpenSockets, open_socket: OpenSocket, *, connections_max: int, tokens: Tokens | None
    ) -> None:
        self.pool = ConnectionPool(open_socket, idle_max=connections_max)
        self.tokens = tokens
        self.sockets = sockets

    @abstractmethod
    def request(self, key: str, start: int, end: int, token: Token | None) -> bytes:
        """A GET of a range, whole."""

    def close(self) -> None:
        """Close idle connections, and end what waits in the others."""
        self.pool.close()
        self.sockets.shut_down()


M = TypeVar("M", bound=Made)


class HttpStore(CloudStore[M]):
    """A CloudStore with such GETs, puts that are whole or in parts of one size, and deletes in batches.

    Args:
        part_bytes: how large the first part of a put is; what is smaller is put whole.
    """

    def __init__(
        self,
        kind: str,
        where: str,
        bucket: str,
        *,
        part_bytes: int,
        read_timeout_s: float,
        retries: UploadRetries | None,
    ) -> None:
        super().__init__(kind, where, bucket)
        self.retries = UploadRetries() if retries is None else retries
        self._part_bytes = part_bytes
        self._read_timeout_s = read_timeout_s

    @abstractmethod
    def put_whole(self, key: str, data: bytes) -> None:
        """One upload of an object; errors are the SDK's."""

    @abstractmethod
    def holds(self, key: str, data: bytes) -> bool:
        """Return whether the object is there and has this size, and this checksum where the store has one."""

    @abstractmethod
    def part_upload(self, key: str, what: str) -> PartUpload:
        """One in parts. `what`: the words for it."""

    @abstractmethod
    def pages(self, prefix: str) -> Iterator[Iterable[ObjectHead]]:
        """A listing, page by page; errors are the SDK's."""

    @abstractmethod
    def delete_batch(self, keys: Sequence[str]) -> Sequence[RefusedAnswer | None]:
        """Delete objects with one request: the answer to each key, in order; None: deleted.

        Raises:
            ValueError: what came is no answer to a batch. Other errors are the SDK's, of the request as a whole.
        """

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        """One upload, or one in parts when the source is as large as a part."""
        what = self.what("PUT", key)
        found = parts(source, self._part_bytes)
        first = next(found)
        if len(first) >= self._part_bytes:
            upload_parts(self.part_upload(key, what), itertools.chain((first,), found), self.retries)
            return

        def put_whole() -> None:
            with self.errors(what):
                self.put_whole(key, bytes(first))

        self.retries.settle(put_whole, lambda: self.holds(key, bytes(first)))

    def delete_several(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """A batch."""
        what = self.what(DELETE_MANY, keys[0])
        answers: Sequence[RefusedAnswer | None]
        try:
            with self.errors(what):
                answers = self.delete_batch(keys)
        except ValueError:
            # fake-gcs-server does so: it passes over parts without a Content-ID, which Google's SDK sends.
            answers = ()
        if len(answers) != len(keys):
            raise RemoteStorageError(f"{what}: {len(answers)} answers to a batch of {len(keys)}")
        failures: dict[str, RemoteStorageError] = {}
        for key, refused in zip(keys, answers, strict=True):
            error = None if refused is None else self.translated(refused, self.what(DELETE, key))
            is_store_absent = isinstance(error, RemoteStoreNotFoundError)
            if error is not None and (is_store_absent or not isinstance(error, RemoteResourceNotFoundError)):
                failures[key] = error
        return failures

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        """Page by page, each asked for when the one before has been read."""
        pages = self.pages(prefix)
        while True:
            with self.errors(self.what("LIST", prefix)):
                page = next(pages, None)
            if page is None:
                return
            yield from page

    def get(self, key: str, start: int, end: int) -> BodyStream:
        """A GET with a Range header. If its token is refused, it is sent once more with a new one."""
        if start < 0 or end <= start:
            raise ValueError(f"[{start}, {end}) is not a range")
        what = self.what("GET", key)
        with self.errors(what):
            made = self.made()
            token = None if made.tokens is None else made.tokens.current()
            try:
                return self._get(made, made.request(key, start, end, token), start, end, what)
            except RefusedAnswer as refused:
                if refused.status != 401 or made.tokens is None or token is None:
                    raise
                made.tokens.forget(token)
                renewed = made.tokens.current()
                if renewed.text == token.text:
                    raise
            return self._get(made, made.request(key, start, end, renewed), start, end, what)

    def _get(self, made: M, request: bytes, start: int, end: int, what: str) -> BodyStream:
        timeout_s = self._read_timeout_s
        answer = made.pool.get(request, timeout_s)
        try:
            return body_of(answer, start, end, what=what, timeout_s=timeout_s, translate=self.translated)
        except RefusedAnswer as refused:
            self.clock.heard(refused.headers.get("date"))
            raise


class FileBody:
    """The body of an answer that http.client reads: chunks, or a size that the head leaves open."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def receive(self, view: memoryview) -> int:
        """As BodySource.receive."""
        count = 0
        while count < len(view):
            received = self._response.readinto(view[count:])
            if not received:
                break
            count += received
        return count

    def finish(self) -> None:
        """As BodySource.finish. Its connection serves no other GET."""
        self._response.close()

    give_up = finish


def body_of(answer: Answer, start: int, end: int, *, what: str, timeout_s: float, translate: Translate) -> BodyStream:
    """The body of an answer to a GET of [start, end).

    Raises:
        RefusedAnswer: it is another answer.
        RemoteStorageError, OSError, HTTPException: as body_size_bytes, and as the connection does.
    """
    source: BodySource
    head = answer.head
    try:
        if head is not None and head.status in (200, 206):
            size_bytes = body_size_bytes(head.status, head.content_range, head.content_length, start, end, what)
            source = AnswerBody(answer, timeout_s)
        else:
            response = parsed(answer, REFUSAL_BYTES_MAX)
            if response.status not in (200, 206):
                raise _refused(response)
            content_range = response.headers.get("Content-Range")
            size_bytes = body_size_bytes(response.status, content_range, response.length, start, end, what)
            source = FileBody(response)
            answer.wait_at_most(min(bodies.SILENCE_S_MAX, timeout_s))
    except RefusedAnswer:
        raise
    except BaseException:
        answer.give_up()
        raise
    return BodyStream(source, size_bytes, what=what, translate=lambda error: translate(error, what))


def _refused(response: http.client.HTTPResponse) -> RefusedAnswer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    with response:
        return RefusedAnswer(response.status, headers, response.read(REFUSAL_BYTES_MAX))


def translated_transport(error: Exception, what: str) -> RemoteStorageError | None:
    """Our error for one of requests, urllib3, http.client or a socket; None for an error of another kind."""
    from requests import exceptions as requests
    from urllib3 import exceptions as urllib3

    # Only its name: the text of some repeats what was sent.
    message = f"{what}: {type(error).__name__}{cause_words(error)}"
    if isinstance(error, requests.ReadTimeout | urllib3.ReadTimeoutError | TimeoutError):
        return StalledTransferError(message)
    if isinstance(error, requests.RequestException | urllib3.HTTPError | http.client.HTTPException | OSError):
        return RetriableRemoteStorageError(message)
    return None
