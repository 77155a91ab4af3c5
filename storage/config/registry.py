"""From the class names in a broker's configuration to what Tidegate runs in their place.

A broker names its two KIP-405 plug-ins by Java class. Tidegate takes the same names, so that the broker's own file
configures it; names of its own begin with `tidegate.`.
"""

import enum
from collections.abc import Callable, Iterable, Mapping

from storage.errors import CorruptObjectError, StorageConfigError
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.formats.segment_files import SegmentFiles
from storage.formats.tier_folder import TierFolder
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.config_keys import DEFAULT_PREFIX
from storage.object_store.nearest import which_is_known
from storage.remote_storage_manager import RemoteStorageManager

STORAGE_MANAGER_KEY = "remote.log.storage.manager.class.name"
METADATA_MANAGER_KEY = "remote.log.metadata.manager.class.name"


def _open_aiven(config: Mapping[str, str], prefix: str) -> RemoteStorageManager:
    # Half a second of ciphers, which the other formats do without.
    from storage.formats.aiven.manager import AivenRemoteStorageManager

    return AivenRemoteStorageManager(config, prefix=prefix)


_AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
_STORAGE_MANAGERS: Mapping[str, Callable[[Mapping[str, str], str], RemoteStorageManager]] = {
    "org.apache.kafka.server.log.remote.storage.LocalTieredStorage": lambda config, prefix: LocalTieredStorage(
        config, prefix=prefix
    ),
    _AIVEN: _open_aiven,
    "tidegate.PlainObjects": lambda config, prefix: PlainObjects(config, prefix=prefix),
}


class MetadataManagerKind(enum.Enum):
    """Where segment metadata comes from; values are the class names that select it."""

    TOPIC_BASED = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    """The topic `__remote_log_metadata`: Kafka's default."""
    IN_MEMORY = "tidegate.InMemory"
    """This process only: for tests and imports."""


def open_remote_storage_manager(
    class_name: str, config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX
) -> RemoteStorageManager:
    """The storage manager for a class name, configured with its own keys; `prefix` was stripped from them, and messages
    restore it.

    Raises:
        StorageConfigError: the name is unknown, or a value in `config` is wrong.
    """
    name = class_name.strip()
    constructor = _STORAGE_MANAGERS.get(name)
    if constructor is None:
        raise _unknown_name(STORAGE_MANAGER_KEY, name, _STORAGE_MANAGERS)
    return constructor(config, prefix)


def folder_of(manager: RemoteStorageManager) -> TierFolder:
    """All that lies where this manager keeps segments, for upkeep."""
    from storage.formats.aiven.manager import AivenRemoteStorageManager

    assert isinstance(manager, SegmentFiles | AivenRemoteStorageManager), "every format has a folder"
    return manager.folder()


def stored_bytes(class_name: str, segment: RemoteLogSegmentMetadata) -> int | None:
    """Return what the segment takes in the store by its metadata: Aiven's say so with REMOTE_SIZE. None: unknown."""
    if class_name.strip() != _AIVEN:
        return None
    from storage.formats.aiven.custom_metadata import decode_custom_metadata

    try:
        return decode_custom_metadata(segment.custom_metadata).remote_size_bytes
    except CorruptObjectError:
        return None


def metadata_manager_kind(class_name: str) -> MetadataManagerKind:
    """The kind of metadata manager for a class name.

    Raises:
        StorageConfigError: the name is unknown.
    """
    name = class_name.strip()
    try:
        return MetadataManagerKind(name)
    except ValueError:
        raise _unknown_name(METADATA_MANAGER_KEY, name, (kind.value for kind in MetadataManagerKind)) from None


def _unknown_name(key: str, name: str, known_names: Iterable[str]) -> StorageConfigError:
    if not name:
        return StorageConfigError(f"{key} is not set")
    return StorageConfigError(f"{key}={name} is not a class that Tidegate knows; {which_is_known(name, known_names)}")
