"""Uploads in parts, whatever the store: each call of them fails in turn, and nothing of one is ever half an object."""

from collections.abc import Iterator

import pytest

from storage.errors import (
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from storage.object_store.uploads import Part, UploadRetries, upload_parts
from tests.support.for_each import for_each

PARTS = [b"one", b"two", b"three"]
CALLS = ["begin", "part 1", "part 2", "part 3", "finish"]


class Upload:
    """Keeps parts as a store does. `fail`: what the call of that number raises, before or after it had its effect."""

    def __init__(self, fail: dict[int, RemoteStorageError] | None = None, *, late: bool = False) -> None:
        self.calls: list[str] = []
        self.object: bytes | None = None
        self.is_open = False
        self._parts: dict[int, bytes] = {}
        self._fail = fail or {}
        self._late = late

    def begin(self) -> None:
        with_effect = self._call("begin")
        self.is_open = True
        self._end(with_effect)

    def part(self, number: int, data: Part) -> None:
        with_effect = self._call(f"part {number}")
        self._parts[number] = bytes(data)
        self._end(with_effect)

    def finish(self) -> None:
        with_effect = self._call("finish")
        self.object, self.is_open = b"".join(self._parts[number] for number in sorted(self._parts)), False
        self._end(with_effect)

    def is_done(self) -> bool:
        self._end(self._call("look"))
        return self.object is not None

    def abort(self) -> None:
        with_effect = self._call("abort")
        self.is_open = False
        self._end(with_effect)

    def _call(self, name: str) -> RemoteStorageError | None:
        self.calls.append(name)
        error = self._fail.get(len(self.calls))
        if error is not None and not self._late:
            raise error
        return error

    def _end(self, error: RemoteStorageError | None) -> None:
        if error is not None:
            raise error


def retries(waits: list[float] | None = None, attempts_max: int = 3) -> UploadRetries:
    return UploadRetries(attempts_max, wait=(waits if waits is not None else []).append)


def test_parts_are_sent_in_order_and_finished() -> None:
    upload = Upload()
    upload_parts(upload, PARTS, retries())
    assert upload.calls == CALLS
    assert upload.object == b"onetwothree"


@for_each("late", [False, True])
@for_each("failing", range(1, len(CALLS) + 1))
def test_any_call_is_sent_again_when_its_trouble_may_pass(failing: int, late: bool) -> None:
    waits: list[float] = []
    upload = Upload({failing: ThrottledError("503", retry_after_s=3.0)}, late=late)
    upload_parts(upload, PARTS, retries(waits))
    assert upload.calls == [*CALLS[:failing], *CALLS[failing - 1 :]]
    assert upload.object == b"onetwothree"
    assert waits == [3.0]


@for_each("failing", range(1, len(CALLS) + 1))
def test_any_call_that_fails_for_good_leaves_no_object_and_no_upload(failing: int) -> None:
    upload = Upload({failing: RemoteAccessDeniedError("403")})
    with pytest.raises(RemoteAccessDeniedError, match="403"):
        upload_parts(upload, PARTS, retries())
    assert upload.calls == [*CALLS[:failing], *(["abort"] if failing > 1 else [])]
    assert upload.object is None
    assert not upload.is_open


class Forgetful(Upload):
    """What is finished is no upload any more, as with most stores; the answer to `finish` is lost. `is_lost`: what was
    sent is lost too."""

    def __init__(self, fail: dict[int, RemoteStorageError], *, is_lost: bool = False) -> None:
        super().__init__(fail)
        self._is_lost = is_lost

    def finish(self) -> None:
        failed = self._call("finish")
        self._end(failed)
        if not self.is_open:
            raise RemoteResourceNotFoundError("no such upload")
        self.is_open = False
        if not self._is_lost:
            self.object = b"".join(self._parts[number] for number in sorted(self._parts))
        raise RetriableRemoteStorageError("reset")


def test_what_was_finished_though_its_answer_was_lost_is_done() -> None:
    """The second answer was taken for failure, and the object deleted again or, worse, left."""
    upload = Forgetful({})
    upload_parts(upload, PARTS, retries())
    assert upload.calls == [*CALLS, "finish", "look"]
    assert upload.object == b"onetwothree"


def test_what_was_not_finished_is_no_object_whatever_was_lost() -> None:
    upload = Forgetful({}, is_lost=True)
    with pytest.raises(RemoteResourceNotFoundError, match="no such upload"):
        upload_parts(upload, PARTS, retries())
    assert upload.calls == [*CALLS, "finish", "look", "abort"]


def test_a_look_that_fails_for_now_is_tried_again_and_one_that_is_denied_is_none() -> None:
    upload = Forgetful({7: RetriableRemoteStorageError("503")})
    upload_parts(upload, PARTS, retries())
    assert upload.calls == [*CALLS, "finish", "look", "finish", "look"]
    with pytest.raises(RemoteResourceNotFoundError, match="no such upload"):
        upload_parts(Forgetful({7: RemoteAccessDeniedError("403")}), PARTS, retries())


def test_a_first_refusal_is_believed() -> None:
    upload = Upload({5: RemoteAccessDeniedError("403")})
    with pytest.raises(RemoteAccessDeniedError):
        upload_parts(upload, PARTS, retries())
    assert "look" not in upload.calls


def test_attempts_end() -> None:
    upload = Upload({number: RetriableRemoteStorageError(f"503 {number}") for number in (3, 4, 5)})
    with pytest.raises(RetriableRemoteStorageError, match="503 5"):
        upload_parts(upload, PARTS, retries(attempts_max=3))
    assert upload.calls == ["begin", "part 1", "part 2", "part 2", "part 2", "abort"]


def test_who_is_told_to_stop_waits_no_more() -> None:
    upload = Upload({2: RetriableRemoteStorageError("503")})
    with pytest.raises(RetriableRemoteStorageError):
        upload_parts(upload, PARTS, UploadRetries(3, wait=lambda _: True))
    assert upload.calls == ["begin", "part 1", "abort"]


@for_each("given", range(4))
def test_a_source_that_raises_leaves_nothing_and_is_heard(given: int) -> None:
    def source() -> Iterator[bytes]:
        yield from PARTS[:given]
        raise KeyError("the disk")

    upload = Upload()
    with pytest.raises(KeyError, match="the disk"):
        upload_parts(upload, source(), retries())
    assert upload.calls == [*CALLS[: given + 1], "abort"]
    assert upload.object is None
    assert not upload.is_open


def test_an_upload_that_cannot_be_given_up_is_noted_on_what_went_wrong_first() -> None:
    upload = Upload({2: RemoteAccessDeniedError("no parts"), 3: RemoteAccessDeniedError("no aborts")})
    with pytest.raises(RemoteAccessDeniedError, match="no parts") as caught:
        upload_parts(upload, PARTS, retries())
    assert caught.value.__notes__ == ["the upload is left open: no aborts"]
