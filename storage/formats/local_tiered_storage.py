"""Kafka's LocalTieredStorage: a tier of plain files, read and written in Kafka's own layout
(docs/formats.md#local-tiered-storage).

    <dir>/kafka-tiered-storage/<topic>-<partition>-<topic id>/<start offset>-<segment id>.<suffix>

Behaviour, besides that of `segment_files` and `object_store.filesystem`:
- A delete removes the segment's objects and leaves the partition's folder, as Kafka does.
- Nothing is created before the first copy: a reader writes nothing.
"""

from collections.abc import Mapping
from pathlib import Path

from storage.errors import DeletionRefusedError, RemoteStoreNotFoundError, StorageConfigError
from storage.formats.segment_files import SegmentFiles
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.config_keys import DEFAULT_PREFIX
from storage.object_store.files.store import FileSystemStore

ROOT_DIRECTORY_NAME = "kafka-tiered-storage"


class LocalTieredStorage(SegmentFiles):
    """A RemoteStorageManager over one directory.

    Args:
        config: the manager's own keys, prefix stripped: `dir` (required), `delete.enable` (true); others of
            Kafka's are ignored (`storage.plugin_keys.LOCAL_IDLE`).
        prefix: what the broker's file has before each key, for messages.

    Raises:
        StorageConfigError: `dir` is missing or empty, or `delete.enable` is not a boolean.
    """

    def __init__(self, config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> None:
        directory = config.get("dir", "").strip()
        if not directory:
            # Kafka would make a temporary directory here; a reader has nothing to gain from an empty tier.
            raise StorageConfigError(f"{prefix}dir is not set: LocalTieredStorage needs the brokers' folder")
        self._root = Path(directory).absolute() / ROOT_DIRECTORY_NAME
        self._delete_enabled = _boolean(config, "delete.enable", default=True, prefix=prefix)
        self._dir_key, self._delete_key = f"{prefix}dir", f"{prefix}delete.enable"
        super().__init__(FileSystemStore(self._root, keeps_folders=True), shown_prefix=f"{self._root}/")

    @property
    def identity(self) -> str:
        """Format and folder; see RemoteStorageManager.identity."""
        return f"local-tiered-storage {self._root}"

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove a segment's objects.

        Raises:
            DeletionRefusedError: `delete.enable` is false. Kafka's own says that it has deleted.
        """
        if not self._delete_enabled:
            raise DeletionRefusedError(f"{self._root}: nothing is deleted while {self._delete_key}=false")
        super().delete_log_segment_data(metadata)

    def make_folder(self) -> None:
        """Make the folder, as a broker does when it starts; for stand-ins of brokers. Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True)

    def ask(self) -> None:
        """Look into the folder; see RemoteStorageManager.ask. A broker makes it when it starts."""
        if not self._root.is_dir():
            raise RemoteStoreNotFoundError(
                f"{self._root}: there is no such folder; brokers make it when they start; check {self._dir_key}"
            )
        super().ask()


def _boolean(config: Mapping[str, str], key: str, *, default: bool, prefix: str) -> bool:
    text = config.get(key)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise StorageConfigError(f"{prefix}{key} is {text!r}, not true or false")
    return text.strip().lower() == "true"
