"""What a segment of Aiven's plug-in has in the store, and what it should have (docs/formats.md#aiven).

- The manifest gives the sizes of the other two objects, custom metadata the size of all three together.
- It has to be this segment's: the copy of the metadata in it, which readers pass over, must be what the metadata topic
  says. Broker id and event time are those of the copy's beginning and are not compared.
- The plug-in refuses a manifest with a member that it does not know; indexes lie without gaps in a fixed order.
"""

from collections.abc import Iterator, Sequence

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.formats.aiven.custom_metadata import CustomMetadataFields
from storage.formats.aiven.json_fields import JsonObject, parse_json_object
from storage.formats.aiven.manifest import Manifest
from storage.formats.aiven.object_keys import ObjectSuffix, parse_object_key
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
        # Where another size is wrong already, the sum would be wrong once more.
        if fields.remote_size_bytes is not None and all(sizes[suffix][1] == expected[suffix] for suffix in expected):
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
    """What the store has below the prefix; of one topic only when it is given, whatever its id."""
    for head in store.list(prefix if topic is None else f"{prefix}{topic}-"):
        name = f"<prefix>/{head.key[len(prefix) :]}" if masked else head.key
        try:
            parsed = parse_object_key(head.key, prefix)
        except ValueError:
            if topic is None:
                yield StoredObject(name, head.size_bytes, head.modified_ms, None)
            continue
        if topic is None or parsed.topic_id_partition.topic == topic:
            segment_id = RemoteLogSegmentId(parsed.topic_id_partition, parsed.segment_id)
            yield StoredObject(name, head.size_bytes, head.modified_ms, segment_id)


def read_problem(error: CorruptObjectError, name: str) -> str:
    """An error about a manifest as a sentence without the manifest's name."""
    return str(error).removeprefix(f"{name}: ")
