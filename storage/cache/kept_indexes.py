"""Indexes in the disk cache, as blocks of their segment with numbers that no log reaches (design §8).

So they share the blocks' budget, eviction, checksums and encryption, survive a restart, and go with their segment. What
is read back was whole and right when it was written: its checksum says that it still is.
"""

import enum
import itertools
from collections.abc import Callable
from typing import TypeVar

from storage.cache.block_files import DiskBlockKey
from storage.cache.blocks import Block
from storage.cache.disk_level import DiskLevel
from storage.model import RemoteLogSegmentMetadata

V = TypeVar("V")

FIRST_NUMBER = 10**17
"""Of a block. A file's name has room for it, also in the eyes of earlier versions, who let it be evicted."""


class IndexPart(enum.IntEnum):
    """What is kept of a segment. The values are in names of files and stay as they are."""

    OFFSET = 0
    TIMESTAMP = 1
    TRANSACTION = 2
    REBUILT_OFFSET = 3


class KeptIndexes:
    """Owned by the trio thread.

    Args:
        disk: None: nothing is kept.
    """

    def __init__(self, disk: DiskLevel | None) -> None:
        self._disk = disk
        self._readers = itertools.count()
        """Of an index each read is one by itself: who comes back for it shows that it is wanted again."""

    async def read(
        self, segment: RemoteLogSegmentMetadata, part: IndexPart, parse: Callable[[bytes | bytearray], V]
    ) -> tuple[V, int] | None:
        """The index, parsed in a worker thread, and its size in bytes; None if it is not kept."""
        key = self._key(segment, part)
        if key is None or self._disk is None:
            return None
        index = await self._disk.read_parsed(key, (part, next(self._readers)), parse)
        return None if index is None else (index, key.size_bytes)

    def keep(self, segment: RemoteLogSegmentMetadata, part: IndexPart, data: bytes | bytearray) -> None:
        """Have an index written, in place of what is there. Nobody waits for it, and it may be left."""
        if self._disk is None or not data:
            return
        if (former := self._key(segment, part)) is not None:
            self._disk.drop(former)
        ids = segment.topic_id_partition.topic_id, segment.segment_id.id
        key = DiskBlockKey(*ids, len(data), FIRST_NUMBER + part, len(data))
        self._disk.write_soon(key, Block(memoryview(data)), (part, next(self._readers)))

    def _key(self, segment: RemoteLogSegmentMetadata, part: IndexPart) -> DiskBlockKey | None:
        return None if self._disk is None else self._disk.find(segment.segment_id.id, FIRST_NUMBER + part)
