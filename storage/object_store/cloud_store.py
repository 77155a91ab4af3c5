"""What stores in a cloud share: identity, the words for questions, errors, and what is made with the first question."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from storage.errors import RemoteStorageError


class Closable(Protocol):
    """An SDK's client, and the connections of our own GETs."""

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

    def __init__(self, kind: str, where: str, bucket: str) -> None:
        self.kind = kind
        self.where = where
        self.bucket = bucket
        self._made_once: M | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        return f"{self.kind}:{self.where}/{self.bucket}"

    @abstractmethod
    def make(self) -> M:
        """What is made with the first question; errors are the SDK's."""

    @abstractmethod
    def translated(self, error: Exception, what: str) -> RemoteStorageError | None:
        """From an error, and the words for what was asked for, to one of ours; None for an error of another kind."""

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
        """What is made with the first question; raises as that would."""
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
