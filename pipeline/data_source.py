"""`spark.read.format("tidegate")`: the tier as a Spark data source (PySpark 4's Python Data Source API, Arrow batches).

    from pipeline.data_source import TidegateDataSource
    spark.dataSource.register(TidegateDataSource)
    rows = spark.read.format("tidegate").option("config", "tidegate.properties").option("subscribe", "orders").load()

Options are pipeline.planning.options'; rows are the Kafka source's (pipeline.schema). Who runs what: Spark makes the
source, plans and pickles in Python workers on the driver's machine, and runs `read` in Python workers of executors. So
a reader holds what executors need from the moment it is made (how credentials travel: rule 1 of
pipeline.reading.executor_storage), and each plan opens the tier anew.

Streaming: a query's offset is pipeline.planning.stream_progress'. What is followed is the tier's end, or with
`tail=kafka` the log's. Spark 4.0 does not tell a Python source where a query stands when it asks for the newest offset.
But it plans an empty range before that when it restarts one, and the end of that says so; a query that has no such
range is new, and Spark asks it for the newest offset first, for the initial one later. `maxBytesPerTrigger` counts
from there.
`Trigger.AvailableNow` is a single batch with a source like this: with `maxBytesPerTrigger` it ends after one trigger's
bytes, and the next run goes on from there.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.driver import Tier, load_config, open_tier, shipped_storage, shipped_tail
from pipeline.logs import configure_logs
from pipeline.planning.offset_bounds import starting_offsets, wanted_between, wanted_offsets
from pipeline.planning.options import SourceOptions, columns_of, parse_options
from pipeline.planning.partition_view import PartitionView, WantedOffsets
from pipeline.planning.planner import limit_end_offsets, plan
from pipeline.planning.pushed_filters import PushedFilters, push_filters
from pipeline.planning.stream_progress import (
    StreamOffset,
    StreamProgress,
    check_same_topics,
    parse_progress,
    progress_of,
)
from pipeline.reading.read_task import TaskReader
from pipeline.schema import spark_schema
from pipeline.tasks import Task


class TidegateDataSource(DataSource):
    """The source's name is `tidegate`."""

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> str:
        return spark_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return TierReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TierStreamReader(parse_options(self.options, is_streaming=True))


class TaskPartition(InputPartition):
    """One of a read's tasks."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


class TierReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._tasks = _task_reader(options)
        self._pushed = PushedFilters()
        self.pushFilters = _FilterPushdown(self)

    def take_filters(self, filters: Sequence[Any]) -> list[Any]:
        """Take over the filters that save reading; the others are Spark's."""
        self._pushed, others = push_filters(filters)
        self._options = self._pushed.within(self._options)
        self._tasks = replace(self._tasks, options=self._options.read_options)
        return others

    def partitions(self) -> Sequence[InputPartition]:
        """Raises: whatever of ConfigError, TierViewError, OffsetBoundsError, PlanningError, UpstreamError and
        RemoteStorageError is the case; each is one sentence or a few."""
        options = self._options
        with open_tier(load_config(str(options.config), os.environ)) as tier:
            views = tier.view.partitions(options.selection, options.read_committed)
            wanted = self._pushed.narrowed(wanted_offsets(views, options, tier.client))
            return _planned(tier, wanted, options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task; Spark asks for None when there are no tasks."""
        return self._tasks.read(partition.task) if isinstance(partition, TaskPartition) else iter(())


class _FilterPushdown:
    """A TierReader's `pushFilters`, which Spark asks from 4.1 on if spark.sql.python.filterPushdown.enabled is set.

    It is not, by default, and then Spark refuses readers whose `pushFilters` is not the one that they inherit: a method
    of ours would make every read fail there. So this is no method, and says that it is the inherited one.
    """

    def __init__(self, reader: TierReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> object:
        return getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: Sequence[Any]) -> Iterable[Any]:
        return self._reader.take_filters(filters)


class TierStreamReader(DataSourceStreamReader):
    """A streaming read. The tier is opened by the first question and kept open: only in the process that plans."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._tasks = _task_reader(options)
        self._opened = ExitStack()
        self._tier: Tier | None = None
        self._initial: StreamProgress | None = None
        self._reached: StreamProgress | None = None
        """The end of the last batch planned, from which the next one is limited."""

    def __getstate__(self) -> dict[str, object]:
        # Executors read; what is open belongs to the planning process.
        return {"_options": self._options, "_tasks": self._tasks}

    def initialOffset(self) -> StreamOffset:
        """Where a new query starts: the same however often it is asked."""
        return self._begun(self._views(self._open())).to_json()

    def latestOffset(self) -> StreamOffset:
        """Where the next batch ends."""
        options = self._options
        views = self._views(self._open())
        progress = self._reached or self._begun(views)
        check_same_topics(progress, views, fails_on_data_loss=options.fails_on_data_loss)
        reached = progress.offsets
        if options.bytes_per_trigger_max is not None:
            ends = limit_end_offsets(views, reached, options.bytes_per_trigger_max)
            if options.reads_tail:
                ends = {view.key: _with_tail(view, ends[view.key]) for view in views}
        else:
            ends = {view.key: view.latest_offset if options.reads_tail else view.readable_end_offset for view in views}
        # A batch never ends before it begins: the tier's end falls back when a tail was read beyond it.
        return progress_of(views, {key: max(end, reached.get(key, end)) for key, end in ends.items()}).to_json()

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """The tasks of one batch. The same offsets give the same rows, whenever it is planned."""
        firsts, ends = parse_progress(start), parse_progress(end)
        self._reached = ends
        if firsts.offsets == ends.offsets:
            return []
        tier, options = self._open(), self._options
        views = self._views(tier)
        check_same_topics(ends, views, fails_on_data_loss=options.fails_on_data_loss)
        wanted = wanted_between(
            views,
            firsts.offsets,
            ends.offsets,
            fails_on_data_loss=options.fails_on_data_loss,
            reads_tail=options.reads_tail,
        )
        return _planned(tier, wanted, options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return self._tasks.read(partition.task) if isinstance(partition, TaskPartition) else iter(())

    def stop(self) -> None:
        """The query has ended."""
        self._tier = None
        self._opened.close()

    def _open(self) -> Tier:
        if self._tier is None:
            self._tier = self._opened.enter_context(open_tier(load_config(str(self._options.config), os.environ)))
        return self._tier

    def _begun(self, views: Sequence[PartitionView]) -> StreamProgress:
        """Where a new query starts, from when it was first asked on."""
        if self._initial is None:
            firsts = starting_offsets(views, self._options, self._open().client)
            if self._reached is not None:
                # A first batch that was planned, and not finished: it ends where it ended.
                ends = self._reached.offsets
                firsts = {key: min(first, ends[key]) for key, first in firsts.items() if key in ends}
            self._initial = progress_of(views, firsts)
        return self._initial

    def _views(self, tier: Tier) -> list[PartitionView]:
        return tier.view.partitions(self._options.selection, self._options.read_committed)


def _task_reader(options: SourceOptions) -> TaskReader:
    configure_logs()
    config = load_config(str(options.config), os.environ)
    tail = shipped_tail(config, options.tail_bootstrap_servers) if options.reads_tail else None
    return TaskReader(shipped_storage(config), options.read_options, tail)


def _planned(tier: Tier, wanted: Sequence[WantedOffsets], options: SourceOptions) -> list[InputPartition]:
    if options.read_committed:
        wanted = tier.transactions.with_aborted(wanted)
    tasks = plan(wanted, bytes_per_partition=options.bytes_per_partition, timestamp_min_ms=options.timestamp_min_ms)
    return [TaskPartition(task) for task in tasks]


def _with_tail(view: PartitionView, tier_end: int) -> int:
    """The tail is small: it goes with the batch that reaches the tier's end."""
    return view.latest_offset if tier_end >= view.readable_end_offset else tier_end
