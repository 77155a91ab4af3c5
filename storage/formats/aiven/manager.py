"""Aiven's tiered-storage plug-in behind RemoteStorageManager (docs/formats.md#aiven).

- Opening a segment is one GET of its manifest; the data key is unwrapped then, once for the segment.
- The manifest has to be this segment's: its file size is the one that the metadata log gives.
- Custom metadata may place the objects elsewhere than the configuration does: `segment_objects` tries both.
- Copies go where the configuration says; a delete takes the objects of both places.
"""

import threading
from collections.abc import Iterator, Mapping

from storage.errors import (
    CorruptObjectError,
    IcebergSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    StorageConfigError,
)
from storage.formats.aiven.cipher import ChunkCipher
from storage.formats.aiven.config import aiven_config
from storage.formats.aiven.custom_metadata import CustomMetadataFields, decode_custom_metadata
from storage.formats.aiven.key_pairs import ACTIVE_ID_KEY, DEFAULT_PREFIX
from storage.formats.aiven.manifest import ICEBERG_REFUSAL, MANIFEST_BYTES_MAX, Manifest, decode_manifest
from storage.formats.aiven.object_keys import MASKED_PREFIX, ObjectSuffix, main_path
from storage.formats.aiven.opened_segment import AivenSegment
from storage.formats.aiven.rewrap import Rewrap, RewrapResult
from storage.formats.aiven.segment_objects import ObjectPlace, SegmentObjects
from storage.formats.aiven.stored_objects import (
    listed_objects,
    manifest_fields,
    manifest_problem,
    read_problem,
    segment_objects,
    segment_of,
    stored_sizes,
)
from storage.formats.aiven.writer import AivenWriter, delete_segment
from storage.formats.tier_folder import TierFolder
from storage.model import CustomMetadata, IndexType, LogSegmentData, RemoteLogSegmentMetadata
from storage.object_store.object_store import ObjectStore, ask_store
from storage.object_store.registry import open_object_store
from storage.object_store.upload_rate import UploadRate
from storage.remote_storage_manager import SegmentInspection, StoredObject


class AivenRemoteStorageManager:
    """A RemoteStorageManager over any object store.

    Args:
        config: the plug-in's own keys, prefix stripped.
        store: in place of the one that `config` names.
        prefix: what the broker's file has before each key, for messages.

    Raises:
        StorageConfigError: a key is missing or wrong.
    """

    def __init__(
        self, config: Mapping[str, str], *, store: ObjectStore | None = None, prefix: str = DEFAULT_PREFIX
    ) -> None:
        self._prefix = prefix
        self._config = aiven_config(config, prefix=prefix)
        self._store = open_object_store(config, prefix=prefix) if store is None else store
        self._closed = threading.Event()
        bytes_per_s = self._config.writing.upload_bytes_per_s
        self._rate = None if bytes_per_s is None else UploadRate(bytes_per_s, wait=self._closed.wait)

    @property
    def identity(self) -> str:
        """Format, store and prefix; see RemoteStorageManager.identity."""
        return f"aiven-v1 {self._store.identity} {self._config.key_prefix}"

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> AivenSegment:
        """Fetch the manifest, and what reads the segment by it; see RemoteStorageManager.open_log_segment.

        Raises:
            RemoteStorageError: besides, the segment is encrypted and its key pair is not configured, or a chunk is
                larger than can be decoded.
        """
        objects = SegmentObjects(self._store, self._places(metadata, decode_custom_metadata(metadata.custom_metadata)))
        try:
            data, name = objects.get_whole(ObjectSuffix.MANIFEST, MANIFEST_BYTES_MAX)
        except RemoteResourceNotFoundError as error:
            if not self._config.writes_iceberg or isinstance(error, RemoteStoreNotFoundError):
                raise
            raise IcebergSegmentError(f"{error}: {ICEBERG_REFUSAL}") from error
        manifest = decode_manifest(data, name)
        return self._open(objects, manifest, name, metadata)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        """A range of a segment's log, both ends inclusive; see RemoteStorageManager.fetch_log_segment."""
        if start_position < 0 or (end_position is not None and end_position < start_position):
            raise ValueError(f"{start_position} to {end_position} is not a range of positions")
        segment = self.open_log_segment(metadata)
        end = segment.size_bytes if end_position is None else min(end_position + 1, segment.size_bytes)
        if start_position >= end:
            return b""
        stream = segment.open_stream(start_position, end)
        try:
            return bytes(stream.read(end - start_position))
        finally:
            stream.close()

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """One whole index; see RemoteStorageManager.fetch_index."""
        return self.open_log_segment(metadata).fetch_index(index_type)

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        """Three HEADs and a GET of the manifest; see RemoteStorageManager.inspect_segment."""
        fields, problem, manifest, opened = CustomMetadataFields(), None, None, None
        try:
            fields = decode_custom_metadata(metadata.custom_metadata)
        except CorruptObjectError as error:
            problem = str(error)
        places = self._places(metadata, fields)
        sizes = stored_sizes(self._store, places)
        objects = SegmentObjects(self._store, places)
        try:
            data, name = objects.get_whole(ObjectSuffix.MANIFEST, MANIFEST_BYTES_MAX)
            try:
                manifest = decode_manifest(data, name)
                problem = problem or manifest_problem(data, name, manifest, metadata)
                opened = self._open(objects, manifest, name, metadata) if problem is None else None
            except CorruptObjectError as error:
                problem = problem or read_problem(error, name)
        except RemoteResourceNotFoundError:
            sizes[ObjectSuffix.MANIFEST] = sizes[ObjectSuffix.MANIFEST][0], None
        except CorruptObjectError as error:
            problem = problem or str(error)  # it is empty, or larger than any manifest
        shown = {} if manifest is None else manifest_fields(manifest)
        return SegmentInspection(segment_objects(sizes, manifest, fields), opened, problem, shown)

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        """All objects below the prefix; see RemoteStorageManager.list_objects."""
        return listed_objects(self._store, self._config.key_prefix, self._config.key_prefix_mask, topic)

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> CustomMetadata | None:
        """Upload log, indexes and manifest; see RemoteStorageManager.copy_log_segment_data.

        Raises:
            StorageConfigError: `chunk.size` is missing, the custom metadata would be longer than Kafka takes, or the
                format is Iceberg's.
        """
        if self._config.writes_iceberg:
            raise StorageConfigError(f"{self._prefix}segment.format=iceberg: only brokers write it; set kafka")
        prefix, masked = self._config.key_prefix, self._config.key_prefix_mask
        place = ObjectPlace(prefix, main_path(metadata), masked)
        writing = self._config.writing
        key_ring = self._config.keys() if writing.encryption_enabled else None
        writer = AivenWriter(store=self._store, config=writing, key_ring=key_ring, rate=self._rate)
        sources = {
            IndexType.OFFSET: data.offset_index,
            IndexType.TIMESTAMP: data.time_index,
            IndexType.PRODUCER_SNAPSHOT: data.producer_snapshot_index,
            IndexType.LEADER_EPOCH: data.leader_epoch_index,
            IndexType.TRANSACTION: data.transaction_index,
        }
        indexes = {index_type: source for index_type, source in sources.items() if source is not None}
        return writer.write(place, metadata, data.log_segment, indexes)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the three objects; see RemoteStorageManager.delete_log_segment_data."""
        fields = decode_custom_metadata(metadata.custom_metadata)
        delete_segment(self._store, self._places(metadata, fields))

    def rewrap(self, *, writes: bool, after: str = "") -> Iterator[RewrapResult]:
        """Put the data keys of all manifests below the prefix under the active key pair; see Rewrap.run.

        Raises:
            StorageConfigError: no key pair is active.
        """
        key_ring = self._config.keys()
        if key_ring is None or key_ring.active_key_id is None:
            raise StorageConfigError(f"{self._prefix}{ACTIVE_ID_KEY} is not set: it names the pair to wrap by")
        rewrap = Rewrap(store=self._store, prefix=self._config.key_prefix, key_ring=key_ring, wait=self._closed.wait)
        return rewrap.run(writes=writes, after=after)

    def folder(self) -> TierFolder:
        """All below the prefix, for upkeep."""
        prefix = self._config.key_prefix
        return TierFolder(self._store, prefix, MASKED_PREFIX if self._config.key_prefix_mask else prefix, segment_of)

    @property
    def has_manifests(self) -> bool:
        return True

    def clock_offset_ms(self) -> int | None:
        """See RemoteStorageManager.clock_offset_ms."""
        return self._store.clock_offset_ms()

    def warm_up(self) -> None:
        """Warm up the store."""
        self._store.warm_up()

    def ask(self) -> None:
        """One GET; see RemoteStorageManager.ask."""
        ask_store(self._store, self._config.key_prefix)

    def close(self) -> None:
        """Close the store, and end what waits for its turn to upload."""
        self._closed.set()
        self._store.close()

    def _open(
        self, objects: SegmentObjects, manifest: Manifest, name: str, metadata: RemoteLogSegmentMetadata
    ) -> AivenSegment:
        file_bytes = manifest.chunk_index.original_file_bytes
        if file_bytes != metadata.segment_size_bytes:
            raise CorruptObjectError(
                f"{name}: chunkIndex.originalFileSize is {file_bytes}, and segment {metadata.segment_id} "
                f"has {metadata.segment_size_bytes} bytes"
            )
        return AivenSegment(objects, manifest, self._cipher(manifest, name))

    def _places(self, metadata: RemoteLogSegmentMetadata, fields: CustomMetadataFields) -> list[ObjectPlace]:
        """Return where the segment's objects may be: as custom metadata say, then as the configuration does."""
        prefix, masked = self._config.key_prefix, self._config.key_prefix_mask
        path = main_path(metadata)
        configured = ObjectPlace(prefix, path, masked)
        recorded = ObjectPlace(
            prefix if fields.object_prefix is None else fields.object_prefix,
            path if fields.object_key is None else fields.object_key,
            masked,
        )
        same = recorded.key(ObjectSuffix.LOG) == configured.key(ObjectSuffix.LOG)
        return [configured] if same else [recorded, configured]

    def _cipher(self, manifest: Manifest, name: str) -> ChunkCipher | None:
        encryption = manifest.encryption
        if encryption is None:
            return None
        key_ring = self._config.keys()
        if key_ring is None:
            raise RemoteStorageError(
                f"{name}: the segment is encrypted, and no key pair is configured: see encryption.enabled and "
                "encryption.key.pairs"
            )
        try:
            return ChunkCipher(key_ring.unwrap(encryption.data_key), encryption.aad)
        except RemoteStorageError as error:
            raise type(error)(f"{name}: {error}") from error
