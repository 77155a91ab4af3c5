import pytest

from storage.errors import IllegalMetadataError, MetadataNotReadyError
from storage.metadata.catalog import Catalog
from storage.metadata.in_memory import InMemoryRemoteLogMetadataManager
from storage.writing.metadata_records import encode_for_caller
from tests.support.metadata_records import PARTITION, finish, named_partition, started

OTHER = named_partition("orders", 1)


def test_a_partition_that_the_catalog_refused_is_not_ready() -> None:
    catalog = Catalog(segments_max=1)
    finish(catalog, started("s", 0, 9), started("o", 0, 9, partition=OTHER))
    manager = InMemoryRemoteLogMetadataManager(catalog)
    manager.follow_all()

    assert manager.is_ready(PARTITION)
    assert not manager.is_ready(OTHER)
    with pytest.raises(MetadataNotReadyError, match="orders-1"):
        manager.remote_log_segment_metadata(OTHER, 0, 0)


def test_what_the_topic_could_not_hold_is_the_callers_fault() -> None:
    with pytest.raises(IllegalMetadataError):
        encode_for_caller(started("s", 0, 2**63))
