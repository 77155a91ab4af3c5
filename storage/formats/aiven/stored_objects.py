"""What a segment of Aiven's plug-in has in the store, and what it should have (docs/formats.md#aiven).

- The manifest gives the sizes of the other two objects, custom metadata the size of all three together.
- It has to be this segment's: the copy of the metadata in it, which readers pass over, must be what the metadata
  topic says. Broker id and event time are those of the copy's beginning and are not compared.
- The plug-in refuses a manifest with a member that it does not know; indexes lie without gaps in a fixed order.
"""

from collections.abc import Iterator, Mapping, Sequence

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.formats.aiven.checked_json import JsonObject, parse_json_object
from storage.formats.aiven.custom_metadata import CustomMetadataFields
from storage.formats.aiven.manifest import Manifest
from storage.formats.aiven.object_keys import MASKED_PREFIX, ObjectSuffix, parse_object_key
from storage.formats.aiven.segment_objects import ObjectPlace
from storage.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata, uuid_to_text
from storage.object_store.object_store import ObjectStore
from storage.remote_storage_manager import ObjectContent, SegmentObject, StoredObject

_CONTENTS = {
    ObjectSuffix.LOG: ObjectContent.LOG,
    ObjectSuffix.INDEXES: ObjectContent.INDEXES,
    ObjectSuffix.MANIFEST: ObjectContent.MANIFEST,
}
_MEMBERS = frozenset(
    {"version", "chunkIndex", "segmentIndexes", "compression", "encryption", "remoteLogSegmentMetadata"}
)


def stored_sizes(store: ObjectStore, places: Sequence[ObjectPlace]) -> dict[ObjectSuffix, tuple[str, int | None]]:
    """Name and size of each of a segment's objects, from the first place that has it; None: no place has."""
    sizes: dict[ObjectSuffix, tuple[str, int | None]] = {}
    for suffix in ObjectSuffix:
        sizes[suffix] = places[0].name(suffix), None
        for place in places:
            try:
                with place.errors(suffix):
                    sizes[suffix] = place.name(suffix), store.head(place.key(suffix)).size_bytes
                break
            except RemoteResourceNotFoundError:
                continue
    return sizes


def segment_objects(
    sizes: dict[ObjectSuffix, tuple[str, int | None]], manifest: Manifest | None, fields: CustomMetadataFields
) -> tuple[SegmentObject, ...]:
    """The three objects with the sizes that a manifest, if it could be read, and custom metadata want."""
    expected: dict[ObjectSuffix, int] = {}
    if manifest is not None:
        expected[ObjectSuffix.LOG] = manifest.chunk_index.stored_file_bytes
        expected[ObjectSuffix.INDEXES] = _indexes_bytes(manifest)
        # Where another size is wrong already, the sum would be wrong once more; and a data key that was wrapped again
        # may have made the manifest longer.
        is_known = manifest.encryption is None and all(sizes[suffix][1] == expected[suffix] for suffix in expected)
        if fields.remote_size_bytes is not None and is_known:
            expected[ObjectSuffix.MANIFEST] = fields.remote_size_bytes - sum(expected.values())
    return tuple(
        SegmentObject(
            name,
            _CONTENTS[suffix],
            size_bytes,
            expected.get(suffix),
            index_types=_index_types(manifest) if suffix is ObjectSuffix.INDEXES else (),
        )
        for suffix, (name, size_bytes) in sizes.items()
    )


def manifest_problem(data: bytes, name: str, manifest: Manifest, metadata: RemoteLogSegmentMetadata) -> str | None:
    """One sentence about what is wrong with a manifest that could be decoded; None if nothing is.

    Raises:
        CorruptObjectError: the copy of the metadata in it breaks its format.
    """
    document = parse_json_object(data, name)
    if unknown := sorted(set(document.members) - _MEMBERS):
        return f"member {unknown[0]!r} is not one that the plug-in knows: it refuses the manifest"
    position = 0
    for index_type, stored in manifest.segment_indexes.items():
        if stored is None:
            continue
        if stored.position != position:
            return f"the {index_type.name} index is at {stored.position}, and the one before it ends at {position}"
        position += stored.size_bytes
    if document.has("remoteLogSegmentMetadata"):
        return _metadata_problem(document.object("remoteLogSegmentMetadata"), metadata)
    return None


def manifest_fields(manifest: Manifest) -> Mapping[str, object]:
    """Return what a manifest says, for people; of the wrapped data key only the id of the pair that wraps it."""
    chunks, encryption = manifest.chunk_index, manifest.encryption
    return {
        "chunk_bytes": chunks.original_chunk_bytes,
        "chunks": chunks.chunk_count,
        "log_bytes": chunks.original_file_bytes,
        "stored_log_bytes": chunks.stored_file_bytes,
        "compression": manifest.compression,
        "encryption": encryption is not None,
        "key_id": None if encryption is None else encryption.data_key.rpartition(":")[0],
        "index_bytes": {
            index_type.name: None if stored is None else stored.size_bytes
            for index_type, stored in manifest.segment_indexes.items()
        },
    }


def _metadata_problem(copy: JsonObject, metadata: RemoteLogSegmentMetadata) -> str | None:
    partition = metadata.topic_id_partition
    segment_id = copy.object("remoteLogSegmentId")
    topic_id_partition = segment_id.object("topicIdPartition")
    topic_partition = topic_id_partition.object("topicPartition")
    epochs = {str(epoch): offset for epoch, offset in metadata.segment_leader_epochs.items()}
    compared = (
        (segment_id, "id", uuid_to_text(metadata.segment_id.id)),
        (topic_id_partition, "topicId", uuid_to_text(partition.topic_id)),
        (topic_partition, "topic", partition.topic),
        (topic_partition, "partition", partition.partition),
        (copy, "startOffset", metadata.start_offset),
        (copy, "endOffset", metadata.end_offset),
        (copy, "maxTimestampMs", metadata.max_timestamp_ms),
        (copy, "segmentLeaderEpochs", epochs),
    )
    different = [
        f"{member} is {fields.members.get(member)!r}, the metadata has {expected!r}"
        for fields, member, expected in compared
        if fields.members.get(member) != expected
    ]
    return "; ".join(different) or None


def _indexes_bytes(manifest: Manifest) -> int:
    places = [stored for stored in manifest.segment_indexes.values() if stored is not None]
    return max((stored.position + stored.size_bytes for stored in places), default=0)


def _index_types(manifest: Manifest | None) -> tuple[IndexType, ...]:
    """Those that the segment has; a producer snapshot of no bytes is none: Kafka's have ten at least."""
    if manifest is None:
        return ()
    return tuple(
        index_type
        for index_type, stored in manifest.segment_indexes.items()
        if stored is not None and not (index_type is IndexType.PRODUCER_SNAPSHOT and stored.size_bytes == 0)
    )


def listed_objects(store: ObjectStore, prefix: str, masked: bool, topic: str | None) -> Iterator[StoredObject]:
    """Yield what the store has below the prefix; of one topic only when it is given, whatever its id."""
    for head in store.list(prefix if topic is None else f"{prefix}{topic}-"):
        name = f"{MASKED_PREFIX}{head.key[len(prefix) :]}" if masked else head.key
        segment_id = segment_of(head.key[len(prefix) :])
        if topic is None or (segment_id is not None and segment_id.topic_id_partition.topic == topic):
            yield StoredObject(name, head.size_bytes, head.modified_ms, segment_id)


def segment_of(key: str) -> RemoteLogSegmentId | None:
    """Whose object has this key, the prefix taken away; None of a key that the plug-in would not have written."""
    try:
        parsed = parse_object_key(key, "")
    except ValueError:
        return None
    return RemoteLogSegmentId(parsed.topic_id_partition, parsed.segment_id)


def read_problem(error: CorruptObjectError, name: str) -> str:
    """An error about a manifest as a sentence without the manifest's name."""
    return str(error).removeprefix(f"{name}: ")
