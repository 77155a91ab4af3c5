"""Plain objects: a segment's files in any object store (docs/formats.md#plain-objects).

    <key.prefix><topic>-<partition>-<topic id>/<start offset>-<segment id>.<suffix>

Behaviour, besides that of `segment_files`:
- A folder that LocalTieredStorage wrote is such a store as soon as something serves it as a bucket.
- The prefix is put in front as it is: no separator is added.
- Absent objects have to be answered as such: in S3 that takes the right to list the bucket.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from storage.errors import StorageConfigError
from storage.formats.segment_files import OBJECT_SUFFIXES, SegmentFiles
from storage.object_store.config_keys import (
    DEFAULT_PREFIX,
    UPLOAD_RATE_KEY,
    UPLOAD_RATE_MAX,
    UPLOAD_RATE_MIN,
    StoreKeys,
)
from storage.object_store.nearest import nearest
from storage.object_store.object_store import ObjectStore
from storage.object_store.registry import open_object_store
from storage.plugin_keys import PLAIN, acting

KEY_PREFIX_KEY: Final = "key.prefix"

KEY_BYTES_MAX = 1024
"""S3's limit for a key, in UTF-8; Google's and Azure's are the same."""

# The longest name: topic 249, partition 10, topic id 22, offset 20, segment id 22, the longest suffix, 5 separators.
_NAME_BYTES_MAX = 249 + 10 + 22 + 20 + 22 + max(map(len, OBJECT_SUFFIXES)) + 5


class PlainObjects(SegmentFiles):
    """A RemoteStorageManager over any object store.

    Args:
        config: the manager's own keys, prefix stripped: those of the object store, `key.prefix`, and Aiven's
            `upload.rate.limit.bytes.per.second`.
        store: in place of the one that `config` names.
        prefix: what the broker's file has before each key, for messages.

    Raises:
        StorageConfigError: a key is unknown, missing or wrong.
    """

    def __init__(
        self, config: Mapping[str, str], *, store: ObjectStore | None = None, prefix: str = DEFAULT_PREFIX
    ) -> None:
        _check_keys(config, prefix)
        key_prefix = config.get(KEY_PREFIX_KEY, "")
        if len(key_prefix.encode()) > KEY_BYTES_MAX - _NAME_BYTES_MAX:
            limit = f"longer than {KEY_BYTES_MAX - _NAME_BYTES_MAX} bytes: keys may have {KEY_BYTES_MAX} in all"
            raise StorageConfigError(f"{prefix}{KEY_PREFIX_KEY} is {limit}")
        if store is None:
            store = open_object_store(config, prefix=prefix)
        rate = StoreKeys(config, prefix).integer(UPLOAD_RATE_KEY, UPLOAD_RATE_MIN, UPLOAD_RATE_MAX)
        super().__init__(store, prefix=key_prefix, upload_bytes_per_s=rate)

    @property
    def identity(self) -> str:
        """Format, store and prefix; see RemoteStorageManager.identity."""
        return f"plain-objects {self.store.identity} {self._prefix}"


def _check_keys(config: Mapping[str, str], prefix: str) -> None:
    unknown: Sequence[str] = sorted(set(config) - PLAIN.keys())
    if not unknown:
        return
    named = []
    for key in unknown:
        near = nearest(key, acting(PLAIN))
        hint = "" if near is None else f"; the nearest is {near}"
        named.append(f"{prefix}{key} is not a key of tidegate.PlainObjects{hint}")
    raise StorageConfigError("; ".join(named))
