"""The tier's configuration on its way to executors, and the storage manager that each of them opens with it.

Rules:
1. Credentials travel inside the pickled reader only. Spark shows neither that nor what it holds: plan, event log and
   UI know the options, which hold the path of the configuration file. No secret is in a repr or a message here.
2. Files that the configuration names travel too. PEM files of key pairs are written for as long as it takes to open the
   manager, into a folder that only its user may enter: Spark ends its Python workers without any clean-up. A file of
   AWS credentials becomes the keys that it holds, one of Google's the key for its text. A file that is not on the
   driver is taken to be on the executors.
3. Folders (LocalTieredStorage's `dir`, the file system backend's `storage.root`) must be the same everywhere.
4. One manager a process and configuration: Python workers live for many tasks, and connections are kept.
"""

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storage.buffers import keep_freed_memory
from storage.config.registry import open_remote_storage_manager
from storage.errors import StorageConfigError
from storage.limited_files import UnreadableFileError, read_limited
from storage.object_store.gcs.config import CREDENTIALS_JSON_KEY, CREDENTIALS_PATH_KEY, NOT_JSON, is_json_object
from storage.object_store.s3.config import (
    ACCESS_KEY_ID_KEY,
    CREDENTIALS_FILE_KEY,
    SECRET_ACCESS_KEY_KEY,
    SESSION_TOKEN_KEY,
    credentials_file,
)
from storage.plugin_keys import KEY_RING_FILE_KEY
from storage.remote_storage_manager import RemoteStorageManager

SHIPPED_FILE_BYTES_MAX = 1024 * 1024
_FILE_KEY_END = ".file"


@dataclass(frozen=True, slots=True)
class ShippedStorage:
    """What opens the tier's storage manager anywhere. `files`: contents by the key that names the file."""

    class_name: str
    config: tuple[tuple[str, str], ...] = field(repr=False)
    files: tuple[tuple[str, bytes], ...] = field(repr=False, default=())


def ship_storage(class_name: str, config: Mapping[str, str]) -> ShippedStorage:
    """Return what executors need, with the contents of the files that `config` names.

    Raises:
        StorageConfigError: a file cannot be read, or is larger than SHIPPED_FILE_BYTES_MAX.
    """
    shipped, files = _with_key_ring(config), {}
    for key, value in dict(shipped).items():
        path = Path(value.strip())
        if not key.endswith((_FILE_KEY_END, CREDENTIALS_PATH_KEY)) or not value.strip() or not path.exists():
            continue
        if key == CREDENTIALS_FILE_KEY:
            del shipped[key]
            shipped |= _credentials(key, path)
        elif key == CREDENTIALS_PATH_KEY:
            del shipped[key]
            shipped[CREDENTIALS_JSON_KEY] = _googles(key, path)
        else:
            files[key] = _content(key, path)
    return ShippedStorage(class_name, tuple(sorted(shipped.items())), tuple(sorted(files.items())))


def open_shipped_storage(shipped: ShippedStorage) -> RemoteStorageManager:
    """The manager of this process for a configuration; opened once, shared by its threads, never closed.

    Raises:
        StorageConfigError: a value is wrong.
    """
    return _open(shipped)


@functools.lru_cache(maxsize=8)
def _open(shipped: ShippedStorage) -> RemoteStorageManager:
    keep_freed_memory()
    config = dict(shipped.config)
    if not shipped.files:
        return open_remote_storage_manager(shipped.class_name, config)
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        for number, (key, content) in enumerate(shipped.files):
            path = Path(folder, str(number))
            path.write_bytes(content)
            config[key] = str(path)
        return open_remote_storage_manager(shipped.class_name, config)


def _with_key_ring(config: Mapping[str, str]) -> dict[str, str]:
    """The key pairs themselves in place of the file that lists them, so that their files travel too."""
    ring = config.get(KEY_RING_FILE_KEY, "").strip()
    if not ring or not Path(ring).exists():
        return dict(config)
    from storage.formats.aiven.key_pairs import key_ring_keys

    others = {key: value for key, value in config.items() if key != KEY_RING_FILE_KEY}
    try:
        return {**others, **key_ring_keys(Path(ring))}
    except StorageConfigError as error:
        raise StorageConfigError(f"{KEY_RING_FILE_KEY}={ring}: {error}, and executors need it") from error


def _credentials(key: str, path: Path) -> dict[str, str]:
    found = credentials_file(path, key).content()
    keys = {ACCESS_KEY_ID_KEY: found.access_key_id, SECRET_ACCESS_KEY_KEY: found.secret_access_key}
    return keys if found.session_token is None else keys | {SESSION_TOKEN_KEY: found.session_token}


def _googles(key: str, path: Path) -> str:
    content = _content(key, path)
    if not is_json_object(content):
        raise StorageConfigError(f"{key}: {path} {NOT_JSON}")
    return content.decode()


def _content(key: str, path: Path) -> bytes:
    try:
        return read_limited(path, SHIPPED_FILE_BYTES_MAX)
    except UnreadableFileError as error:
        raise StorageConfigError(f"{key}: {path} {error}, and executors need it") from error
