"""The source without Spark: what a batch plans, where a stream's batches begin and end, what of it travels.

Brokers and metadata are in memory; whole reads with a real Spark are in tests/spark/test_data_source.py.
"""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType, _parse_datatype_json_string

from pipeline import data_source
from pipeline.data_source import TaskPartition, TidegateDataSource, TierReader, TierStreamReader
from pipeline.stream_progress import TOPIC_IDS, StreamOffset
from protocol.client.errors import GroupAuthorizationError
from storage.config.tier_client import TierClientConfig
from storage.errors import RemoteResourceNotFoundError
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition, uuid_to_text
from table import driver
from table.brokers.client import BrokerClient
from table.brokers.metadata_topic import METADATA_TOPIC, MetadataFollower
from table.driver import KeptTier, Tier
from table.planning.offset_bounds import OffsetBoundsError
from table.planning.own_tier_view import OwnTierView
from table.planning.partition_view import WantedOffsets
from table.planning.request import OptionsError
from table.planning.tier_transactions import TierTransactions
from table.planning.tier_view import TierView
from table.reading.executor_storage import ShippedStorage
from table.tasks import AbortedTransaction, TailTask, TierTask
from tests.support.cases import case
from tests.support.fake_groups import FakeGroup
from tests.support.fake_kafka import FakeKafka
from tests.support.for_each import for_each
from tests.support.metadata_records import (
    DELETE_STARTED,
    apply_all,
    finish,
    moved,
    named_partition,
    named_uuid,
    started,
)
from tests.support.segments import FIRST_TIMESTAMP_MS, filled_segment, publish
from tests.support.sent import sent
from tests.support.spark_filters import EqualTo, GreaterThanOrEqual, LessThan, LessThanOrEqual
from tests.support.tier_config_files import tier_file

SECRET = "planted+secret/of+storage"
ORDERS = named_partition()
LOG_END = 500


class World:
    """`orders`: 100 offsets of 1,000 bytes a segment, three of them in the tier, and a log that ends at 500."""

    lines = f"rsm.config.some.password={SECRET}\n"
    view_of: type[TierView] = TierView

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kafka = FakeKafka()
        self.kafka.add(1, "a")
        self.kafka.add_log(named_partition(METADATA_TOPIC))
        self.catalog = Catalog()
        self.opened = 0
        self.tiered = 0
        self.kafka.add_log(ORDERS, end_offset=LOG_END)
        self.tier_more(3)

    def tier_more(self, count: int = 1) -> None:
        for _ in range(count):
            finish(self.catalog, started(f"{self.tiered}", self.tiered, self.tiered + 99))
            self.tiered += 100

    @contextmanager
    def open_tier(self, _config: TierClientConfig, _storage: ShippedStorage | None = None) -> Iterator[Tier]:
        self.opened += 1
        manager = LocalTieredStorage({"dir": str(self.folder)})
        client, transactions = self.kafka.client(), TierTransactions(manager)
        view = self.view_of(client, MetadataFollower(client, self.catalog), self.catalog, transactions)
        yield Tier(view, client, self.catalog, transactions)

    def source(self, **options: str) -> TidegateDataSource:
        config = tier_file(self.folder, self.lines)
        return TidegateDataSource({"config": str(config), "subscribe": "orders", **options})

    def reader(self, **options: str) -> TierReader:
        reader = self.source(**options).reader(StructType())
        assert isinstance(reader, TierReader)
        return reader

    def stream(self, **options: str) -> TierStreamReader:
        reader = self.source(**options).streamReader(StructType())
        assert isinstance(reader, TierStreamReader)
        return reader


class StoredWorld(World):
    """The same with the segments' objects, in LocalTieredStorage."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.lines = (
            "upstream.bootstrap.servers=broker:9092\nremote.log.storage.manager.class.name="
            f"org.apache.kafka.server.log.remote.storage.LocalTieredStorage\nrsm.config.dir={folder}\n"
        )
        self.segments: list[RemoteLogSegmentMetadata] = []
        super().__init__(folder)

    def source(self, **options: str) -> TidegateDataSource:
        config = tier_file(self.folder, self.lines, minimal=False)
        return TidegateDataSource({"config": str(config), "subscribe": "orders", **options})

    def tier_more(self, count: int = 1) -> None:
        for _ in range(count):
            self.segments.append(publish(self.folder, ORDERS, filled_segment(self.tiered, batch_count=10)))
            finish(self.catalog, replace(self.segments[-1], state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
            self.tiered += 100

    def delete(self, number: int) -> None:
        """By the tier's own way."""
        LocalTieredStorage({"dir": str(self.folder)}).delete_log_segment_data(self.segments[number])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return opened(World(tmp_path), monkeypatch)


def opened(made: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(data_source, "open_tier", made.open_tier)
    monkeypatch.setattr(driver, "open_tier", made.open_tier)
    monkeypatch.setattr(data_source, "kept_tier", KeptTier())
    return made


def progress(offset: int) -> StreamOffset:
    """As Spark gives it back from its checkpoint."""
    kept: StreamOffset = json.loads(
        json.dumps({"orders": {"0": offset}, TOPIC_IDS: {"orders": uuid_to_text(ORDERS.topic_id)}})
    )
    return kept


def ranges_of(partitions: object) -> list[tuple[str, int, int]]:
    """Return for each task: where from, first offset and end."""
    assert isinstance(partitions, list)
    found = []
    for each in partitions:
        assert isinstance(each, TaskPartition)
        match each.task:
            case TierTask(parts=parts):
                found.append(("tier", parts[0].first_offset, parts[-1].end_offset))
            case TailTask(first_offset=first, end_offset=end):
                found.append(("tail", first, end))
    return found


def test_one_process_opens_the_tier_once_until_a_plan_fails_or_its_file_changes(world: World) -> None:
    for _ in range(2):
        assert ranges_of(world.reader().partitions()) == [("tier", 0, 300)]
    assert ranges_of(world.reader(tail="kafka").partitions()) == [("tail", 300, 500), ("tier", 0, 300)]
    world.tier_more()
    assert ranges_of(world.reader().partitions()) == [("tier", 0, 400)]
    assert world.opened == 1

    with pytest.raises(OffsetBoundsError):
        world.reader(endingOffsets=json.dumps({"orders": {"0": 450}})).partitions()
    world.reader().partitions()
    assert world.opened == 2

    reader = world.reader()
    tier_file(world.folder, "rsm.config.some.password=another\n")
    reader.partitions()
    assert world.opened == 3


# --- batch ---


def test_a_committed_read_is_told_what_was_aborted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only whole programs saw it when nobody asked.
    inside = AbortedTransaction(7, 20, 40)

    def with_aborted(_self: TierTransactions, wanted: Sequence[WantedOffsets]) -> list[WantedOffsets]:
        return [replace(want, aborted=(inside,)) for want in wanted]

    monkeypatch.setattr(TierTransactions, "with_aborted", with_aborted)
    monkeypatch.setattr(TierTransactions, "last_stable_offset", lambda _self, view: view.tier_end_offset)
    for isolation, expected in (("read_uncommitted", ()), ("read_committed", (inside,))):
        (partition,) = world.reader(isolation=isolation).partitions()
        assert isinstance(partition, TaskPartition)
        assert isinstance(partition.task, TierTask)
        assert [part.aborted for part in partition.task.parts] == [expected, (), ()], isolation


def test_filters_that_are_taken_narrow_the_plan_and_the_rows(world: World) -> None:
    reader = world.reader(tail="kafka")
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    of_value = EqualTo(("value",), b"x")
    filters = [GreaterThanOrEqual(("offset",), 120), LessThan(("offset",), 190), of_value]

    assert list(reader.pushFilters([*filters, GreaterThanOrEqual(("timestamp",), moment)])) == [of_value]

    # The segments' newest records are older than that.
    assert reader.partitions() == []
    assert list(world.reader(tail="kafka").pushFilters([])) == []
    reader.pushFilters(filters)
    assert reader.tasks.options == reader.options.read_options
    reader = world.reader(tail="kafka")
    reader.pushFilters(filters)
    assert ranges_of(reader.partitions()) == [("tier", 120, 190)]


def test_a_time_range_of_declared_disorder_is_planned_up_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hour of a day cost the day. Given times that rise, when a read ends at one and says so, then the rest
    is no part of the plan: neither of the tier nor of the tail."""
    stored = opened(StoredWorld(tmp_path / "tier"), monkeypatch)
    newest_ms = FIRST_TIMESTAMP_MS + 120
    until = LessThanOrEqual(("timestamp",), datetime.datetime.fromtimestamp(newest_ms / 1000, datetime.UTC))
    for options, filters in (({"timestampTo": str(newest_ms)}, []), ({}, [until])):
        options["tail"] = "kafka"
        reader = stored.reader(**options)
        reader.pushFilters(filters)
        assert ranges_of(reader.partitions()) == [("tail", 300, 500), ("tier", 0, 300)]
        reader = stored.reader(**options, timestampDisorder="1ms")
        reader.pushFilters(filters)
        ((where, first, end),) = ranges_of(reader.partitions())
        assert (where, first) == ("tier", 0)
        assert 120 < end < 200


def test_pushing_filters_down_does_not_count_as_declared_where_spark_has_that_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark 4.1 asks it; it refuses what is not the method that readers inherit."""

    def inherited(_reader: DataSourceReader, filters: list[object]) -> list[object]:
        return filters

    monkeypatch.setattr(DataSourceReader, "pushFilters", inherited, raising=False)
    for reader in (world.reader(), sent(world.reader())):
        assert reader.pushFilters.__func__ is inherited
        assert list(reader.pushFilters([EqualTo(("topic",), "orders")])) == []


def test_each_read_says_what_it_plans_of_how_much(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing told what a filter saved, or that it saved nothing. Given a batch and a stream's, when they are planned,
    then a line has segments and bytes, of how many."""
    reader = world.reader(tail="kafka")
    reader.pushFilters([GreaterThanOrEqual(("offset",), 50), LessThan(("offset",), 150)])
    reader.partitions()
    world.stream(tail="kafka").partitions(progress(200), progress(400))
    lines = [line for line in capsys.readouterr().err.splitlines() if "event=read_planned" in line]
    planned = "event=read_planned topics=orders tasks={} segments={} of_segments=3 tier_mb={} of_tier_mb=0.003 tail_off"
    assert [planned.format(1, 2, 0.001) in lines[0], planned.format(2, 1, 0.001) in lines[1]] == [True, True], lines
    assert [line.rpartition("=")[2] for line in lines] == ["0", "100"]


# --- a schema that the user gives ---


def rows_like(text: str) -> StructType:
    """`name type …` as Spark's DDL, without a session to parse it."""
    fields = []
    for column in text.split(","):
        name, kind, *rest = column.split()
        type_ = _parse_datatype_json_string(json.dumps({"bigint": "long"}.get(kind, kind)))
        fields.append(StructField(name, type_, nullable=not rest))
    return StructType(fields)


@for_each("text", ["value binary, key binary", "offset bigint not, value binary", "schemaId int"])
def test_a_schema_is_honoured_by_its_names(world: World, text: str) -> None:
    """Columns went by their place: keys came out as values. Given some of our columns in an order of the user's, when a
    batch or a stream reads by them, then rows have just these."""
    schema = rows_like(text.replace(" int", " integer"))
    for reader in (world.source().reader(schema), world.source().streamReader(schema)):
        assert isinstance(reader, TierReader | TierStreamReader)
        assert reader.options.columns == tuple(schema.names)
        if "schemaId" not in text:
            assert reader.tasks.options.columns == tuple(schema.names)


@for_each(
    "text, options, said",
    [
        ("value binary, size bigint", {}, "the schema names 'size', which is none of key, value, topic, "),
        ("Value binary", {}, "the schema names 'Value', which is none of key, value, topic, "),
        ("value string", {}, "the schema has value as string, and it is binary$"),
        ("offset integer", {}, "the schema has offset as int, and it is bigint$"),
        ("key binary not", {}, "the schema has key as not null, and a record may have none$"),
        ("key binary, key binary", {}, "the schema names key twice$"),
        ("key binary", {"Columns": "offset"}, "the schema names 'key', which is none of offset$"),
        ("deadLetter binary", {}, "the schema names 'deadLetter', which is none of "),
    ],
)
def test_a_schema_that_we_have_not_is_told_by_its_column(
    world: World, text: str, options: Mapping[str, str], said: str
) -> None:
    for ask in (world.source(**options).reader, world.source(**options).streamReader):
        with pytest.raises(OptionsError, match=f"^{said}"):
            ask(rows_like(text))


def test_typed_columns_are_compared_with_the_schemas_types(world: World) -> None:
    file = world.folder / "order.json"
    file.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}', "utf-8")
    source = world.source(valueFormat="json", valueSchemaFile=str(file))
    own = source.schema()
    chosen = StructType([own["value"], own["deadLetter"], own["offset"]])
    reader = source.reader(chosen)
    assert isinstance(reader, TierReader)
    assert reader.tasks.values is not None
    assert reader.tasks.values.columns == ("value", "deadLetter", "offset")
    with pytest.raises(OptionsError, match=r"^the schema has value as binary, and it is struct<id:bigint>$"):
        source.reader(rows_like("value binary"))
    inside = StructType([StructField("value", StructType([StructField("id", LongType(), nullable=False)]))])
    with pytest.raises(OptionsError, match=r'^the schema has value as \{.*"nullable":false'):
        source.reader(inside)


def test_without_tasks_there_is_nothing_to_read_and_wrong_options_are_said_first(world: World) -> None:
    assert list(world.reader().read(None)) == []
    assert list(world.stream().read(None)) == []
    assert list(world.reader().read(InputPartition(None))) == []
    with pytest.raises(OptionsError, match="maxBytesPerTrigger is for streaming reads only"):
        world.reader(maxBytesPerTrigger="1m")
    with pytest.raises(OptionsError, match="they have no end"):
        world.stream(endingOffsets="latest")


# --- retention that passes a running read ---


@for_each("is_stream", [False, True])
def test_retention_that_passes_a_running_read_is_told_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_stream: bool
) -> None:
    """It killed the read, with failOnDataLoss=false too. Given a plan of three segments, when the first one is deleted
    before its task runs, then the task asks the broker: of a log start beyond it the read goes on without, or says
    what planning would say; of one that is where it was the object is named."""

    stored = StoredWorld(tmp_path / str(is_stream))
    opened(stored, monkeypatch)

    def planned(**options: str) -> Callable[[], list[int]]:
        stream, batch = stored.stream(**options), stored.reader(**options)
        partitions = stream.partitions(progress(0), progress(300)) if is_stream else batch.partitions()
        read = sent(stream).read if is_stream else sent(batch).read

        def offsets() -> list[int]:
            found = [rows for each in partitions for rows in read(sent(each))]
            return [offset for rows in found for offset in rows.column("offset").to_pylist()]

        return offsets

    kept, failing = planned(failOnDataLoss="false"), planned()
    stored.delete(0)
    with stored.kafka.blocking():
        for read in (kept, failing):
            with pytest.raises(RemoteResourceNotFoundError, match="00000000000000000000-"):
                read()
        stored.kafka.log("orders").log_start_offset = 120
        assert kept() == list(range(100, 300))
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "event=offsets_lost" in line]
        assert line.endswith('partitions="orders-0: offsets 0 to 99 are below the log start 120" offsets=100')
        said = "^orders-0: offsets 0 to 99 are below the log start 120; failOnDataLoss=false goes on without$"
        with pytest.raises(OffsetBoundsError, match=said):
            failing()
        stored.kafka.add_log(TopicIdPartition(named_uuid("created again"), 0, "orders"), log_start_offset=900)
        with pytest.raises(RemoteResourceNotFoundError, match=r"topic orders was deleted meanwhile$"):
            kept()


def test_a_tier_of_our_own_says_itself_where_its_log_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given mode=standalone, whose brokers have long deleted what the tier has, when a segment's objects are gone from
    it, then the metadata say whether retention deleted them."""
    stored = StoredWorld(tmp_path / "own")
    stored.view_of = OwnTierView
    opened(stored, monkeypatch)
    monkeypatch.setattr(BrokerClient, "committed_offsets", lambda *_: {})
    stored.kafka.log("orders").log_start_offset = 250
    with stored.kafka.blocking():
        batch = stored.reader(failOnDataLoss="false")
        (partition,) = batch.partitions()
        stored.delete(0)
        with pytest.raises(RemoteResourceNotFoundError, match="00000000000000000000-"):
            list(batch.read(partition))
        apply_all(stored.catalog, moved(stored.segments[0], DELETE_STARTED))
        found = [offset for rows in batch.read(partition) for offset in rows.column("offset").to_pylist()]
    assert found == list(range(100, 300))


# --- what travels ---


def test_readers_travel_without_what_is_open_and_without_showing_a_secret(world: World) -> None:
    stream, batch = world.stream(), world.reader()
    stream.latestOffset()
    stream.partitions(stream.initialOffset(), stream.latestOffset())
    assert world.opened == 1, "a stream opens the tier once"

    for reader in (stream, batch, sent(stream), sent(batch)):
        shown = repr(reader) + repr(vars(reader)) + repr(reader.tasks)
        assert SECRET not in shown
        assert dict(reader.tasks.storage.config)["some.password"] == SECRET
    assert list(sent(stream).read(None)) == []
    (partition,) = batch.partitions()
    assert SECRET not in repr(vars(partition))
    assert ranges_of([sent(partition)]) == [("tier", 0, 300)]
    # To stop twice does no harm.
    stream.stop()
    stream.stop()


# --- streams ---


@for_each(
    "options, first, end",
    [
        ({}, 0, 300),
        ({"tail": "kafka"}, 0, 500),
        ({"startingOffsets": "latest", "tail": "kafka"}, 500, 500),
        # Behind the tier: it waits there for the tier.
        ({"startingOffsets": "latest"}, 500, 500),
        ({"startingOffsets": json.dumps({"orders": {"0": 150}}), "maxBytesPerTrigger": "500"}, 150, 200),
        ({"startingOffsets": json.dumps({"orders": {"0": 150}}), "maxBytesPerTrigger": "100"}, 150, 160),
        ({"maxBytesPerTrigger": "2500", "tail": "kafka"}, 0, 200),
        ({"maxBytesPerTrigger": "3000", "tail": "kafka"}, 0, 500),
    ],
)
def test_a_new_query_begins_where_it_was_told_to(
    world: World, options: Mapping[str, str], first: int, end: int
) -> None:
    """Whichever Spark asks first, and when the log grows between the two."""
    world.kafka.log("orders").end_offset = LOG_END
    stream = world.stream(**options)
    assert (stream.initialOffset(), stream.latestOffset()) == (progress(first), progress(end))
    stream = world.stream(**options)
    assert stream.latestOffset() == progress(end)
    world.kafka.log("orders").end_offset += 7
    assert stream.initialOffset() == progress(first)


def test_batches_follow_up_to_the_tiers_end_and_go_on_when_more_is_tiered(world: World) -> None:
    stream = world.stream(maxBytesPerTrigger="1500")
    ends = []
    reached = stream.initialOffset()
    for _ in range(4):
        latest = stream.latestOffset()
        ends.append(latest)
        stream.partitions(reached, latest)
        reached = latest
    assert ends == [progress(end) for end in (100, 200, 300, 300)]
    world.tier_more()
    assert stream.latestOffset() == progress(400)
    assert ranges_of(stream.partitions(reached, progress(400))) == [("tier", 300, 400)]
    # A restarted query goes on from where Spark says it stands.
    stream = world.stream(maxBytesPerTrigger="1000")
    assert stream.partitions(progress(200), progress(200)) == []
    assert stream.latestOffset() == progress(300)


def test_a_first_batch_that_was_not_finished_ends_where_it_ended(world: World) -> None:
    stream = world.stream(startingOffsets="latest", tail="kafka")
    stream.partitions(progress(480), progress(480))
    assert stream.initialOffset() == progress(480)
    assert stream.partitions(progress(480), progress(480)) == []
    stream = world.stream()
    stream.partitions(progress(450), progress(450))
    assert stream.latestOffset() == progress(450)


def test_the_same_offsets_are_planned_alike_while_the_tier_grows(world: World) -> None:
    stream = world.stream(tail="kafka")
    assert ranges_of(stream.partitions(progress(250), progress(400))) == [("tail", 300, 400), ("tier", 250, 300)]
    world.tier_more()
    assert ranges_of(stream.partitions(progress(250), progress(400))) == [("tier", 250, 400)]


def test_a_topic_made_anew_under_a_running_query_fails_it(world: World) -> None:
    stream = world.stream(tail="kafka")
    latest = stream.latestOffset()
    stream.partitions(stream.initialOffset(), latest)
    world.kafka.add_log(TopicIdPartition(named_uuid("created again"), 0, "orders"), end_offset=900)
    for asks in (
        stream.latestOffset,
        lambda: stream.partitions(latest, progress(600)),
        lambda: world.stream().partitions(progress(0), progress(300)),
    ):
        with case(asks), pytest.raises(OffsetBoundsError, match="orders was deleted and created again"):
            asks()


# --- offsets for Kafka's tools ---


def offsets_of(group: FakeGroup) -> list[int]:
    """Return what was committed of the only partition."""
    return [offset for given in group.committed for offset, _ in given.values()]


def test_a_streams_offsets_are_committed_when_a_batch_is_done(world: World) -> None:
    """Given commitGroup, when Spark asks for the next end, then the offsets of what is done are committed, once."""
    group = FakeGroup(world.kafka)
    stream = world.stream(commitGroup="a-group")
    with world.kafka.blocking():
        end = stream.latestOffset()
        assert offsets_of(group) == [0], "where it starts, so that the lag is to be seen from the start"
        stream.partitions(stream.initialOffset(), end)
        assert offsets_of(group) == [0], "the batch is not done"
        stream.latestOffset()
        stream.commit(end)
        stream.latestOffset()
    assert offsets_of(group) == [0, 300]


def test_a_commit_that_is_refused_fails_the_start_of_a_query_and_nothing_later(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    group = FakeGroup(world.kafka, codes=[ErrorCode.group_authorization_failed])
    with world.kafka.blocking(), pytest.raises(GroupAuthorizationError, match="ACL Read on Group a-group is missing"):
        world.stream(commitGroup="a-group").latestOffset()

    group.codes += [ErrorCode.none, ErrorCode.unknown_member_id]
    stream = world.stream(commitGroup="a-group")
    with world.kafka.blocking():
        end = stream.latestOffset()
        stream.partitions(stream.initialOffset(), end)
        assert stream.latestOffset() == end
        stream.latestOffset()
    assert (offsets_of(group), group.asked.count("commit")) == ([0, 300], 4)
    assert capsys.readouterr().err.count("event=group_offsets_not_committed group=a-group") == 1
