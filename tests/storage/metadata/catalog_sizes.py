"""What a catalog of many segments costs: bodies of tests whose sizes are in test_partition_catalog.py, all and long."""

import gc
import tracemalloc
from dataclasses import replace
from typing import Any, SupportsIndex

from storage.metadata.catalog import Catalog
from storage.metadata.epoch_state import BLOCK_ROWS
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
    Uuid,
)
from tests.support.metadata_records import (
    COPY_FINISHED,
    DELETE_FINISHED,
    DELETE_STARTED,
    PARTITION,
    finish,
    named_partition,
    started,
)

PARTITIONS = 200


CUSTOM_METADATA_BYTES = 80
"""As long as the Aiven plugin's, with an object key."""


def a_segment_takes_at_most_400_bytes(segments: int) -> None:
    """For 200 partitions, two epochs each, with custom metadata, all containers included. Tracing makes this slow."""
    catalog = Catalog()
    partitions = [named_partition("orders", number) for number in range(PARTITIONS)]
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(segments):
            _copy_one(catalog, partitions, number)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert catalog.segment_count == segments
    assert (after - before) / segments <= 400


def _copy_one(catalog: Catalog, partitions: list[TopicIdPartition], number: int, epoch_offsets: int = 50_000) -> None:
    segment_id = RemoteLogSegmentId(partitions[number % len(partitions)], Uuid(number.to_bytes(16, "big")))
    start = number // len(partitions) * 1_000
    epochs = {start // epoch_offsets: start, 99_999: start + 500}
    catalog.apply(RemoteLogSegmentMetadata(segment_id, start, start + 999, 7, 1, 7, 2**30, epochs), initialized=True)
    custom_metadata = CustomMetadata(b"x" * CUSTOM_METADATA_BYTES)
    catalog.apply(RemoteLogSegmentMetadataUpdate(segment_id, 7, COPY_FINISHED, 1, custom_metadata), initialized=True)


def segments_that_are_long_gone_leave_nothing_behind(segments: int) -> None:
    """A metadata topic from its beginning: of each partition 20 segments live at a time, at the end none."""
    catalog = Catalog()
    partitions = [named_partition("orders", number) for number in range(50)]
    lifetime = 20 * len(partitions)
    for number in range(2 * lifetime):
        _copy_one(catalog, partitions, number, 10**9)
        _delete_one(catalog, partitions, number - lifetime)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2 * lifetime, segments):
            _copy_one(catalog, partitions, number, 10**9)
            _delete_one(catalog, partitions, number - lifetime)
        for number in range(segments - lifetime, segments):
            _delete_one(catalog, partitions, number)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert catalog.segment_count == 0
    assert after - before < 64 * 1024
    assert peak - before < 256 * 1024


def _delete_one(catalog: Catalog, partitions: list[TopicIdPartition], number: int) -> None:
    if number >= 0:
        segment_id = RemoteLogSegmentId(partitions[number % len(partitions)], Uuid(number.to_bytes(16, "big")))
        for state in (DELETE_STARTED, DELETE_FINISHED):
            catalog.apply(RemoteLogSegmentMetadataUpdate(segment_id, 8, state, 1, None), initialized=False)


KEY = (PARTITION.topic_id, PARTITION.partition)


class CountedColumn(list[int]):
    """How often a row is looked at."""

    looked_at = 0

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.looked_at += 1
        return super().__getitem__(index)


def first_reaching(catalog: Catalog, end_offset: int, time_ms: int) -> RemoteLogSegmentMetadata | None:
    return catalog.first_finished(
        *KEY, 0, end_offset_min=end_offset, max_timestamp_ms_min=time_ms, accepts=lambda _: True
    )


def a_look_up_by_time_looks_at_few_segments(segments: int) -> None:
    """Failed before: each one sorted all segments of the epoch, in the event loop."""
    catalog = Catalog()
    for number in range(segments):
        segment = started(str(number), number * 10, number * 10 + 9, {0: number * 10})
        finish(catalog, replace(segment, max_timestamp_ms=number))
    first_reaching(catalog, 0, 0)
    columns = catalog.contents().columns
    counted = [CountedColumn(column) for column in (columns.start_offsets, columns.end_offsets)]
    columns.start_offsets, columns.end_offsets = counted  # type: ignore[assignment]  # as good as arrays, to read
    for number in (0, segments // 2, segments - 1, segments):
        found = first_reaching(catalog, number * 10, number)
        assert (None if found is None else found.start_offset) == (None if number == segments else number * 10)
    assert sum(column.looked_at for column in counted) <= 4 * BLOCK_ROWS
