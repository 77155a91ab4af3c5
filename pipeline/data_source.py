"""`spark.read.format("tidegate")`: the tier as a Spark data source (PySpark 4's Python Data Source API, Arrow batches).

    from pipeline.session import register
    register(spark)
    rows = spark.read.format("tidegate").option("config", "tidegate.properties").option("subscribe", "orders").load()

Options are pipeline.options'; rows are the Kafka source's (table.schema). Who runs what: Spark makes the
source, plans and pickles in Python workers on the driver's machine, and runs `read` in Python workers of executors. So
a reader holds what executors need from the moment it is made (how credentials travel: rule 1 of
table.reading.executor_storage). A process that plans again reads on in the tier that it has open (table.driver).

Streaming: a query's offset is pipeline.stream_progress'. What is followed is the tier's end, or with
`tail=kafka` the log's. Spark 4.0 does not tell a Python source where a query stands when it asks for the newest offset.
But it plans an empty range before that when it restarts one, and the end of that says so; a query that has no such
range is new, and Spark asks it for the newest offset first, for the initial one later. `maxBytesPerTrigger` counts
from there.
`Trigger.AvailableNow` is a single batch there: with `maxBytesPerTrigger` it ends after one trigger's bytes, and the
next run goes on from there. From Spark 4.2 on, Spark says where a query stands and how much a trigger may take
(pipeline.stream_limits), and such a query takes all that there was when it started, batch by batch.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.failures import sentence_first
from pipeline.options import parse_options, schema_options
from pipeline.pushed_filters import push_filters
from pipeline.row_types import schema_problems, spark_types
from pipeline.stream_limits import default_read_limit, limited_bytes, register_available_now
from pipeline.stream_progress import StreamOffset, StreamProgress, check_same_topics, parse_progress, progress_of
from protocol.client.errors import UpstreamDeadlineError, UpstreamError
from storage.config.tier_client import TierClientConfig
from table.driver import Tier, kept_tier, load_config, open_tier
from table.logs import configure_logs
from table.one_read import PlannedRead, plan_read, plan_wanted, task_reader
from table.planning.bounds import Bounds
from table.planning.offset_bounds import starting_offsets, wanted_between
from table.planning.partition_view import PartitionView
from table.planning.planner import limit_end_offsets
from table.planning.request import OptionsError, SourceOptions, TopicPartition, TopicSelection
from table.planning.value_options import ValueOptions
from table.reading.read_task import TaskReader, keep_archive_directories
from table.schema import COLUMNS, DEAD_LETTER, VALUE_COLUMNS
from table.tasks import Task

if TYPE_CHECKING:
    from table.values.settled import SettledColumn

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_NO_OPTIONS = (
    "there are no options: Spark hands a Python source none of those that CREATE TABLE … USING tidegate was given; "
    "take CREATE TEMPORARY VIEW … USING tidegate OPTIONS (…), or SELECT … FROM … WITH (config='…', subscribe='…')"
)


class TidegateDataSource(DataSource):
    """The source's name is `tidegate`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark's planning processes are used again, too. One makes the source, others are sent it.
        keep_archive_directories()

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    _settled: "tuple[SettledColumn, ...] | None" = None
    """The schemas of keys and values, from when the types were asked for: Spark sends the source on with them. So rows
    have those types, whatever is registered meanwhile."""

    @sentence_first()
    def schema(self) -> StructType:
        options = schema_options(self.options)
        return spark_types(options.columns, self._settle(options.values, options.config, options.selection))

    @sentence_first()
    def reader(self, schema: StructType) -> "TierReader":
        keep_archive_directories()
        if not self.options:
            raise OptionsError([_NO_OPTIONS])
        return TierReader(*self._with_schema(parse_options(self.options), schema))

    @sentence_first()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        keep_archive_directories()
        return TierStreamReader(*self._with_schema(parse_options(self.options, is_streaming=True), schema))

    def _settle(
        self, values: ValueOptions, config: Path | None, selection: TopicSelection | None
    ) -> "tuple[SettledColumn, ...]":
        if self._settled is None and values.columns:
            from table.values.settled import settle  # what decodes values: only for who asks for it

            assert config is not None
            assert selection is not None
            registry = load_config(str(config), os.environ).schema_registry
            self._settled = settle(values, selection.names, registry)
        return self._settled or ()

    def _with_schema(
        self, options: SourceOptions, schema: StructType
    ) -> "tuple[SourceOptions, tuple[SettledColumn, ...]]":
        """Rows of this schema: the source's own, or one that the user gives, which Spark then does not ask us for. It
        takes columns by their place, whatever they are called.

        Raises: OptionsError: we have no such columns.
        """
        settled = self._settle(options.values, options.config, options.selection)
        is_chosen = any(name.lower() == "columns" for name in self.options)
        columns = options.columns if is_chosen else (*COLUMNS, *VALUE_COLUMNS)
        if not options.values.columns:
            columns = tuple(name for name in columns if name != DEAD_LETTER)
        if problems := schema_problems(schema, spark_types(columns, settled)):
            raise OptionsError(problems)
        return replace(options, columns=tuple(schema.names) or options.columns), settled


class TaskPartition(InputPartition):
    """One of a read's tasks."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


class TierReader(DataSourceReader):
    """A batch read."""

    is_of_job = False
    """A job with many of them says itself how far it is."""

    def __init__(self, options: SourceOptions, settled: "Sequence[SettledColumn]" = ()) -> None:
        self.options = options
        self.tasks = _task_reader(options, settled)
        self._bounds = Bounds()
        self.pushFilters = _FilterPushdown(self)

    def take_filters(self, filters: Sequence[Any]) -> list[Any]:
        """Take over the filters that save reading; the others are Spark's."""
        self._bounds, others = push_filters(filters)
        self.options = self._bounds.within(self.options)
        self.tasks = replace(self.tasks, options=self.options.read_options)
        return others

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        """Raises: whatever of ConfigError, TierViewError, OffsetBoundsError, PlanningError, UpstreamError and
        RemoteStorageError is the case; each is one sentence or a few."""
        with kept_tier.open(_config(self.options)) as tier:
            planned = plan_read(tier, self.options, self._bounds)
        return _partitions(planned, is_told=not self.is_of_job)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task; Spark asks for None when there are no tasks."""
        return _rows(self.tasks, partition)


class _FilterPushdown:
    """A TierReader's `pushFilters`, which Spark asks from 4.1 on if spark.sql.python.filterPushdown.enabled is set.

    It is not, by default (pipeline.session.register sets it), and then Spark refuses readers whose `pushFilters` is not
    the one that they inherit: a method of ours would make every read fail there. So this is no method, and says that it
    is the inherited one.
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

    def __init__(self, options: SourceOptions, settled: "Sequence[SettledColumn]" = ()) -> None:
        self.options = options
        self.tasks = _task_reader(options, settled)
        self._opened = ExitStack()
        self._tier: Tier | None = None
        self._initial: StreamProgress | None = None
        self._reached: StreamProgress | None = None
        """The end of the last batch planned, from which the next one is limited."""
        self._target: Sequence[PartitionView] | None = None
        """What a query with `Trigger.AvailableNow` takes; None: what there is, whenever it is asked."""
        self._committed: Mapping[TopicPartition, int] | None = None

    def __getstate__(self) -> dict[str, object]:
        # Executors read; what is open belongs to the planning process.
        return {"options": self.options, "tasks": self.tasks}

    @sentence_first()
    def initialOffset(self) -> StreamOffset:
        """Return where a new query starts: the same however often it is asked."""
        return self._begun(self._views(self._open())).to_json()

    def getDefaultReadLimit(self) -> object:
        """Return what a trigger takes at most, as Spark hands it back to `latestOffset`."""
        return default_read_limit(self.options.bytes_per_trigger_max)

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:
        """From now on there is what there is now."""
        self._target = self._views(self._open())

    @sentence_first()
    def latestOffset(self, start: StreamOffset | None = None, limit: object = None) -> StreamOffset:
        """Return where the next batch ends.

        Args:
            start, limit: where the query stands, and what the trigger may take; before Spark 4.2 it says neither.
        """
        options = self.options
        views = self._views(self._open()) if self._target is None else self._target
        progress = parse_progress(start) if start is not None else self._reached or self._begun(views)
        check_same_topics(progress, views, fails_on_data_loss=options.fails_on_data_loss)
        reached = progress.offsets
        # Spark asks when the batch before is done, and tells of that only when the next one begins.
        self._commit_for_group(reached)
        if (bytes_max := limited_bytes(limit, options.bytes_per_trigger_max)) is not None:
            ends = limit_end_offsets(views, reached, bytes_max)
            if options.reads_tail:
                ends = {view.key: _with_tail(view, ends[view.key]) for view in views}
        else:
            ends = {view.key: view.latest_offset if options.reads_tail else view.readable_end_offset for view in views}
        # A batch never ends before it begins: the tier's end falls back when a tail was read beyond it.
        ends = {key: max(end, reached.get(key, end)) for key, end in ends.items()}
        if ends != reached:
            _log_progress(views, reached, ends)
        return progress_of(views, ends).to_json()

    @sentence_first()
    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """The tasks of one batch. The same offsets give the same rows, whenever it is planned."""
        firsts, ends = parse_progress(start), parse_progress(end)
        self._reached = ends
        if firsts.offsets == ends.offsets:
            return []
        tier, options = self._open(), self.options
        views = self._views(tier)
        check_same_topics(ends, views, fails_on_data_loss=options.fails_on_data_loss)
        wanted = wanted_between(
            views,
            firsts.offsets,
            ends.offsets,
            fails_on_data_loss=options.fails_on_data_loss,
            reads_tail=options.reads_tail,
        )
        return _partitions(plan_wanted(tier, views, wanted, options))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return _rows(self.tasks, partition)

    def commit(self, end: StreamOffset) -> None:
        """All batches up to there are done."""
        self._commit_for_group(parse_progress(end).offsets)

    def stop(self) -> None:
        """The query has ended."""
        self._tier = None
        self._opened.close()

    def _open(self) -> Tier:
        if self._tier is None:
            self._tier = self._opened.enter_context(open_tier(_config(self.options)))
        return self._tier

    def _commit_for_group(self, offsets: Mapping[TopicPartition, int]) -> None:
        """For Kafka's tools to see, and never read again. What is wrong fails a query when it starts, not later."""
        group = self.options.commit_group
        if group is None or offsets == self._committed or not offsets:
            return
        try:
            self._open().client.commit_offsets(group, offsets)
        except UpstreamError as error:
            if self._committed is None and not isinstance(error, UpstreamDeadlineError):
                raise
            _log.warning("group_offsets_not_committed", group=group, reason=str(error))
        else:
            self._committed = dict(offsets)

    def _begun(self, views: Sequence[PartitionView]) -> StreamProgress:
        """Return where a new query starts, from when it was first asked on."""
        if self._initial is None:
            firsts = starting_offsets(views, self.options, self._open().client)
            if self._reached is not None:
                # A first batch that was planned, and not finished: it ends where it ended.
                ends = self._reached.offsets
                firsts = {key: min(first, ends[key]) for key, first in firsts.items() if key in ends}
            self._initial = progress_of(views, firsts)
        return self._initial

    def _views(self, tier: Tier) -> list[PartitionView]:
        return tier.view.partitions(self.options.selection, self.options.read_committed)


register_available_now(TierStreamReader)


def _config(options: SourceOptions) -> TierClientConfig:
    """Raises: OptionsError, ConfigError, StorageConfigError."""
    path = options.config.absolute()  # for the sentence: few know in which folder Spark's own processes run
    if not path.exists():
        raise OptionsError([f"config is {path}, and the driver's machine has no such file"])
    return load_config(str(path), os.environ)


def _task_reader(options: SourceOptions, settled: "Sequence[SettledColumn]") -> TaskReader:
    configure_logs()
    return task_reader(_config(options), options, settled, options.tail_bootstrap_servers)


def _rows(tasks: TaskReader, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    with sentence_first():
        if isinstance(partition, TaskPartition):
            yield from tasks.read(partition.task)


def _partitions(planned: PlannedRead, *, is_told: bool = True) -> list[InputPartition]:
    if is_told:
        _log.info("read_planned", **planned.costs())
    return [TaskPartition(task) for task in planned.tasks]


def _log_progress(
    views: Sequence[PartitionView], reached: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> None:
    """Offsets of the next batch, and of what is left behind it; compacted topics have fewer records than offsets."""
    _log.info(
        "stream_progress",
        topics=",".join(sorted({topic for topic, _ in ends})),
        batch_offsets=sum(end - reached.get(key, end) for key, end in ends.items()),
        behind_tier_offsets=sum(max(0, view.readable_end_offset - ends[view.key]) for view in views),
        behind_log_offsets=sum(max(0, view.latest_offset - ends[view.key]) for view in views),
    )


def _with_tail(view: PartitionView, tier_end: int) -> int:
    """The tail is small: it goes with the batch that reaches the tier's end."""
    return view.latest_offset if tier_end >= view.readable_end_offset else tier_end
