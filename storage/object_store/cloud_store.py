"""What stores in a cloud share: identity, the words for questions, errors, what is made with the first question, and
deletions.

Some stores of S3's kind have no DeleteObjects (Google's and Alibaba's answer 400 or 501), nor have all of the others'
kinds batches. What answers a request for several objects with a refusal that says nothing of rights is asked for each
object by itself, and for the rest of this store's life if that went well.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from storage.errors import (
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StorageConfigError,
)
from storage.object_store.clock import StoreClock
from storage.object_store.http.get import OpenSockets
from storage.object_store.object_store import raise_undeleted
from storage.object_store.refusals import DELETE


class Closable(Protocol):
    """An SDK's client, and the connections of our own GETs."""

    sockets: OpenSockets

    def close(self) -> None:
        """Close idle connections, and end what waits in the others."""
        ...


M = TypeVar("M", bound=Closable)


class CloudStore(ABC, Generic[M]):
    """The half of an ObjectStore that does not depend on whose it is.

    Args:
        kind: of store, as identities begin.
        where: its endpoint, for people.
        bucket: or container.
    """

    delete_keys_max: int
    """Limit for one request."""

    def __init__(self, kind: str, where: str, bucket: str) -> None:
        self.kind = kind
        self.where = where
        self.bucket = bucket
        self._made_once: M | None = None
        self._lock = threading.Lock()
        self._deletes_several = True
        self.clock = StoreClock()

    @property
    def identity(self) -> str:
        return f"{self.kind}:{self.where}/{self.bucket}"

    @abstractmethod
    def make(self) -> M:
        """Return what is made with the first question; errors are the SDK's."""

    @abstractmethod
    def translated(self, error: Exception, what: str) -> RemoteStorageError | None:
        """From an error, and the words for what was asked for, to one of ours; None for an error of another kind."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; errors are the SDK's, also when it is absent."""

    @abstractmethod
    def delete_several(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete objects with one request: what is left, each object with its error.

        Raises:
            RemoteStorageError: the request as a whole was refused, or its answer is none.
        """

    def delete_many(self, keys: Sequence[str]) -> None:
        """As ObjectStore.delete_many. A single object has a DELETE of its own."""
        each_once = list(dict.fromkeys(keys))
        failures: dict[str, RemoteStorageError] = {}
        for at in range(0, len(each_once), self.delete_keys_max):
            batch = each_once[at : at + self.delete_keys_max]
            try:
                failures.update(self._delete_batch(batch))
            except RemoteStorageError as error:
                failures.update(dict.fromkeys(batch, error))
        raise_undeleted(failures, len(each_once))

    def clock_offset_ms(self) -> int | None:
        """By the Date headers of its answers."""
        return self.clock.offset_ms()

    def warm_up(self) -> None:
        """Import the SDK and make its client: most of a second."""
        self.made()

    def close(self) -> None:
        """Close the connections that no stream uses, and end what waits in the others."""
        with self._lock:
            made, self._made_once = self._made_once, None
        if made is not None:
            made.close()

    def made(self) -> M:
        """Return what is made with the first question; raises as that would."""
        made = self._made_once
        if made is None:
            with self._lock, self.errors(f"{self.where}: making the client"):
                made = self._made_once
                if made is None:
                    made = self._made_once = self.make()
        return made

    def what(self, verb: str, key: str) -> str:
        """The words for a question, which end in its verb."""
        return f"{self.kind}://{self.bucket}/{key} at {self.where}: {verb}"

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Errors of an SDK or of the network in the block are raised as ours; those of other kinds pass."""
        try:
            yield
        except RemoteStorageError:
            raise
        except Exception as error:
            translated = self.translated(error, what)
            if translated is None:
                raise
            raise translated from error

    def _delete_batch(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        if len(keys) == 1 or not self._deletes_several:
            return self._delete_each(keys)
        try:
            return self.delete_several(keys)
        except (RetriableRemoteStorageError, RemoteAccessDeniedError, StorageConfigError):
            raise
        except RemoteStorageError:
            failures = self._delete_each(keys)
        self._deletes_several = len(failures) == len(keys)
        return failures

    def _delete_each(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        failures: dict[str, RemoteStorageError] = {}
        for number, key in enumerate(keys):
            try:
                with self.errors(self.what(DELETE, key)):
                    self.delete(key)
            except RemoteStoreNotFoundError:
                raise
            except RemoteResourceNotFoundError:
                continue
            except RetriableRemoteStorageError as error:
                # Each of the others could take as long to fail.
                return failures | dict.fromkeys(keys[number:], error)
            except RemoteStorageError as error:
                failures[key] = error
        return failures
