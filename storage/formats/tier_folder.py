"""What lies below a format's prefix in its store, ours or not: for upkeep, which looks at single objects.

Objects go by the names that messages and listings show (`StoredObject.name`), so that a prefix which is not to be seen
(Aiven's `key.prefix.mask`) stays out of reports and plans. No name leads out of the prefix.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage.errors import RemoteResourceNotFoundError, RemoteStorageError, RemoteStoreNotFoundError
from storage.model import RemoteLogSegmentId
from storage.object_store.object_store import BeginsUploads, KeepsUploads, ObjectStore, PendingUpload
from storage.remote_storage_manager import StoredObject

TRIAL_NAME = "tidegate-check-tries-to-write"


@dataclass(frozen=True, slots=True)
class StaleUpload:
    """An unfinished upload, by the name of the object that it would become. `handle`: what the store calls it; empty of
    a file of our own making that a crash left, whose name tells no object. `segment_id`: None where nobody can tell.
    """

    name: str
    handle: str
    started_ms: int
    segment_id: RemoteLogSegmentId | None


class TierFolder:
    """Thread-safe, as its store is.

    Args:
        prefix: in front of every key.
        shown: what names have in its place.
        segment_of: whose object has this key, the prefix taken away.
    """

    def __init__(
        self, store: ObjectStore, prefix: str, shown: str, segment_of: Callable[[str], RemoteLogSegmentId | None]
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._shown = shown
        self._segment_of = segment_of

    def look(self, name: str) -> StoredObject | None:
        """An object as it is now; None if there is none of this name.

        Raises:
            RemoteStorageError: as the store answers, or the name is of another place.
        """
        try:
            head = self._store.head(self._key(name))
        except RemoteStoreNotFoundError:
            raise
        except RemoteResourceNotFoundError:
            return None
        return StoredObject(name, head.size_bytes, head.modified_ms, self._segment_of(head.key[len(self._prefix) :]))

    @property
    def trial_name(self) -> str:
        """An object that no segment has, to try with whether the store may be written to."""
        return f"{self._shown}{TRIAL_NAME}"

    def words(self, error: RemoteStorageError) -> str:
        """Return what an error says, with names in the place of keys."""
        return str(error).replace(self._prefix, self._shown) if self._prefix else str(error)

    def put(self, name: str, content: bytes) -> None:
        """Create or replace an object.

        Raises:
            RemoteStorageError: as the store answers.
        """
        self._store.put(self._key(name), content)

    def begin_upload(self, name: str) -> list[StaleUpload]:
        """Begin an upload in parts, if the store has such; RemoteStorageError as it answers."""
        if not isinstance(self._store, BeginsUploads):
            return []
        begun = self._store.begin_upload(self._key(name))
        return [StaleUpload(name, begun.handle, begun.started_ms, None)]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; what is absent already is no error.

        Raises:
            RemoteStorageError: some are left; `undeleted` has each with its reason, by name.
        """
        try:
            self._store.delete_many([self._key(name) for name in names])
        except RemoteStorageError as error:
            error.undeleted = {self._name(key): why for key, why in error.undeleted.items()}
            raise

    def uploads(self) -> Iterator[StaleUpload]:
        """Every unfinished upload below the prefix; none of a store that drops them itself."""
        if not isinstance(self._store, KeepsUploads):
            return
        for upload in self._store.list_uploads(self._prefix):
            if upload.key is None:
                yield StaleUpload(self._name(upload.handle), "", upload.started_ms, None)
            else:
                segment_id = self._segment_of(upload.key[len(self._prefix) :])
                yield StaleUpload(self._name(upload.key), upload.handle, upload.started_ms, segment_id)

    def abort(self, upload: StaleUpload) -> None:
        """Drop an unfinished upload; one that is gone already is no error."""
        if isinstance(self._store, KeepsUploads):
            key = self._key(upload.name)
            named, handle = (key, upload.handle) if upload.handle else (None, key)
            self._store.abort_upload(PendingUpload(named, handle, upload.started_ms))

    def _key(self, name: str) -> str:
        if not name.startswith(self._shown):
            raise RemoteStorageError(f"{name}: not below {self._shown or 'the prefix'}")
        return self._prefix + name[len(self._shown) :]

    def _name(self, key: str) -> str:
        return self._shown + key.removeprefix(self._prefix)
