"""Reading one task's part of a segment: from the store to Arrow batches, within the task's memory.

`segment_batches` finds the batches and keeps to the task's range, `record_decoder` makes rows of them. With
`badRecords=skip` a batch that either of them cannot use is counted and left out (`bad_records`).
"""

from collections.abc import Iterator

import pyarrow as pa

from pipeline.decoding.record_decoder import RecordDecoder
from pipeline.reading.bad_records import BadBatch, BadRecords
from pipeline.reading.segment_batches import SegmentBatches
from pipeline.tasks import ReadOptions, SegmentTask
from storage.remote_storage_manager import RemoteStorageManager


def read_segment_task(
    manager: RemoteStorageManager, task: SegmentTask, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The task's rows, in order of offset. Closing the iterator ends the GET under way.

    Let go of an Arrow batch before asking for the next: both would count towards options.task_bytes_max.

    Raises:
        CorruptObjectError: a batch or the object is corrupt; names segment and position. Only unless
            options.skips_bad_records.
        RemoteStorageError: the segment cannot be read, a batch is too large for the task's memory, or the bad records
            cannot be written.
        RecordTooLargeError: so is a record.
    """
    bad = BadRecords(task)
    partition = task.segment.topic_id_partition
    decoder = RecordDecoder(
        options,
        partition.topic,
        partition.partition,
        where=f"segment {task.segment.segment_id}",
        on_bad=lambda position, size_bytes, reason: bad.add(BadBatch(position, size_bytes, reason)),
    )
    try:
        for batches in SegmentBatches(manager, task, options, bad):
            yield from decoder.decode(batches, first_offset=task.first_offset, end_offset=task.end_offset)
            batches.clear()
    finally:
        bad.finish(options.bad_records_path)
