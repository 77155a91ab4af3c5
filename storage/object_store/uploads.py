"""Uploads in parts, whichever store: begin, parts in order, finish; abort when anything fails. No input or output.

A store gives its own verbs (`PartUpload`); what they have in common is here:
- A request whose trouble may pass is sent again, with back-off: a part takes the place of itself, so only the store
  can repeat it, while the caller of `put` has given its source away.
- A request whose answer was lost may have been carried out, and what is sent again is refused then: a finished upload
  is gone, and a store under a retention rule replaces no object. The object tells: if it is there, as it should be,
  the request was carried out.
- At most two parts are held at once: one that is sent, and one that is filled.
- Whatever goes wrong, also in the source, the upload is given up: nothing of it is ever an object. What cannot even be
  given up is noted on the error, since what went wrong first matters more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.object_store.retries import Wait, call_with_retries, wait_in_thread

ATTEMPTS_MAX = 5
"""For each request. The waits are 1.5 s together at most, unless the store asks for more."""

Part = bytes | bytearray

T = TypeVar("T")


class PartUpload(Protocol):
    """The upload of one object; in one thread."""

    def begin(self) -> None:
        """Ask the store for an upload."""
        ...

    def part(self, number: int, data: Part) -> None:
        """Send part `number`, from 1; again with the same data when the first attempt failed."""
        ...

    def finish(self) -> None:
        """Make the parts an object: until then nobody sees any of them."""
        ...

    def is_done(self) -> bool:
        """Return whether the object is there and has this size, and this checksum where the store has one."""
        ...

    def abort(self) -> None:
        """Drop the parts."""
        ...


@dataclass(frozen=True, slots=True)
class UploadRetries:
    """How often a request of an upload is sent, and what waits in between (seconds; true: give up)."""

    attempts_max: int = ATTEMPTS_MAX
    wait: Wait = wait_in_thread

    def call(self, request: Callable[[], T]) -> T:
        """Return what the request returns in the end.

        Raises:
            RemoteStorageError: the last attempt's.
        """
        return call_with_retries(request, None, self.wait, attempts_max=self.attempts_max)

    def settle(self, request: Callable[[], None], is_done: Callable[[], bool]) -> None:
        """As `call`, of a request that makes an object; `is_done` looks at the object."""
        is_unsure = False

        def attempt() -> None:
            nonlocal is_unsure
            try:
                request()
            except RetriableRemoteStorageError:
                is_unsure = True
                raise
            except RemoteStorageError:
                if not is_unsure or not _is_there(is_done):
                    raise

        self.call(attempt)


def upload_parts(upload: PartUpload, found: Iterable[Part], retries: UploadRetries) -> None:
    """Send all parts and finish, or leave nothing.

    Raises:
        RemoteStorageError: as the store answers; errors of the source pass through.
    """
    retries.call(upload.begin)
    try:
        for number, data in enumerate(found, 1):
            _send(upload, number, data, retries)
        retries.settle(upload.finish, upload.is_done)
    except BaseException as error:
        try:
            retries.call(upload.abort)
        except RemoteStorageError as abort_error:
            # The bucket's lifecycle rule has to remove the parts.
            error.add_note(f"the upload is left open: {abort_error}")
        raise


def _send(upload: PartUpload, number: int, data: Part, retries: UploadRetries) -> None:
    retries.call(lambda: upload.part(number, data))


def _is_there(is_done: Callable[[], bool]) -> bool:
    try:
        return is_done()
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError:
        return False
