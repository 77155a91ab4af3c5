"""The order of the questions, and what becomes of an answer when the world changes between two of them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pipeline.options import parse_options
from protocol.client.groups import GroupOffset
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.indexes.producer_snapshot import ProducerState
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode
from storage.model import ZERO_UUID, RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition, uuid_to_text
from table.brokers.client import BrokerClient
from table.brokers.metadata_topic import METADATA_TOPIC, MetadataFollower
from table.planning.offset_bounds import starting_offsets
from table.planning.own_tier_view import OwnTierView
from table.planning.partition_view import OffsetRange, PartitionView
from table.planning.request import TopicSelection
from table.planning.tier_transactions import TierTransactions
from table.planning.tier_view import TierView, TierViewError
from tests.support.fake_kafka import FakeKafka, FakeLog
from tests.support.for_each import for_each
from tests.support.metadata_records import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    apply_all,
    finish,
    moved,
    named_partition,
    named_uuid,
    started,
)
from tests.support.segments import FIRST_TIMESTAMP_MS, build_segment, data_batch, metadata_of, object_path, publish

ORDERS = named_partition()
OTHER = named_partition("payments")


@dataclass(slots=True)
class World:
    """A catalog, a broker, and a view of both."""

    tier_dir: Path
    kafka: FakeKafka = field(default_factory=FakeKafka)
    catalog: Catalog = field(default_factory=Catalog)

    def __post_init__(self) -> None:
        self.kafka.add(1, "a")
        self.kafka.add_log(named_partition(METADATA_TOPIC))

    def tiered(self, *segments: RemoteLogSegmentMetadata) -> None:
        """Told by the next pass over the metadata topic."""
        for metadata in segments:
            self.kafka.log(METADATA_TOPIC).put(encode(metadata))
            self.kafka.log(METADATA_TOPIC).put(encode(moved(metadata, COPY_FINISHED)))

    def views(
        self, selection: TopicSelection, *, read_committed: bool = False, owns_tier: bool = False
    ) -> list[PartitionView]:
        return self.view(owns_tier=owns_tier).partitions(selection, read_committed)

    def view(self, *, owns_tier: bool) -> TierView:
        manager = LocalTieredStorage({"dir": str(self.tier_dir)})
        client, transactions = self.kafka.client(), TierTransactions(manager)
        follower = MetadataFollower(client, self.catalog)
        view_of = OwnTierView if owns_tier else TierView
        return view_of(client, follower, self.catalog, transactions)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def orders_of(world: World, *, log_start_offset: int = 0, end_offset: int = 500) -> FakeLog:
    return world.kafka.add_log(ORDERS, log_start_offset=log_start_offset, end_offset=end_offset)


SUBSCRIBED = TopicSelection(topics=("orders",))


def test_metadata_come_first_then_ids_epochs_bounds_and_the_ids_again(world: World) -> None:
    orders_of(world)
    world.tiered(started("a", 0, 99), started("c", 200, 299))

    (view,) = world.views(SUBSCRIBED)

    assert world.kafka.asked == [
        *("metadata topics", "metadata earliest", "metadata latest", "metadata fetch"),
        *("topics", "epochs", "earliest", "latest", "topics"),
    ]
    assert (view.log_start_offset, view.tier_end_offset, view.end_offset) == (0, 300, 500)
    assert (view.last_stable_offset, view.holes) == (None, (OffsetRange(100, 200),))


ID, OTHER_ID = uuid_to_text(ORDERS.topic_id), uuid_to_text(OTHER.topic_id)


@for_each(
    "committed, start",
    [(None, 0), ((40, ID), 40), ((40, OTHER_ID), 0), ((9, f"{ID} 40 {OTHER_ID} 9"), 40), ((300, ID), 200)],
)
def test_a_tier_of_our_own_starts_where_it_or_the_group_says(
    tmp_path: Path, committed: tuple[int, str] | None, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed for another topic id does not count, nor what lies above the broker's own log start."""
    world = World(tmp_path)
    orders_of(world, log_start_offset=200)
    world.tiered(started("a", 0, 99), started("b", 100, 299))
    kept = {}
    if committed is not None:
        kept["orders", 0] = GroupOffset(*committed)
    monkeypatch.setattr(BrokerClient, "committed_offsets", lambda _self, group, _asked: kept if group else {})

    (view,) = world.views(SUBSCRIBED, owns_tier=True)

    assert (view.log_start_offset, view.end_offset, view.holes) == (start, 500, ())


def test_times_and_log_starts_of_a_tier_of_our_own_are_the_tiers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: the broker's own, so that what it had deleted was passed over in silence, or given up as lost."""
    monkeypatch.setattr(BrokerClient, "committed_offsets", lambda *_: {})
    made = [build_segment([data_batch(first, record_count=10)]) for first in (0, 10, 20)]
    tiered = [publish(world.tier_dir, ORDERS, each) for each in made]
    world.tiered(*(replace(each, state=COPY_STARTED) for each in tiered))
    times = {5: 25, 10: 25, 26: 26, 40: 40, 70: -1}
    log = orders_of(world, log_start_offset=25, end_offset=60)
    log.times = {FIRST_TIMESTAMP_MS + after_ms: told for after_ms, told in times.items()}
    for index in ("none is lost", "timeindex", "index"):
        for each in tiered:
            object_path(world.tier_dir, each, index).unlink(missing_ok=True)
        (view,) = world.views(SUBSCRIBED, owns_tier=True)
        for after_ms, expected in ((5, 5), (10, 10), (26, 26), (40, 40), (70, 60)):
            given = {"startingTimestamp": str(FIRST_TIMESTAMP_MS + after_ms)}
            given["startingOffsetsByTimestampStrategy"] = "latest"
            options = parse_options({"config": "a", "subscribe": "orders", **given})
            assert starting_offsets([view], options, world.kafka.client()) == {("orders", 0): expected}, (index, given)
    assert world.view(owns_tier=True).log_starts([("orders", 0)]) == {("orders", 0): 0}
    assert world.view(owns_tier=False).log_starts([("orders", 0)]) == {("orders", 0): 25}


def test_a_segment_that_becomes_remote_after_the_metadata_is_left_to_kafka(world: World) -> None:
    orders_of(world)
    world.tiered(started("a", 0, 99))
    world.kafka.hooks["epochs"] = lambda: finish(world.catalog, started("b", 100, 199))

    (view,) = world.views(SUBSCRIBED)

    # Whether seen or not: what is claimed is contiguous and served, and the rest is the log's.
    assert view.holes == ()
    assert view.tier_end_offset in (100, 200)
    assert view.end_offset == 500


def test_a_log_start_that_moves_while_questions_are_asked_makes_no_hole(world: World) -> None:
    said = orders_of(world)
    deleted, kept = started("a", 0, 99), started("b", 100, 199)
    world.tiered(deleted, kept)

    def retention() -> None:
        said.log_start_offset = 100
        apply_all(world.catalog, moved(deleted, DELETE_STARTED))

    world.kafka.hooks["epochs"] = retention

    (view,) = world.views(SUBSCRIBED)

    assert view.holes == ()
    assert (view.log_start_offset, view.tier_end_offset) == (100, 200)


def test_a_topic_created_again_between_two_questions_has_nothing_old(world: World) -> None:
    orders_of(world)
    world.tiered(started("a", 0, 99))
    successor = TopicIdPartition(named_uuid("orders, again"), 0, "orders")
    world.kafka.hooks["latest"] = lambda: world.kafka.add_log(successor, end_offset=7)

    (view,) = world.views(SUBSCRIBED)

    assert (view.partition, view.segments, view.end_offset) == (successor, (), 7)
    assert world.kafka.asked.count("metadata topics") == 2


def test_named_topics_and_partitions_must_exist(world: World) -> None:
    orders_of(world)

    with pytest.raises(TierViewError, match="do not exist: nothing"):
        world.views(TopicSelection(topics=("orders", "nothing")))
    with pytest.raises(TierViewError, match="do not exist: orders-3"):
        world.views(TopicSelection(assigned={"orders": (0, 3)}))


def test_a_pattern_takes_the_topics_that_match_wholly_but_internal_ones(world: World) -> None:
    for topic in ("orders", "orders-eu", "my-orders", "__consumer_offsets"):
        world.kafka.add_log(named_partition(topic))

    views = world.views(TopicSelection(pattern="orders.*|__consumer.*"))

    assert [view.partition.topic for view in views] == ["orders", "orders-eu"]
    assert world.views(TopicSelection(pattern="nothing")) == []


def test_assigned_partitions_are_the_only_ones(world: World) -> None:
    for number in range(3):
        world.kafka.add_log(named_partition("orders", number), end_offset=number)

    views = world.views(TopicSelection(assigned={"orders": (0, 2)}))

    assert [view.key for view in views] == [("orders", 0), ("orders", 2)]
    # Brokers without topic ids get an error that says so.
    world.kafka.add_log(TopicIdPartition(ZERO_UUID, 0, "orders"))
    with pytest.raises(TierViewError, match="no topic id"):
        world.views(SUBSCRIBED)


def test_a_partition_that_the_catalog_refused_is_an_error_not_a_hole(world: World) -> None:
    orders_of(world)
    world.catalog = Catalog(segments_max=1)
    finish(world.catalog, started("first", 0, 9, partition=OTHER))
    world.catalog.apply(started("a", 0, 99), initialized=True)

    with pytest.raises(TierViewError, match="the catalog is full"):
        world.views(SUBSCRIBED)


def test_read_committed_ends_at_both_last_stable_offsets(world: World) -> None:
    said = orders_of(world)
    said.last_stable_offset = 450
    still_open = ProducerState(7, 0, 0, 60, 0, 0, 0, current_transaction_first_offset=60)
    segment = build_segment([data_batch(0, record_count=100)], producers=[still_open])
    publish(world.tier_dir, ORDERS, segment)
    copied = metadata_of(ORDERS, segment, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    world.tiered(copied)

    (view,) = world.views(SUBSCRIBED, read_committed=True)

    assert (view.tier_end_offset, view.last_stable_offset, view.readable_end_offset) == (100, 60, 60)
    assert view.end_offset == 450
