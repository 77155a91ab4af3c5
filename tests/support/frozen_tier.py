"""The frozen tier of vectors/aiven-tier: a real broker's objects and metadata, and what that broker answered over them.

    storage = open_frozen_tier(nursery, block_bytes=65536)
    recorded = Recorded("plain-0")
    records = await storage.reader.read(recorded.key, 0, max_bytes=1000, minimum_one_batch=True,
                                        lineage=recorded.lineage)

`broken_up` and `decoded` know raw log bytes and an independent client's decoder, nothing of the code under test.
A test that uses any of this is skipped where the vectors are absent.
"""

import functools
import gzip
import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import trio
from aiokafka.record.memory_records import MemoryRecords

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.fetch.messages import FetchRequest
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.metadata.catalog import Catalog
from storage.metadata.partition_catalog import LeaderEpochLineage
from storage.metadata.serde import decode
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, uuid_from_text
from storage.object_store.object_store import ObjectStore
from tests.support.tier_world import ask, fetch_of
from tests.support.vectors import vector
from tidegate.tier_storage import TierStorage, TierStorageSettings, open_tier_storage

MIB = 1024 * 1024
NAMES = ("plain-0", "plain-1", "mixed-0", "txn-0", "epochs-0", "trimmed-0")
FETCH_VERSION = 17
FETCH_MAX_BYTES = 50 * MIB


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
        self.last_stable_offset: int = self.said["last_stable_offset"]
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

    def fetches(self, *, isolation: int | None = None) -> list[dict[str, Any]]:
        """The recorded Fetches whose answers hold records of the tier."""
        return [
            fetch
            for fetch in self.said["fetch"]
            if self.is_in_tier(fetch["offset"]) and isolation in (None, fetch["iso"])
        ]

    def is_in_tier(self, offset: int) -> bool:
        """Whether the broker has the offset, and only in the tier."""
        return self.log_start <= offset < self.local_log_start

    def may_have_aborts(self, offset: int) -> bool:
        """Whether a segment from the one that holds the offset on may have a transaction index."""
        return any(segment.end_offset >= offset and not segment.txn_index_empty for segment in self.segments)

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
    """What the broker's file had for its plug-in, without the broker's prefix."""
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


def open_frozen_tier(
    nursery: trio.Nursery,
    *,
    block_bytes: int = MIB,
    memory_bytes_max: int = 256 * MIB,
    readahead_stream_bytes_max: int = 128 * MIB,
    store: ObjectStore | None = None,
    meters: Meters | None = None,
) -> TierStorage:
    """The application's reading side over the frozen tier. The defaults are those of the configuration.

    Args:
        store: in place of the one that the configuration names.
        meters: of a registry that the caller looks into.
    """
    return open_tier_storage(
        TierStorageSettings(
            block_bytes=block_bytes,
            memory_bytes_max=memory_bytes_max,
            readahead_stream_bytes_max=readahead_stream_bytes_max,
            readahead_total_bytes_max=4 * readahead_stream_bytes_max,
            inflight_bytes_max=512 * MIB,
            indexes_bytes_max=64 * MIB,
            gets_max=32,
        ),
        AivenRemoteStorageManager(storage_config(), store=store),
        recorded_catalog(),
        nursery=nursery,
        limiter=trio.CapacityLimiter(32),
        meters=Meters(Registry()) if meters is None else meters,
    )


# --- requests ---


def fetch_request(
    wants: Sequence[tuple[TopicIdPartition, int]], *, isolation: int, max_bytes: int, partition_max_bytes: int
) -> FetchRequest:
    """A recorded request as the codec gives it, for these partitions from these offsets on."""
    asked = [replace(ask(partition, offset, max_bytes=partition_max_bytes), topic=None) for partition, offset in wants]
    return fetch_of(
        asked,
        api_version=FETCH_VERSION,
        max_wait_ms=2000,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_epoch=-1,
    )


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


def decoded(batch: RawBatch) -> list[dict[str, Any]]:
    """The data records of a batch in the form of the vectors' truth; aiokafka decodes."""
    opened = MemoryRecords(batch.data).next_batch()
    assert opened.validate_crc()
    if opened.is_control_batch:
        return []
    return [
        {
            "o": record.offset,
            "ts": record.timestamp,
            "k": None if record.key is None else bytes(record.key).hex(),
            "v": None if record.value is None else hashlib.sha256(record.value).hexdigest(),
            "h": [[name, None if value is None else bytes(value).hex()] for name, value in record.headers],
            "e": batch.leader_epoch,
        }
        for record in opened
    ]
