"""A segment's files into an object store, as they are."""

from collections.abc import Mapping
from pathlib import Path

from storage.object_store.local_file import LocalFile
from storage.object_store.object_store import ObjectStore, delete_present
from storage.object_store.upload_rate import UploadRate


def put_segment_files(
    store: ObjectStore, sources: Mapping[str, Path | bytes | None], rate: UploadRate | None = None
) -> None:
    """Put each object, in the order given; a source that is None has no object, and what a former copy left is deleted.

    Args:
        sources: by key. The log comes last: it implies its indexes.

    Raises:
        RemoteStorageError: as the store answers; a repeat overwrites what is there.
    """
    delete_present(store, [key for key, source in sources.items() if source is None])
    for key, source in sources.items():
        if source is not None:
            content = LocalFile(source) if isinstance(source, Path) else source
            if rate is not None:
                store.put(key, rate.paced((content,) if isinstance(content, bytes) else content))
            else:
                store.put(key, content)
