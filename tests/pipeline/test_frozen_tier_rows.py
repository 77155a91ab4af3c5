"""From planning to rows over a real broker's tier (Aiven's format, encrypted): what a consumer got through the broker,
row by row. Offline; readers and tasks go through cloudpickle, as Spark sends them.
"""

import json
from itertools import product

import pytest

from storage.formats.aiven.manager import AivenRemoteStorageManager
from table.planning.partition_view import PartitionView, WantedOffsets, partition_view
from table.planning.planner import plan
from table.planning.tier_transactions import TierTransactions
from table.reading.executor_storage import ship_storage
from table.reading.read_task import TaskReader
from table.schema import COLUMNS
from table.tasks import AbortedTransaction, ReadOptions, Task
from tests.support.for_each import for_each
from tests.support.frozen_tier import NAMES, Recorded, storage_config
from tests.support.record_rows import Row, as_truth
from tests.support.sent import sent
from tests.support.vectors import vector

CLASS_NAME = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
WHOLE, CUT = 128 * 1024 * 1024, 64 * 1024
"""bytesPerPartition: all in one task, and tasks that begin inside segments."""


@pytest.mark.needs("vectors")
@for_each("name, bytes_per_partition", product(NAMES, (WHOLE, CUT)))
def test_rows_are_the_records_that_a_consumer_got(name: str, bytes_per_partition: int) -> None:
    recorded = Recorded(name)
    view = view_of(recorded)
    tasks = plan([wanted_of(view)], bytes_per_partition=bytes_per_partition)

    rows = [row for task in tasks for row in rows_of(task)]

    assert bytes_per_partition == WHOLE or len(tasks) > 1
    assert [as_truth(row) for row in rows] == [
        {field: value for field, value in record.items() if field != "e"} for record in recorded.truth()
    ]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {(*view.key, 0)}


@pytest.mark.needs("vectors")
def test_aborts_are_those_that_the_broker_wrote() -> None:
    view = view_of(Recorded("txn-0"))

    found = transactions().aborted(view, 0, view.tier_end_offset)

    assert AbortedTransaction(5002, 1801, 5229) in found
    assert len(found) == 11
    for link in view.segments:
        expected = tuple(
            each for each in found if each.first_offset < link.end_offset and each.last_offset >= link.first_offset
        )
        assert transactions().aborted(view, link.first_offset, link.end_offset) == expected


@pytest.mark.needs("vectors")
@for_each("bytes_per_partition", [WHOLE, CUT])
def test_read_committed_gives_the_offsets_that_such_a_consumer_got(bytes_per_partition: int) -> None:
    recorded = Recorded("txn-0")
    wanted = transactions().with_aborted([wanted_of(view_of(recorded))])
    tasks = plan(wanted, bytes_per_partition=bytes_per_partition)

    found = [row["offset"] for task in tasks for row in rows_of(task, read_committed=True)]

    delivered = json.loads(vector("aiven-tier", "truth", "txn-0.read_committed.json").read_text())["offsets"]
    assert found == [offset for offset in delivered if recorded.is_in_tier(offset)]


def transactions() -> TierTransactions:
    return TierTransactions(AivenRemoteStorageManager(storage_config()))


def view_of(recorded: Recorded) -> PartitionView:
    return partition_view(
        recorded.catalog,
        recorded.key,
        recorded.lineage,
        log_start_offset=recorded.log_start,
        end_offset=recorded.high_watermark,
    )


def wanted_of(view: PartitionView) -> WantedOffsets:
    end = view.tier_end_offset
    return WantedOffsets(view=view, first_offset=view.log_start_offset, tier_end_offset=end, end_offset=end)


def rows_of(task: Task, *, read_committed: bool = False) -> list[Row]:
    """As an executor reads it."""
    options = ReadOptions(columns=COLUMNS, read_committed=read_committed)
    reader = TaskReader(ship_storage(CLASS_NAME, storage_config()), options)
    sent_reader, sent_task = sent((reader, task))
    return [row for batch in sent_reader.read(sent_task) for row in batch.to_pylist()]
