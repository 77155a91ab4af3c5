"""From `storage.backend.class` of a broker's configuration to the object store that runs in its place.

The names are those of Aiven's plug-in, so that the broker's own file configures Tidegate.
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

from storage.errors import StorageConfigError
from storage.object_store.config_keys import DEFAULT_PREFIX, StoreKeys
from storage.object_store.files.store import FileSystemStore
from storage.object_store.http import tls
from storage.object_store.nearest import which_is_known
from storage.object_store.object_store import ObjectStore

BACKEND_CLASS_KEY = "storage.backend.class"
ROOT_KEY = "storage.root"
OVERWRITE_KEY = "storage.overwrite.enabled"

_PACKAGE = "io.aiven.kafka.tieredstorage.storage."

# Backends that later versions reach. Refused by name, so that nobody searches a correct configuration for a typo.
_STORES_TO_COME: Mapping[str, str] = {f"{_PACKAGE}oci.OciStorage": "Oracle's object storage"}


def open_object_store(config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> ObjectStore:
    """The object store that a storage manager's keys name; `prefix` was stripped from them, and messages restore it.

    Nothing is sent yet: only the keys are judged.

    Raises:
        StorageConfigError: the class is missing, unknown or not supported by this version, or a value is wrong.
    """
    name = config.get(BACKEND_CLASS_KEY, "").strip()
    if not name:
        raise StorageConfigError(f"{prefix}{BACKEND_CLASS_KEY} is not set")
    if name in _STORES_TO_COME:
        raise StorageConfigError(
            f"{prefix}{BACKEND_CLASS_KEY}={name} names {_STORES_TO_COME[name]}, which this version does not read"
        )
    opener = _STORES.get(name)
    if opener is None:
        known = which_is_known(name, [*_STORES, *_STORES_TO_COME])
        raise StorageConfigError(f"{prefix}{BACKEND_CLASS_KEY}={name} is not a class that Tidegate knows; {known}")
    tls.is_native = config.get(tls.NATIVE_KEY) != "false"
    return opener(config, prefix)


def _open_s3(config: Mapping[str, str], prefix: str) -> ObjectStore:
    # A tier is in one of these three, and `import tidegate` knows none.
    from storage.object_store.s3.config import s3_settings
    from storage.object_store.s3.store import S3Store

    return S3Store(s3_settings(config, prefix=prefix))


def _open_gcs(config: Mapping[str, str], prefix: str) -> ObjectStore:
    from storage.object_store.gcs.config import gcs_settings
    from storage.object_store.gcs.store import GcsStore

    settings = gcs_settings(config, prefix=prefix)
    _need_extra("google.cloud.storage", "gcs", prefix)
    return GcsStore(settings)


def _open_azure(config: Mapping[str, str], prefix: str) -> ObjectStore:
    from storage.object_store.azure.config import azure_settings
    from storage.object_store.azure.store import AzureStore

    settings = azure_settings(config, prefix=prefix)
    _need_extra("azure.storage.blob", "azure", prefix)
    return AzureStore(settings)


def _need_extra(package: str, extra: str, prefix: str) -> None:
    """Refuse a store whose SDK is not installed: it is not for everybody, so it comes with an extra."""
    try:
        is_there = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        words = f"needs the package {package}, which is not installed: pip install 'tidegate[{extra}]'"
        raise StorageConfigError(f"{prefix}{BACKEND_CLASS_KEY} {words}")


def _open_file_system(config: Mapping[str, str], prefix: str) -> ObjectStore:
    text = config.get(ROOT_KEY, "").strip()
    if not text:
        raise StorageConfigError(f"{prefix}{ROOT_KEY} is not set")
    root = Path(text)
    if not root.is_dir():
        # The plug-in refuses it as well. Made here, it would hide that a file system is not mounted.
        raise StorageConfigError(f"{prefix}{ROOT_KEY}={text} is not a directory")
    # The plug-in has false as its default and replaces files all the same; who says false means it.
    overwrites = StoreKeys(config, prefix).boolean(OVERWRITE_KEY) is not False
    return FileSystemStore(root, overwrites=overwrites)


_STORES: Mapping[str, Callable[[Mapping[str, str], str], ObjectStore]] = {
    f"{_PACKAGE}azure.AzureBlobStorage": _open_azure,
    f"{_PACKAGE}filesystem.FileSystemStorage": _open_file_system,
    f"{_PACKAGE}gcs.GcsStorage": _open_gcs,
    f"{_PACKAGE}s3.S3Storage": _open_s3,
}
