"""What every RemoteLogMetadataManager does: subclass RemoteLogMetadataManagerContract and give it a `manager`.

The suite is the seam's meaning in code (storage/remote_log_metadata_manager.py). The rules of one partition have
their own cases in tests/storage/metadata/test_partition_catalog.py; here they are shown through the seam.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from storage.errors import IllegalMetadataError, MetadataNotReadyError
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from storage.remote_log_metadata_manager import RemoteLogMetadataManager
from tests.support.cases import case
from tests.support.metadata_records import COPY_FINISHED, PARTITION, moved, name_of, named_partition, started

Manager = RemoteLogMetadataManager
Call = Callable[[Manager], object]

OTHER = named_partition("orders", 1)
S0 = started("s0", 0, 100, {0: 0, 1: 20, 2: 80})
S1 = started("s1", 101, 200, {2: 101})
THREADS = 8

EVERY_METHOD: list[Call] = [
    lambda manager: manager.add_remote_log_segment_metadata(S0),
    lambda manager: manager.update_remote_log_segment_metadata(moved(S0, COPY_FINISHED)),
    lambda manager: manager.remote_log_segment_metadata(PARTITION, 0, 0),
    lambda manager: manager.highest_offset_for_epoch(PARTITION, 0),
    lambda manager: manager.list_remote_log_segments(PARTITION),
    lambda manager: manager.list_remote_log_segments(PARTITION, 0),
    lambda manager: manager.put_remote_partition_delete_metadata(partition_delete(0)),
    lambda manager: manager.next_segment_with_txn_index(PARTITION, 0, 0),
    lambda manager: manager.remote_log_size(PARTITION, 0),
]
NOTICES: list[Call] = [
    lambda manager: manager.on_partition_leadership_changes([PARTITION], []),
    lambda manager: manager.on_stop_partitions([PARTITION]),
]


def partition_delete(state: int) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(PARTITION, RemotePartitionDeleteState(state), 1_700_000_000_000, 1)


def copy(manager: Manager, *segments: RemoteLogSegmentMetadata) -> None:
    for metadata in segments:
        manager.add_remote_log_segment_metadata(metadata)
        manager.update_remote_log_segment_metadata(moved(metadata, COPY_FINISHED))


def states(manager: Manager, epoch: int | None = None) -> list[RemoteLogSegmentState]:
    return [metadata.state for metadata in manager.list_remote_log_segments(PARTITION, epoch)]


class RemoteLogMetadataManagerContract:
    """A subclass's fixture `manager` makes a manager that was told of no partition."""

    @pytest.fixture
    def ready(self, manager: Manager) -> Manager:
        manager.on_partition_leadership_changes([PARTITION], [OTHER])
        assert manager.is_ready(PARTITION)
        assert manager.is_ready(OTHER)
        return manager

    def test_a_partition_that_is_not_ready_fails_every_method(self, manager: Manager) -> None:
        manager.on_partition_leadership_changes([OTHER], [])

        assert not manager.is_ready(PARTITION)
        for number, call in enumerate(EVERY_METHOD):
            with case(number), pytest.raises(MetadataNotReadyError):
                call(manager)

    def test_a_closed_manager_fails_every_method(self, ready: Manager) -> None:
        copy(ready, S0)
        ready.close()
        ready.close()

        assert not ready.is_ready(PARTITION)
        for number, call in enumerate([*EVERY_METHOD, *NOTICES]):
            with case(number), pytest.raises(MetadataNotReadyError):
                call(ready)

    def test_a_stopped_partition_is_not_ready_and_comes_back_as_it_was(self, ready: Manager) -> None:
        copy(ready, S0, S1)

        ready.on_stop_partitions([PARTITION])
        assert not ready.is_ready(PARTITION)
        assert ready.is_ready(OTHER)

        ready.on_partition_leadership_changes([], [PARTITION])
        assert ready.is_ready(PARTITION)
        assert states(ready) == [COPY_FINISHED, COPY_FINISHED]
        assert ready.highest_offset_for_epoch(PARTITION, 2) == 200

    def test_a_caller_sees_its_own_change_at_once(self, ready: Manager) -> None:
        update = moved(S0, COPY_FINISHED, custom_metadata=b"where it is")
        ready.add_remote_log_segment_metadata(S0)
        ready.update_remote_log_segment_metadata(update)

        assert ready.remote_log_segment_metadata(PARTITION, 1, 50) == replace(
            S0,
            state=COPY_FINISHED,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
        )

    def test_a_number_that_has_no_room_in_the_topic_is_illegal(self, ready: Manager) -> None:
        with pytest.raises(IllegalMetadataError):
            ready.add_remote_log_segment_metadata(replace(S0, segment_size_bytes=2**31))
        assert states(ready) == []

    def test_only_the_last_state_of_a_partitions_deletion_forgets_it(self, ready: Manager) -> None:
        copy(ready, S0)
        for state in (0, 1):
            ready.put_remote_partition_delete_metadata(partition_delete(state))
            assert states(ready) == [COPY_FINISHED]

        ready.put_remote_partition_delete_metadata(partition_delete(2))

        assert ready.is_ready(PARTITION)
        assert states(ready) == []
        assert ready.highest_offset_for_epoch(PARTITION, 0) is None

    def test_the_next_segment_with_transactions(self, ready: Manager) -> None:
        segments = (started("t0", 0, 9, {0: 0}, txn_index_empty=True), started("t1", 10, 19, {0: 10}))
        copy(ready, *segments)

        assert name_of(ready.next_segment_with_txn_index(PARTITION, 0, 3), *segments) == 1
        assert ready.next_segment_with_txn_index(PARTITION, 1, 3) is None

    def test_the_size_of_an_epoch(self, ready: Manager) -> None:
        copy(ready, S0, S1)

        assert [ready.remote_log_size(PARTITION, epoch) for epoch in (0, 2, 5)] == [1_000, 2_000, 0]

    def test_many_threads_record_and_ask_at_once(self, ready: Manager) -> None:
        def work(number: int) -> None:
            for step in range(20):
                start = (number * 20 + step) * 10
                metadata = started(f"{number}-{step}", start, start + 9)
                copy(ready, metadata)
                found = ready.remote_log_segment_metadata(PARTITION, 0, start)
                assert found is not None
                assert found.segment_id == metadata.segment_id

        with ThreadPoolExecutor(THREADS) as pool:
            for future in [pool.submit(work, number) for number in range(THREADS)]:
                future.result()

        assert len(list(ready.list_remote_log_segments(PARTITION))) == THREADS * 20
