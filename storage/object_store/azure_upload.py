"""A blob in blocks (Azure Storage, "Put Block" and "Put Block List")."""

import base64
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from storage.object_store.uploads import Part


class AzureUpload:
    """A PartUpload. `blob`: the SDK's client of it; `errors`: translates its errors.

    Blocks are nobody's until their list is put, and sending a block again replaces it.
    """

    def __init__(self, blob: Any, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self._blob = blob
        self._errors = errors
        self._names: dict[int, str] = {}

    def begin(self) -> None:
        """Nothing: Azure knows no upload before its first block."""

    def part(self, number: int, data: Part) -> None:
        """Put Block. All names of one blob must have the same length."""
        name = base64.b64encode(f"{number:08}".encode()).decode()
        with self._errors():
            self._blob.stage_block(name, bytes(data), length=len(data))
        self._names[number] = name

    def finish(self) -> None:
        """Put Block List."""
        with self._errors():
            self._blob.commit_block_list(list(self._names.values()))

    def abort(self) -> None:
        """Nothing: no request drops blocks that were never committed; Azure does after a week."""
