"""What every metadata manager has: partitions that are not ready, records that cannot be held, and who waits."""

import threading

import pytest

from storage.errors import IllegalMetadataError, MetadataNotReadyError
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode_for_caller
from storage.metadata.in_memory import InMemoryRemoteLogMetadataManager
from storage.metadata.manager import MetadataReadiness
from tests.support.metadata_records import PARTITION, finish, named_partition, started

OTHER = named_partition("orders", 1)


@pytest.fixture
def readiness() -> MetadataReadiness:
    return MetadataReadiness()


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


def test_a_partition_is_caught_up_when_it_was_read_to_the_end_at_assignment(readiness: MetadataReadiness) -> None:
    assert not readiness.is_caught_up(3)
    assert not readiness.advance(3, 0, 10)
    assert not readiness.advance(3, 9, 10)
    assert readiness.advance(3, 10, 10)
    assert readiness.is_caught_up(3)
    assert not readiness.is_caught_up(4)


def test_a_partition_taken_away_begins_anew(readiness: MetadataReadiness) -> None:
    readiness.advance(0, 5, 5)
    readiness.remove(0)

    assert not readiness.is_caught_up(0)
    assert readiness.position(0) == 0
    assert readiness.advance(0, 7, 7)


def test_waiting_ends_when_the_record_was_applied(readiness: MetadataReadiness) -> None:
    outcome: list[bool] = []
    waiter = threading.Thread(target=lambda: outcome.append(readiness.wait_until_past(0, 7, timeout_s=200)))
    waiter.start()
    for position in range(1, 9):
        readiness.advance(0, position, 0)
    waiter.join(100)

    assert outcome == [True]


def test_waiting_ends_in_vain_after_its_time_or_by_closing(readiness: MetadataReadiness) -> None:
    assert not readiness.wait_until_past(0, 7, timeout_s=0)

    outcome: list[bool] = []
    waiter = threading.Thread(target=lambda: outcome.append(readiness.wait_until_past(0, 7, timeout_s=200)))
    waiter.start()
    readiness.close()
    waiter.join(100)

    assert outcome == [False]
    assert not readiness.is_caught_up(0)
