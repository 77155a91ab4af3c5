"""The frozen tier of vectors/aiven-tier: a real broker's objects and metadata, and what that broker answered over them.

    recorded = Recorded("plain-0")
    recorded.segments, recorded.lineage

`broken_up` knows raw log bytes, nothing of the code under test.
A test that uses any of this is skipped where the vectors are absent.
"""

import functools
import gzip
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.metadata.serde import decode
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, uuid_from_text
from tests.support.vectors import vector

NAMES = ("plain-0", "plain-1", "mixed-0", "txn-0", "epochs-0", "trimmed-0")


class Recorded:
    """One partition: what the broker said of it, and the catalog and lineage that Tidegate makes of that."""

    def __init__(self, name: str) -> None:
        topic_name, _, number = name.rpartition("-")
        topic = next(topic for topic in recorded_answers()["topics"] if topic["topic"] == topic_name)
        self.name = name
        self.said = topic["partitions"][int(number)]
        self.key = TopicIdPartition(uuid_from_text(topic["topic_id"]), int(number), topic_name)
        self.log_start: int = self.said["log_start"]
        self.local_log_start: int = self.said["local_log_start"]
        self.high_watermark: int = self.said["high_watermark"]
        self.catalog = recorded_catalog()
        self.epoch_answers = {
            answer["requested"]: (answer["epoch"], answer["end_offset"])
            for answer in self.said["offset_for_leader_epoch"]
        }
        asked = self.catalog.epochs(self.key.topic_id, self.key.partition)
        self.lineage = LeaderEpochLineage(
            self.said["leader_epoch"], {epoch: self.epoch_answers[epoch] for epoch in asked}
        )

    @property
    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """By start offset."""
        found = self.catalog.list_segments(self.key.topic_id, self.key.partition)
        return sorted(found, key=lambda metadata: metadata.start_offset)

    def is_in_tier(self, offset: int) -> bool:
        """Return whether the broker has the offset, and only in the tier."""
        return self.log_start <= offset < self.local_log_start

    def truth(self) -> Iterator[Any]:
        """Every data record in the tier, as an ordinary consumer got it through the broker."""
        with gzip.open(vector("aiven-tier", "truth", f"{self.name}.jsonl.gz"), "rt") as lines:
            for line in lines:
                record = json.loads(line)
                if self.is_in_tier(record["o"]):
                    yield record


@functools.cache
def recorded_answers() -> Any:
    return json.loads(vector("aiven-tier", "expected.json").read_text())


@functools.cache
def recorded_catalog() -> Catalog:
    catalog = Catalog()
    for line in vector("aiven-tier", "rlmm.jsonl").read_text().splitlines():
        catalog.apply(decode(bytes.fromhex(json.loads(line)["value"])), initialized=False)
    return catalog


# --- the tier ---


def storage_config() -> dict[str, str]:
    """Return what the broker's file had for its plug-in, without the broker's prefix."""
    keys = vector("aiven-tier", "keys")
    return {
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage",
        "storage.root": str(vector("aiven-tier", "bucket")),
        "key.prefix": "tiered/",
        "chunk.size": "65536",
        "compression.enabled": "true",
        "compression.heuristic.enabled": "false",
        "encryption.enabled": "true",
        "encryption.key.pair.id": "key1",
        "encryption.key.pairs": "key1",
        "encryption.key.pairs.key1.public.key.file": str(keys / "key1-public.pem"),
        "encryption.key.pairs.key1.private.key.file": str(keys / "key1-private.pem"),
        "custom.metadata.fields.include": "REMOTE_SIZE,OBJECT_KEY",
    }


# --- record bytes ---


class RawBatch(NamedTuple):
    """A whole batch among record bytes, by its header."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    data: bytes


def broken_up(records: bytes) -> tuple[list[RawBatch], int]:
    """The whole batches, and how many bytes of a cut one follow."""
    batches = []
    position = 0
    while position + 12 <= len(records):
        base_offset, length = struct.unpack_from(">qi", records, position)
        end = position + 12 + length
        if end > len(records):
            break
        leader_epoch, last_offset_delta = struct.unpack_from(">i7xi", records, position + 12)
        batches.append(RawBatch(base_offset, base_offset + last_offset_delta, leader_epoch, records[position:end]))
        position = end
    return batches, len(records) - position
