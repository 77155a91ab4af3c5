"""Uploads in parts, whichever store: begin, parts in order, finish; abort when anything fails. No input or output.

A store gives its own verbs (`PartUpload`); what they have in common is here:
- A request whose trouble may pass is sent again, with back-off: a part takes the place of itself, so only the store
  can repeat it, while whoever calls `put` has given its source away.
- At most two parts are held at once: one that is sent, and one that is filled.
- Whatever goes wrong, also in the source, the upload is given up: nothing of it is ever an object. What cannot even be
  given up is noted on the error, since what went wrong first matters more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage.errors import RemoteStorageError
from storage.object_store.retries import Wait, call_with_retries, wait_in_thread

ATTEMPTS_MAX = 5
"""Of each request. The waits are 1.5 s together at most, unless the store asks for more."""

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

    def abort(self) -> None:
        """Drop the parts."""
        ...


@dataclass(frozen=True, slots=True)
class UploadRetries:
    """How often a request of an upload is sent, and what waits in between (seconds; true: give up)."""

    attempts_max: int = ATTEMPTS_MAX
    wait: Wait = wait_in_thread

    def call(self, request: Callable[[], T]) -> T:
        """What the request returns in the end.

        Raises:
            RemoteStorageError: the last attempt's.
        """
        return call_with_retries(request, None, self.wait, attempts_max=self.attempts_max)


def upload_parts(upload: PartUpload, found: Iterable[Part], retries: UploadRetries) -> None:
    """Send all parts and finish, or leave nothing.

    Raises:
        RemoteStorageError: as the store answers; errors of the source pass through.
    """
    retries.call(upload.begin)
    try:
        for number, data in enumerate(found, 1):
            _send(upload, number, data, retries)
        retries.call(upload.finish)
    except BaseException as error:
        try:
            retries.call(upload.abort)
        except RemoteStorageError as abort_error:
            # The bucket's lifecycle rule has to remove the parts.
            error.add_note(f"the upload is left open: {abort_error}")
        raise


def _send(upload: PartUpload, number: int, data: Part, retries: UploadRetries) -> None:
    retries.call(lambda: upload.part(number, data))
