"""All that a catalog holds, as one value: what goes into a snapshot and comes back out of it.

The parts are the catalog's own, not copies. A writer sees to it that no record is applied meanwhile
(`TopicMetadataEventLog.delivery_held`), and asks `Catalog.changes` afterwards.
"""

import struct
import sys
from dataclasses import dataclass, field
from typing import Self

from storage.metadata.partition_catalog import PartitionCatalog
from storage.metadata.segment_table import SegmentColumns
from storage.metadata.snapshot_stream import SnapshotReader, SnapshotWriter, UnreadableSnapshotError

_HEAD = struct.Struct("<qqqq")
_KEY = struct.Struct("<16sq")


@dataclass(slots=True)
class CatalogContents:
    """Partitions by topic id and number; `emptied` oldest first; `generation` is the last one given."""

    columns: SegmentColumns = field(default_factory=SegmentColumns)
    topics: dict[bytes, dict[int, PartitionCatalog]] = field(default_factory=dict)
    emptied: dict[tuple[bytes, int], None] = field(default_factory=dict)
    refused: set[tuple[bytes, int]] = field(default_factory=set)
    segment_count: int = 0
    generation: int = 0

    def partitions(self) -> list[PartitionCatalog]:
        """All partitions, also the emptied ones."""
        return [segments for topic in self.topics.values() for segments in topic.values()]

    def own_memory_bytes(self) -> int:
        """Return what it takes in memory without what each partition says of itself."""
        keyed = (self.topics, self.emptied, self.refused, *self.topics.values())
        return self.columns.memory_bytes + sum(map(sys.getsizeof, keyed))

    def write_to(self, writer: SnapshotWriter) -> None:
        """Everything, in an order that the same contents always give."""
        partitions = self.partitions()
        writer.put_numbers(_HEAD, self.generation, len(partitions), len(self.emptied), len(self.refused))
        self.columns.write_to(writer)
        for segments in partitions:
            segments.write_to(writer)
        for key in (*self.emptied, *sorted(self.refused)):
            writer.put_numbers(_KEY, *key)

    @classmethod
    def read_from(cls, reader: SnapshotReader) -> Self:
        """Return what `write_to` wrote; the reader stands behind it.

        Raises:
            UnreadableSnapshotError: it cannot be what a catalog held.
        """
        generation, partition_count, emptied_count, refused_count = reader.take_numbers(_HEAD)
        columns = SegmentColumns.read_from(reader)
        contents = cls(columns, generation=generation)
        owned = bytearray(columns.row_count)
        for _ in range(partition_count):
            segments = PartitionCatalog.read_from(reader, columns)
            key = segments.topic_id_partition
            contents.topics.setdefault(key.topic_id, {})[key.partition] = segments
            contents.segment_count += len(segments)
            for row in segments.rows():
                owned[row] = 1
        for row in columns.free_rows:
            if not 0 <= row < columns.row_count or owned[row]:
                raise UnreadableSnapshotError("a free segment that is none")
            owned[row] = 1
        if owned.count(1) != columns.row_count or contents.segment_count + len(columns.free_rows) != columns.row_count:
            raise UnreadableSnapshotError("segments without a partition, or with two")
        for _ in range(emptied_count):
            contents.emptied[reader.take_numbers(_KEY)] = None
        for _ in range(refused_count):
            contents.refused.add(reader.take_numbers(_KEY))
        return contents
