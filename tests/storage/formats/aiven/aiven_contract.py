"""The contract of RemoteStorageManager as the plug-in's format keeps it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import RemoteResourceNotFoundError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.object_keys import main_path
from storage.model import IndexType, uuid_to_text
from storage.object_store.files.store import FileSystemStore
from storage.remote_storage_manager import RemoteStorageManager
from tests.contract.remote_storage_manager import (
    PARTITION,
    SEGMENT,
    THREADS,
    Copy,
    OpenManager,
    RemoteStorageManagerContract,
    assert_readable,
)
from tests.support.aiven_writer import make_key_pair
from tests.support.segments import filled_segment, metadata_of

METADATA = metadata_of(PARTITION, SEGMENT)
SEGMENT_ID = uuid_to_text(METADATA.segment_id.id)
PREFIX = "tier/"
PATH = main_path(METADATA)
CHUNK_BYTES = 1000


class AivenContract(RemoteStorageManagerContract):
    compression = False
    encryption = False

    @pytest.fixture
    def open_manager(self, tmp_path: Path) -> OpenManager:
        (tmp_path / "tier").mkdir()
        return self.opener(tmp_path / "tier", tmp_path / "keys")

    @pytest.fixture
    def open_elsewhere(self, tmp_path: Path) -> OpenManager:
        return self.opener(tmp_path / "elsewhere", tmp_path / "keys")

    def opener(self, root: Path, keys: Path) -> OpenManager:
        config = {
            "key.prefix": PREFIX,
            "chunk.size": str(CHUNK_BYTES),
            "compression.enabled": str(self.compression).lower(),
            "custom.metadata.fields.include": "REMOTE_SIZE,OBJECT_PREFIX",
            **(make_key_pair(keys, "key1") if self.encryption else {}),
        }
        return lambda: AivenRemoteStorageManager(config, store=FileSystemStore(root))

    def test_copies_and_fetches_of_many_threads_do_not_disturb_each_other(
        self, manager: RemoteStorageManager, copy: Copy
    ) -> None:
        # Copies of one segment at once would mix their data keys; Kafka gives each attempt an id of its own.
        def copy_and_read(number: int) -> None:
            segment = filled_segment(1000 * number, batch_count=5)
            assert_readable(manager, copy(segment, local_name=f"thread-{number}"), segment)

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(copy_and_read, range(THREADS)))

    def test_transaction_index_and_producer_snapshot_may_be_absent(
        self, manager: RemoteStorageManager, copy: Copy
    ) -> None:
        # The format has no word for an absent producer snapshot: the manifest requires it, and so it is an empty one.
        metadata = copy(SEGMENT, with_producer_snapshot=False)
        with pytest.raises(RemoteResourceNotFoundError):
            manager.fetch_index(metadata, IndexType.TRANSACTION)
        assert manager.fetch_index(metadata, IndexType.PRODUCER_SNAPSHOT) == b""
        assert manager.fetch_index(metadata, IndexType.TIMESTAMP) == SEGMENT.time_index
