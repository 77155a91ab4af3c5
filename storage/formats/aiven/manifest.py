"""The manifest of a segment: `.rsm-manifest`, JSON in UTF-8 (docs/formats.md#aiven-manifest).

- Members come in any order; unknown ones, and `remoteLogSegmentMetadata`, are passed over. Everything else is
  required, `segmentIndexes.transaction` too, which may be null; `encryption` may be absent. `version` is "1".
- A segment that the plug-in wrote in Iceberg mode has no such manifest: its data lie in Parquet files, its indexes in
  a Puffin file of the table. A Puffin file at the manifest's key, or JSON without a chunk index, is refused as that.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.errors import IcebergSegmentError
from storage.formats.aiven.checked_json import INT32_MAX, JsonObject, parse_json_object
from storage.formats.aiven.chunk_index import FixedChunkIndex, VariableChunkIndex, decode_chunk_index
from storage.model import IndexType

MANIFEST_BYTES_MAX = 16 * 1024 * 1024
"""For a manifest as it is read: the largest chunk index (10 MiB that zstd cannot shrink, 13.4 MiB as base64), and the
few KiB of all else. A gigabyte in chunks of 4 KiB has some 500 KiB; with the plug-in's advice of 4 MiB, 1.5 KiB."""

VERSION = "1"

ICEBERG_REFUSAL = (
    "what Aiven's plug-in wrote in Iceberg mode (segment.format=iceberg) has no .log object and cannot be read"
)

_PUFFIN_MAGIC = b"PFA1"
INDEX_MEMBERS: Mapping[IndexType, str] = {
    IndexType.OFFSET: "offset",
    IndexType.TIMESTAMP: "timestamp",
    IndexType.PRODUCER_SNAPSHOT: "producerSnapshot",
    IndexType.LEADER_EPOCH: "leaderEpoch",
    IndexType.TRANSACTION: "transaction",
}
"""In the order of the `.indexes` object and of the JSON."""


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """Where an index lies in the `.indexes` object, as it is stored: encrypted if the segment is."""

    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentEncryption:
    """`data_key`: key id and wrapped key, as text. `aad`: the additional data of every cipher text."""

    data_key: str = field(repr=False)
    aad: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is read of a manifest. `segment_indexes` has every type; None: the segment has no such index."""

    chunk_index: FixedChunkIndex | VariableChunkIndex
    segment_indexes: Mapping[IndexType, StoredIndex | None]
    compression: bool
    encryption: SegmentEncryption | None = None


def decode_manifest(data: bytes, name: str) -> Manifest:
    """The manifest that is the content of the object `name`.

    Raises:
        CorruptObjectError: it is not that of version 1; the message names the object and the member.
        IcebergSegmentError: the segment was written in Iceberg mode.
    """
    if data.startswith(_PUFFIN_MAGIC):
        raise IcebergSegmentError(f"{name}: an Iceberg (Puffin) file: {ICEBERG_REFUSAL}")
    document = parse_json_object(data, name)
    version = document.text("version")
    if version != VERSION:
        raise document.corrupt("version", f"is {version!r}; this reads version {VERSION!r}")
    if not document.has("chunkIndex"):
        if document.has("segmentIndexes"):
            raise document.corrupt("chunkIndex", "is missing")
        raise IcebergSegmentError(f"{name}: chunkIndex is missing: {ICEBERG_REFUSAL}")
    return Manifest(
        decode_chunk_index(document.object("chunkIndex")),
        _decode_segment_indexes(document.object("segmentIndexes")),
        document.boolean("compression"),
        _decode_encryption(document.object("encryption")) if _present(document, "encryption") else None,
    )


def _present(fields: JsonObject, member: str) -> bool:
    return fields.has(member) and not fields.is_null(member)


def _decode_segment_indexes(fields: JsonObject) -> Mapping[IndexType, StoredIndex | None]:
    indexes: dict[IndexType, StoredIndex | None] = {}
    for index_type, member in INDEX_MEMBERS.items():
        if index_type is IndexType.TRANSACTION and fields.is_null(member):
            indexes[index_type] = None
            continue
        place = fields.object(member)
        stored = StoredIndex(place.int32("position"), place.int32("size"))
        if stored.position + stored.size_bytes > INT32_MAX:
            raise fields.corrupt(member, f"ends beyond {INT32_MAX}")
        indexes[index_type] = stored
    return indexes


def _decode_encryption(fields: JsonObject) -> SegmentEncryption:
    try:
        aad = base64.b64decode(fields.text("aad"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise fields.corrupt("aad", f"is not base64: {error}") from error
    return SegmentEncryption(fields.text("dataKey"), aad)
