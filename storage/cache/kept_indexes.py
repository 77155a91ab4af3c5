"""Indexes of segments in the disk cache."""

import enum
import itertools
from collections.abc import Callable
from typing import TypeVar

from storage.cache.block_file import DiskBlockKey
from storage.cache.disk_level import DiskLevel
from storage.log.block import Block
from storage.model import RemoteLogSegmentMetadata

FIRST_NUMBER = 10**17
"""Number of an index as a block on disk. A file's name has room for it, and earlier versions let it be evicted."""

V = TypeVar("V")

Parse = Callable[[bytes | bytearray, RemoteLogSegmentMetadata], V]
"""An index from its bytes, in a worker thread. Raises CorruptObjectError."""


class IndexPart(enum.IntEnum):
    """What is kept of a segment on disk. The values are in names of files and stay as they are."""

    OFFSET = 0
    TIMESTAMP = 1
    TRANSACTION = 2
    REBUILT_OFFSET = 3
    PRODUCERS = 4


class KeptIndexes:
    """Indexes in the disk cache, as blocks of their segment with numbers that no log reaches: so they share the blocks'
    budget, eviction, checksums and encryption, survive a restart, and go with their segment.

    Args:
        disk: None: nothing is kept.
    """

    def __init__(self, disk: DiskLevel | None) -> None:
        self._disk = disk
        self._readers = itertools.count()
        """Each read of an index is a reader of its own: a second read shows that the index is wanted again."""

    async def read(self, segment: RemoteLogSegmentMetadata, part: IndexPart, parse: Parse[V]) -> tuple[V, int] | None:
        """The index, parsed in a worker thread, and its size in bytes; None if it is not kept."""
        key = self._key(segment, part)
        if key is None or self._disk is None:
            return None
        index = await self._disk.read_parsed(key, (part, next(self._readers)), lambda data: parse(data, segment))
        return None if index is None else (index, key.size_bytes)

    def keep(self, segment: RemoteLogSegmentMetadata, part: IndexPart, data: bytes | bytearray) -> None:
        """Write an index soon, in place of what is there. Nobody waits for it, and it may be left."""
        if self._disk is None or not data:
            return
        self.drop(segment, part)
        ids = segment.topic_id_partition.topic_id, segment.segment_id.id
        key = DiskBlockKey(*ids, len(data), FIRST_NUMBER + part, len(data))
        self._disk.write_soon(key, Block(memoryview(data)), (part, next(self._readers)))

    def drop(self, segment: RemoteLogSegmentMetadata, part: IndexPart) -> None:
        """Keep it no longer."""
        if self._disk is not None and (former := self._key(segment, part)) is not None:
            self._disk.drop(former)

    def _key(self, segment: RemoteLogSegmentMetadata, part: IndexPart) -> DiskBlockKey | None:
        return None if self._disk is None else self._disk.find(segment.segment_id.id, FIRST_NUMBER + part)
