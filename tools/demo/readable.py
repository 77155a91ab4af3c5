"""Which files have something to read: as select.select, which takes no descriptor above 1,023."""

import selectors
from collections.abc import Iterable
from typing import Protocol, TypeVar


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


File = TypeVar("File", bound=int | _HasFileno)


def readable(files: Iterable[File], timeout_s: float = 0.0) -> list[File]:
    """Return those of the files that can be read from, or are at their end, within that time."""
    with selectors.DefaultSelector() as selector:
        for each in files:
            selector.register(each, selectors.EVENT_READ, each)
        return [key.data for key, _ in selector.select(timeout_s)]
