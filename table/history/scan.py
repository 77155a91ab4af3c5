"""`tidegate.scan`: what the tier has of a topic, as a table. No Spark, no JVM and no running Tidegate is needed.

    import tidegate
    orders = tidegate.scan("tidegate.properties", "orders", where="timestamp >= '2026-01-31'", columns=["key", "value"])
    print(orders.explain())
    frame = orders.to_polars().collect()      # or to_reader(), to_dataset(), to_pandas(), to_parquet(path)

A scan is a wish: it asks nothing until it is explained or read, but for schemas that values are decoded by. Each
reading plans what there is then. Rows of a partition are in order of offset; partitions advance side by side.

Filters are exact: what bounds cannot take is looked at row by row. Only the columns that are asked for or filtered on
are decoded.
"""

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from storage.config.tier_client import TierClientConfig
from storage.remote_storage_manager import RemoteStorageManager
from table.driver import kept_tier, load_config, open_dumped_tier, shipped_storage
from table.history.columns import DEFAULT_COLUMNS, all_columns, internal_name, public_name, value_columns
from table.history.explanation import Explanation, explained, not_tiered
from table.history.metered_storage import MeteredStorage, StoreMeter
from table.history.predicate import AllOf, Predicate, bounds_of, columns_of, expression_of, is_known
from table.history.row_reader import RowReader, ScanTask
from table.logs import configure_logs
from table.one_read import PlannedRead, plan_read, task_reader
from table.planning.bounds import Bounds
from table.planning.option_values import OptionReader
from table.planning.request import OffsetEdge, OptionsError, ReadRequest, TopicSelection
from table.planning.value_options import VALUE_OPTION_NAMES, read_value_options
from table.reading.executor_storage import open_shipped_storage
from table.tasks import TailTask, Task

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow.compute as pc

    from table.history.arrow_dataset import HistoryDataset
    from table.values.settled import SettledColumn

_DUMP_NOTE: Final = (
    "from a dump of the metadata: log starts, rights and what is not in the tier yet are not known, and segments may "
    "be gone by now"
)


def scan(
    config: str | os.PathLike[str] | Mapping[str, str],
    topic: str | Sequence[str],
    where: "pc.Expression | str | None" = None,
    columns: Sequence[str] | None = None,
    values: Mapping[str, str] | None = None,
    isolation: str = "read_uncommitted",
    tail: str = "none",
    limit: int | None = None,
    catalog: str | os.PathLike[str] | None = None,
    disorder: datetime.timedelta | None = None,
) -> "Scan":
    """The history of a topic as a table.

    Args:
        config: the path of serve's properties file, or its keys.
        topic: `orders`, one partition as `orders:3`, or a list of such.
        where: which rows, as an expression of pyarrow, or as a condition of SQL.
        columns: which columns, in this order; None: topic, partition, offset, timestamp, timestamp_type, key, value and
            headers, and what values with a schema bring. On demand: table.schema.LOG_COLUMNS, schema_id, key_schema_id.
        values: how keys and values are decoded, by the value options of the Spark source: `valueFormat` and others.
        isolation: `read_uncommitted` or `read_committed`.
        tail: `broker` reads what is not in the tier yet from the brokers; `none` leaves it out.
        limit: rows at most.
        catalog: the path of what `tidegate metadata dump` wrote: no broker is asked then. Where logs start and who may
            read is not known; the store's own rights are all that counts.
        disorder: no record is older by more than that than one before it in its partition; then `timestamp <` ends the
            reading. None: nothing is known, and it does not.

    Raises:
        OptionsError: an argument is wrong; one sentence for each.
        ConfigError: the configuration is.
        RegistryError: the schema registry does not answer.
    """
    configure_logs()
    file = config if isinstance(config, Mapping) else os.fspath(config)
    dump = None if catalog is None else Path(catalog)
    request = _request(topic, values or {}, isolation, tail, limit, dump)
    if disorder is not None:
        request = replace(request, timestamp_disorder_ms=disorder // datetime.timedelta(milliseconds=1))
    if isinstance(file, str) and not Path(file).exists():
        raise OptionsError([f"config is {file}, and there is no such file"])
    loaded = load_config(file, os.environ)
    settled: tuple[SettledColumn, ...] = ()
    if request.values.columns:
        from table.values.settled import settle

        settled = settle(request.values, request.selection.names, loaded.schema_registry)
    known = all_columns(request.values)
    found = Scan(loaded, request, settled, known, dump=dump)
    found = found if where is None else found.narrowed(where)
    found = found if limit is None else found.limited(limit)
    return found.with_columns((*DEFAULT_COLUMNS, *value_columns(request.values)) if columns is None else columns)


def _request(
    topic: str | Sequence[str],
    values: Mapping[str, str],
    isolation: str,
    tail: str,
    limit: int | None,
    dump: Path | None,
) -> ReadRequest:
    problems: list[str] = []
    value_options = read_value_options(OptionReader({name.lower(): text for name, text in values.items()}, problems))
    known = {name.lower() for name in VALUE_OPTION_NAMES}
    problems += [f"values names {name}, which is no value option" for name in values if name.lower() not in known]
    for name, given, choices in (
        ("isolation", isolation, ("read_uncommitted", "read_committed")),
        ("tail", tail, ("none", "broker")),
    ):
        if given not in choices:
            problems.append(f"{name} is {given!r}: it must be {' or '.join(choices)}")
    if limit is not None and limit < 0:
        problems.append(f"limit is {limit}: it must be 0 or more")
    if dump is not None and tail == "broker":
        problems.append("tail is 'broker', and with a catalog no broker is asked")
    selection = _selection([topic] if isinstance(topic, str) else list(topic), problems)
    if problems:
        raise OptionsError(problems)
    return ReadRequest(
        selection=selection,
        ending=OffsetEdge.LATEST if tail == "broker" else OffsetEdge.TIERED,
        read_committed=isolation == "read_committed",
        reads_tail=tail == "broker",
        values=value_options,
    )


@dataclass(slots=True)
class ScanStats:
    """What a reading has taken so far, its planning with it. `bytes_read` are of log and indexes, of the tier's
    `of_bytes` of log; `offsets` were passed, whether or not they have rows that are wanted.

    `not_tiered_offsets`: that no segment had when it was planned; they were read from the brokers, or left out.
    """

    rows: int = 0
    offsets: int = 0
    segments: int = 0
    of_segments: int = 0
    bytes_read: int = 0
    of_bytes: int = 0
    gets: int = 0
    not_tiered_offsets: int = 0
    tasks_done: int = 0
    of_tasks: int = 0


class Scan:
    """A table that is read when it is asked for. Made by `scan`."""

    def __init__(
        self,
        config: TierClientConfig,
        request: ReadRequest,
        settled: "Sequence[SettledColumn]",
        columns: Sequence[str],
        *,
        known: Sequence[str] | None = None,
        filters: "Sequence[tuple[Predicate, pc.Expression | None]]" = (),
        limit: int | None = None,
        dump: Path | None = None,
    ) -> None:
        self._dump = dump
        self._config, self._request, self._settled = config, request, tuple(settled)
        self._columns, self._filters, self._limit = tuple(columns), tuple(filters), limit
        self._known = tuple(columns if known is None else known)
        """All that there are."""
        self._meter, self._stats = StoreMeter(), ScanStats()

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._schema_of(self._columns)

    @property
    def limit(self) -> int | None:
        """Return how many rows there are at most; None: no limit."""
        return self._limit

    @property
    def stats(self) -> ScanStats:
        """Return what the last reading of this scan has taken, while it goes on or afterwards."""
        meter = self._meter
        return replace(
            self._stats,
            offsets=meter.offsets,
            segments=len(meter.segments),
            bytes_read=meter.bytes_read,
            gets=meter.gets,
        )

    def with_columns(self, columns: Sequence[str]) -> "Scan":
        """The same rows with these columns. Raises OptionsError if there is no such one."""
        problems = [
            f"columns names {name!r}, which is none of {', '.join(self._known)}"
            for name in columns
            if name not in self._known
        ]
        problems += [f"columns names {name} twice" for name in {*columns} if list(columns).count(name) > 1]
        if problems:
            raise OptionsError(problems)
        return self._changed(columns=tuple(columns))

    def narrowed(self, where: "pc.Expression | str") -> "Scan":
        """The rows for which this is true as well. It goes before a limit, also one that was set first.

        Raises:
            OptionsError: it is no condition, or does not fit the columns.
        """
        schema = self._schema_of(self._known)
        if isinstance(where, str):
            from table.history.sql_text import parse_condition

            predicate = parse_condition(where, schema)
            expression = expression_of(predicate)
        else:
            from table.history.substrait import predicate_of

            predicate, expression = predicate_of(where, schema), where
        try:
            schema.empty_table().filter(expression)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise OptionsError([f"where does not fit the columns: {str(error).splitlines()[0]}"]) from error
        return self._changed(filters=(*self._filters, (predicate, expression)))

    def bounded(self, predicate: Predicate) -> "Scan":
        """All the rows for which this is true, and maybe others: for who looks at each row anyway."""
        return self._changed(filters=(*self._filters, (predicate, None)))

    def limited(self, rows: int) -> "Scan":
        """At most so many of the rows."""
        return self._changed(limit=rows if self._limit is None else min(rows, self._limit))

    def explain(self) -> Explanation:
        """Return what a reading would take now: asks the brokers, and reads no segment."""
        return explained(
            self._planned(StoreMeter()),
            self._predicate(),
            request=self._bounds().within(self._request),
            has_manifests=self._storage().has_manifests,
            notes=() if self._dump is None else (_DUMP_NOTE,),
        )

    def tasks(self) -> "tuple[ScanTask, ...]":
        """Return the parts of the table, to be read anywhere: each can be pickled, with the tier's credentials in it.
        They know nothing of `limit`."""
        return self.tasks_of(self._planned(StoreMeter()).tasks)

    def tasks_of(self, planned: Sequence[Task]) -> tuple[ScanTask, ...]:
        """The same for tasks that were planned before."""
        rows = self._row_reader()
        return tuple(ScanTask(rows, task) for task in planned)

    def described(self) -> str:
        """Return what is asked for, as a text that is the same for the same rows and columns of the same topics."""
        parts = (self._request.selection, self._request.read_committed, self._request.values, self._settled)
        filters = [str(predicate if expression is None else expression) for predicate, expression in self._filters]
        return repr((*parts, self._columns, filters))

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, as they are read."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """All the rows, in memory."""
        return self.to_reader().read_all()

    def to_dataset(self) -> "HistoryDataset":
        """Return what DuckDB and others hand their filters and columns to."""
        from table.history.arrow_dataset import HistoryDataset

        return HistoryDataset(self)

    def to_polars(self) -> "polars.LazyFrame":
        """A lazy frame, which hands its filters, columns and limit on."""
        from table.history.polars_frame import lazy_frame

        return lazy_frame(self)

    def to_pandas(self, **options: Any) -> "pandas.DataFrame":
        """All the rows, in memory. `options`: those of pyarrow.Table.to_pandas."""
        return self.to_table().to_pandas(**options)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write Parquet files into this folder; see table.history.parquet_export."""
        from table.history.parquet_export import export

        export(self, Path(path))

    def count(self) -> int:
        """Return how many rows there are. Without a filter but on offsets and partitions nothing is decompressed: the
        headers of batches say it."""
        # A table without columns has lost its rows when it was filtered.
        cheapest = [*columns_of(self._predicate())][:1] if self._expression() is not None else []
        counted = self.with_columns(cheapest or self._columns[:0])
        rows: int = sum(batch.num_rows for batch in counted.batches())
        self._meter, self._stats = counted._meter, counted._stats
        return rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they are read."""
        left, parts = self._limit, self.tasks_of(self.begin())
        for part in parts if left != 0 else ():
            for batch in self.counted(part):
                wanted = batch if left is None else batch.slice(0, left)
                if left is not None:
                    self._stats.rows -= batch.num_rows - wanted.num_rows
                    left -= wanted.num_rows
                if wanted.num_rows:
                    yield wanted
                if left == 0:
                    return

    def begin(self) -> tuple[Task, ...]:
        """Plan a reading, whose stats begin at nothing."""
        self.begin_with(ScanStats())
        planned = self._planned(self._meter)
        served = [each.segment for view in planned.views for each in view.segments]
        self._stats.of_segments = len(served)
        self._stats.of_bytes = sum(segment.segment_size_bytes for segment in served)
        self._stats.not_tiered_offsets = not_tiered(planned, reads_tail=self._request.reads_tail)
        self._stats.of_tasks = len(planned.tasks)
        return planned.tasks

    def begin_with(self, stats: ScanStats) -> None:
        """The same for a reading that was planned before: of how much it is."""
        self._meter, self._stats = StoreMeter(), stats

    def counted(self, part: ScanTask) -> Iterator[pa.RecordBatch]:
        """The rows of a part of the reading, in its stats."""
        for batch in part.rows.read(part.task, self._meter):
            self._stats.rows += batch.num_rows
            yield batch
        self._stats.tasks_done += 1

    def _planned(self, meter: StoreMeter) -> PlannedRead:
        opened = kept_tier.open(self._config) if self._dump is None else open_dumped_tier(self._config, self._dump)
        with opened as tier:
            tier.transactions.manager = MeteredStorage(self._storage(), meter)
            planned = plan_read(tier, self._request, self._bounds())
        return replace(planned, tasks=_in_order(planned.tasks))

    def _storage(self) -> RemoteStorageManager:
        return open_shipped_storage(shipped_storage(self._config))

    def _bounds(self) -> Bounds:
        return bounds_of(self._predicate())

    def _predicate(self) -> Predicate:
        return AllOf(tuple(predicate for predicate, _ in self._filters))

    def _expression(self) -> "pc.Expression | None":
        expressions = [expression for _, expression in self._filters if expression is not None]
        return reduce(and_, expressions) if expressions else None

    def _columns_needed(self) -> tuple[str, ...]:
        """The columns asked for, those that are filtered on, and offsets for the stats; all, where an expression does
        not say which."""
        looked_at = [predicate for predicate, expression in self._filters if expression is not None]
        if not all(map(is_known, looked_at)):
            return self._known
        names = (*self._columns, *(name for each in looked_at for name in columns_of(each)), "offset")
        return tuple(dict.fromkeys(names))

    def _schema_of(self, columns: Sequence[str]) -> pa.Schema:
        from table.schema import arrow_schema

        names = [internal_name(name) for name in columns]
        if self._settled:
            from table.values.settled import typed_schema

            found = typed_schema(names, self._settled)
        else:
            found = arrow_schema(names)
        return pa.schema([each.with_name(public_name(each.name)) for each in found])

    def _row_reader(self) -> RowReader:
        needed = self._columns_needed()
        request = replace(self._bounds().within(self._request), columns=tuple(map(internal_name, needed)))
        reader = task_reader(self._config, request, self._settled)
        if self._dump is not None:
            reader = replace(reader, log_start=None)
        return RowReader(reader, needed, self.schema, self._expression())

    def _changed(self, **changes: Any) -> "Scan":
        settings: dict[str, Any] = {
            "columns": self._columns,
            "known": self._known,
            "filters": self._filters,
            "limit": self._limit,
            "dump": self._dump,
        }
        return Scan(self._config, self._request, self._settled, **{**settings, **changes})


def _selection(topics: Sequence[str], problems: list[str]) -> TopicSelection:
    """Topics, or some of their partitions."""
    assigned: dict[str, tuple[int, ...]] = {}
    whole = []
    for each in topics:
        name, colon, number = each.rpartition(":")
        if not colon:
            whole.append(each)
        elif name and number.isdecimal():
            assigned[name] = (*assigned.get(name, ()), int(number))
        else:
            problems.append(f"topic is {each!r}: it must be a topic, or a topic and a partition as orders:3")
    if not topics:
        problems.append("topic is empty")
    if assigned and whole:
        problems.append("topic has whole topics and single partitions: take one of both")
    return TopicSelection(assigned=assigned) if assigned else TopicSelection(topics=tuple(whole))


def _in_order(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Those of a partition in order of offset, and partitions side by side. (For Spark tails are first, since they take
    longest, and a partition's ranges are each by itself.)"""
    by_partition: dict[tuple[str, int], list[Task]] = {}
    for task in sorted(tasks, key=_place):
        by_partition.setdefault((task.topic, task.partition), []).append(task)
    ranked = [((at + 0.5) / len(each), key, task) for key, each in by_partition.items() for at, task in enumerate(each)]
    return tuple(task for _, _, task in sorted(ranked, key=lambda entry: entry[:2]))


def _place(task: Task) -> tuple[int, int]:
    if isinstance(task, TailTask):
        return task.first_offset, 0
    return task.parts[0].first_offset, task.parts[0].start_position
