"""What is particular to the in-memory manager; the rest is tests/contract/remote_log_metadata_manager.py."""

from storage.metadata.catalog import Catalog
from storage.metadata.in_memory import InMemoryRemoteLogMetadataManager
from tests.support.metadata_records import COPY_FINISHED, PARTITION, moved, started

SEGMENT = started("s", 0, 9)


def test_every_partition_is_ready_after_follow_all() -> None:
    manager = InMemoryRemoteLogMetadataManager()
    assert not manager.is_ready(PARTITION)
    manager.follow_all()

    manager.add_remote_log_segment_metadata(SEGMENT)
    manager.update_remote_log_segment_metadata(moved(SEGMENT, COPY_FINISHED))

    assert manager.remote_log_segment_metadata(PARTITION, 0, 5) is not None


def test_it_uses_the_catalog_it_is_given() -> None:
    catalog = Catalog()
    manager = InMemoryRemoteLogMetadataManager(catalog)
    manager.follow_all()
    manager.add_remote_log_segment_metadata(SEGMENT)

    assert manager.catalog is catalog
    assert catalog.segment_count == 1
