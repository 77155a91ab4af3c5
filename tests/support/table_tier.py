"""A tier in a folder with a dump of its metadata: what `tidegate.scan` reads without a broker.

tier = TableTier(tmp_path)
tier.add(filled_segment(0))
tier.scan(where="offset >= 5").to_table()
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.metadata.encoding import encode
from storage.metadata.reading import MetadataEvent
from table.history.scan import Scan, scan
from tests.support.segments import SyntheticSegment, publish, topic_partition
from tidegate.commands.metadata import record_line, records_of

if TYPE_CHECKING:
    from storage.model import RemoteLogSegmentMetadata

LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


class TableTier:
    """Segments of topics in LocalTieredStorage's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dump = folder / "metadata.jsonl"
        self.segments: list[RemoteLogSegmentMetadata] = []

    @property
    def config(self) -> dict[str, str]:
        return {
            "upstream.bootstrap.servers": "127.0.0.1:1",
            "remote.log.storage.manager.class.name": LOCAL,
            "rsm.config.dir": str(self.folder),
        }

    def add(self, *segments: SyntheticSegment, topic: str = "orders", partition: int = 0) -> None:
        """Put segments into the folder and the dump."""
        self.segments += [publish(self.folder, topic_partition(topic, partition), segment) for segment in segments]
        with self.dump.open("w", encoding="utf-8") as file:
            for segment in self.segments:
                for record in records_of(segment):
                    line = record_line(MetadataEvent(0, -1, segment.event_timestamp_ms, None, encode(record)))
                    file.write(json.dumps(line) + "\n")

    def scan(self, topic: Any = "orders", **options: Any) -> Scan:
        """As `tidegate.scan`, from the dump."""
        return scan(self.config, topic, catalog=self.dump, **options)
