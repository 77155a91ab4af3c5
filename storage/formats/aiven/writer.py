"""A segment's three objects into a store as Aiven's plug-in writes them, and out of it (docs/formats.md#aiven-uploads).

`.log`, then `.indexes`, then the manifest: a manifest means that the segment is complete. So a manifest that a former
copy under this id left is looked for and deleted first, and after a failure all three as far as can be. What a copy
that was killed left is no segment; the next copy has another id, for which nothing has to be deleted.

What is held of a segment, whatever its size: a chunk, plain and stored, an index, and two parts of an upload.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from protocol.record_batches import COMPRESSION_MASK, HEADER_BYTES, check_crc, read_header
from protocol.wire.errors import ProtocolError
from storage.errors import RemoteStorageError, StorageConfigError
from storage.formats.aiven.chunk_index import FixedChunkIndex, VariableChunkIndex
from storage.formats.aiven.config import WritingConfig
from storage.formats.aiven.custom_metadata import CustomMetadataFields
from storage.formats.aiven.encoding import (
    ChunkEncryption,
    LogEncoder,
    encode_custom_metadata,
    encode_indexes,
    encode_manifest,
    fixed_chunk_index,
)
from storage.formats.aiven.key_pairs import DEFAULT_PREFIX, KeyRing
from storage.formats.aiven.manifest import INDEX_MEMBERS, Manifest, SegmentEncryption, StoredIndex
from storage.formats.aiven.object_keys import ObjectSuffix
from storage.formats.aiven.opened_segment import CHUNK_BYTES_MAX, INDEX_BYTES_MAX
from storage.formats.aiven.segment_objects import ObjectPlace
from storage.model import CustomMetadata, IndexType, RemoteLogSegmentMetadata
from storage.object_store.local_file import LocalFile
from storage.object_store.object_store import ObjectStore, delete_present
from storage.object_store.upload_rate import UploadRate

Source = Path | bytes
"""A local file, or its content."""

CUSTOM_METADATA_BYTES_MAX = 128
"""Kafka's default of `remote.log.metadata.custom.metadata.max.bytes`: the broker refuses a copy that returned more,
and copies nothing any more (KIP-405, "Custom metadata size limit")."""

FIRST_BATCH_BYTES_MAX = 128 * 1024 * 1024
"""For the batch that the heuristic looks at, which is read whole for its checksum. A broker takes 1 MiB by default."""


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenWriter:
    """Writes segments. Thread-safe, but one segment's copies go one after another.

    `key_ring` is None where new segments are not encrypted. `txn_index_empty_written`: whether the manifest's copy of
    the metadata says so, as it does on a Kafka 4.3 broker and does not on 3.8.
    """

    store: ObjectStore
    config: WritingConfig
    key_ring: KeyRing | None = None
    rate: UploadRate | None = None
    custom_metadata_bytes_max: int = CUSTOM_METADATA_BYTES_MAX
    txn_index_empty_written: bool = True

    def write(
        self, place: ObjectPlace, metadata: RemoteLogSegmentMetadata, log: Source, indexes: Mapping[IndexType, Source]
    ) -> CustomMetadata | None:
        """Upload a segment and give the custom metadata to be published with it.

        Raises:
            StorageConfigError: `chunk.size` is missing or too large, or the custom metadata are.
            RemoteStorageError: the log is not of the size that its metadata says, a file cannot be read, or as the
                store answers. There is no manifest then, unless one could not be deleted, which a note says.
        """
        self._check_chunk_bytes()
        self._custom_metadata(place, 0)  # too long with the shortest number: fail before anything is sent
        with place.errors(ObjectSuffix.MANIFEST):
            delete_present(self.store, [place.key(ObjectSuffix.MANIFEST)])
        try:
            return self._upload(place, metadata, log, indexes)
        except BaseException as error:
            try:
                delete_segment(self.store, [place])
            except RemoteStorageError as delete_error:
                error.add_note(f"and what was uploaded is still there: {delete_error}")
            raise

    def _upload(
        self, place: ObjectPlace, metadata: RemoteLogSegmentMetadata, log: Source, indexes: Mapping[IndexType, Source]
    ) -> CustomMetadata | None:
        compression = self.config.compression_enabled and (
            not self.config.compression_heuristic or _is_worth_compressing(log, metadata)
        )
        encryption, segment_encryption = None, None
        if self.key_ring is not None:
            encryption = ChunkEncryption.new()
            segment_encryption = SegmentEncryption(self.key_ring.wrap(encryption.data_key), encryption.aad)
        chunk_index = self._put_log(place, metadata, log, compression=compression, encryption=encryption)
        places: dict[IndexType, StoredIndex | None] = {}
        contents = ((index_type, _content(indexes.get(index_type))) for index_type in INDEX_MEMBERS)
        self._put(place, ObjectSuffix.INDEXES, encode_indexes(contents, encryption, places))
        manifest = encode_manifest(
            Manifest(chunk_index, places, compression, segment_encryption),
            metadata,
            txn_index_empty=metadata.txn_index_empty if self.txn_index_empty_written else None,
        )
        indexes_bytes = sum(stored.size_bytes for stored in places.values() if stored is not None)
        remote_size_bytes = chunk_index.stored_file_bytes + indexes_bytes + len(manifest)
        custom_metadata = self._custom_metadata(place, remote_size_bytes)
        with place.errors(ObjectSuffix.MANIFEST):
            self.store.put(place.key(ObjectSuffix.MANIFEST), manifest)
        return custom_metadata

    def _put_log(
        self,
        place: ObjectPlace,
        metadata: RemoteLogSegmentMetadata,
        log: Source,
        *,
        compression: bool,
        encryption: ChunkEncryption | None,
    ) -> FixedChunkIndex | VariableChunkIndex:
        file_bytes, chunk_bytes = metadata.segment_size_bytes, self._chunk_bytes
        if not compression and encryption is None:
            # As it is, so that a store may send the file itself, at once if it is small enough for that.
            source = LocalFile(log) if isinstance(log, Path) else log
            found_bytes = source.size_bytes() if isinstance(source, LocalFile) else len(source)
            if found_bytes != file_bytes:
                raise RemoteStorageError(
                    f"{metadata.segment_id}: the local log has {found_bytes} bytes, its metadata says {file_bytes}"
                )
            self._put(place, ObjectSuffix.LOG, source)
            return fixed_chunk_index(file_bytes, chunk_bytes, 0)
        encoder = LogEncoder(file_bytes, chunk_bytes, compression=compression, encryption=encryption)
        self._put(place, ObjectSuffix.LOG, encoder.encode(_pieces(log, chunk_bytes)))
        return encoder.chunk_index()

    def _put(self, place: ObjectPlace, suffix: ObjectSuffix, source: bytes | Iterable[bytes]) -> None:
        if self.rate is not None:
            source = self.rate.paced((source,) if isinstance(source, bytes) else source)
        with place.errors(suffix):
            self.store.put(place.key(suffix), source)

    @property
    def _chunk_bytes(self) -> int:
        if self.config.chunk_bytes is None:
            raise StorageConfigError(f"{DEFAULT_PREFIX}chunk.size is not set: writing needs it; 4194304 is a good size")
        return self.config.chunk_bytes

    def _check_chunk_bytes(self) -> None:
        chunk_bytes = self._chunk_bytes
        if chunk_bytes > CHUNK_BYTES_MAX and (self.config.compression_enabled or self.key_ring is not None):
            # Each is held whole, twice; nor would we read them.
            words = f"chunks that are compressed or encrypted may have {CHUNK_BYTES_MAX} bytes"
            raise StorageConfigError(f"{DEFAULT_PREFIX}chunk.size={chunk_bytes} is too large: {words}")

    def _custom_metadata(self, place: ObjectPlace, remote_size_bytes: int) -> CustomMetadata | None:
        """As they are published; StorageConfigError if the broker would refuse them."""
        included = self.config.custom_metadata_fields
        fields = CustomMetadataFields(
            remote_size_bytes=remote_size_bytes if "REMOTE_SIZE" in included else None,
            object_prefix=place.prefix if "OBJECT_PREFIX" in included else None,
            object_key=place.path if "OBJECT_KEY" in included else None,
        )
        encoded = encode_custom_metadata(fields)
        if encoded is not None and len(encoded) > self.custom_metadata_bytes_max:
            raise StorageConfigError(
                f"{place.name(ObjectSuffix.MANIFEST)}: {DEFAULT_PREFIX}custom.metadata.fields.include="
                f"{','.join(included)} makes custom metadata of {len(encoded)} bytes, and Kafka takes "
                f"{self.custom_metadata_bytes_max} (remote.log.metadata.custom.metadata.max.bytes)"
            )
        return encoded


def delete_segment(store: ObjectStore, places: Sequence[ObjectPlace]) -> None:
    """Delete all objects of a segment, wherever they may be; the manifests first, so that what is left of a deletion
    that was cut short is no segment.

    Raises:
        RemoteStorageError: some are still there; `undeleted` has them by name.
    """
    for suffixes in ((ObjectSuffix.MANIFEST,), (ObjectSuffix.LOG, ObjectSuffix.INDEXES)):
        with ExitStack() as stack:
            for place in places:
                for suffix in suffixes:
                    stack.enter_context(place.errors(suffix))
            store.delete_many([place.key(suffix) for place in places for suffix in suffixes])


def _is_worth_compressing(log: Source, metadata: RemoteLogSegmentMetadata) -> bool:
    """Return whether the first batch is not compressed: then its producer compresses none of them. No if there is
    none."""
    try:
        head = _first_bytes(log, HEADER_BYTES)
        size_bytes = read_header(head, 0).size_bytes
        if size_bytes > FIRST_BATCH_BYTES_MAX:
            raise ProtocolError(f"a batch of {size_bytes} bytes")
        batch = _first_bytes(log, size_bytes)
        if not check_crc([batch]):
            raise ProtocolError("its checksum does not hold")
        return not read_header(batch, 0).attributes & COMPRESSION_MASK
    except ProtocolError as error:
        _log.warning("first_batch_not_sound", segment=str(metadata.segment_id), reason=str(error))
        return False


def _first_bytes(source: Source, size_bytes: int) -> bytes:
    if isinstance(source, bytes):
        return source[:size_bytes]
    return next(LocalFile(source).pieces(size_bytes), b"")


def _pieces(source: Source, piece_bytes: int) -> Iterator[bytes]:
    if isinstance(source, Path):
        yield from LocalFile(source).pieces(piece_bytes)
    else:
        for start in range(0, len(source), piece_bytes):
            yield source[start : start + piece_bytes]


def _content(source: Source | None) -> bytes | None:
    """An index, whole; RemoteStorageError if it is larger than any that can be read again."""
    if not isinstance(source, Path):
        return source
    size_bytes = LocalFile(source).size_bytes()
    if size_bytes > INDEX_BYTES_MAX:
        raise RemoteStorageError(f"the local file {source} has {size_bytes} bytes; an index has {INDEX_BYTES_MAX}")
    return b"".join(LocalFile(source))
