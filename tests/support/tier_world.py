"""Everything behind a FetchService, in memory: brokers, catalog, a scripted tier reader, and a client before it.

    world = TierWorld(nursery)
    orders = world.add_partition("orders", segments=[(0, 499), (500, 999)], local_log_start_offset=1000)
    answer = await world.client().fetch([ask(orders, 17)])

Its parts are the real ones (catalog, frontiers, lineages, tier, plan, probe, exchange) but for the two ends:
`ScriptedReader` stands for the objects and `FakeBrokerLog` for the broker, also for Tidegate's own questions.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import trio

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.cluster_view import PartitionLeader, TopicMetadata
from protocol.client.errors import UpstreamError
from protocol.client.offset_questions import EpochEndOffset, OffsetAnswer, OffsetQuery
from protocol.fetch.messages import NO_TAGS, FetchPartition, FetchRequest, FetchResponse
from protocol.fetch.requests import encode_request
from protocol.fetch.response import decode_response
from protocol.fetch.sessions import SessionSlots
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import ApiKey
from proxy.connection.audit import ClientAudit
from proxy.connection.client_reads import ClientReads
from proxy.connection.request_handlers import Relay
from proxy.fetch.authorities import LogStartGeneration
from proxy.fetch.fallback import Fallback, FallbackSettings
from proxy.fetch.frontiers import Frontiers
from proxy.fetch.lineages import Lineages
from proxy.fetch.service import FetchService, FetchSettings
from proxy.fetch.tier import Tier
from proxy.tier_owner import BROKERS_OWN_IT, TierOwner
from proxy.upstream.cluster import Cluster
from proxy.upstream.partition_questions import FrontierClient
from standalone.serving.log_starts import TierLogStarts
from standalone.serving.owner import WeOwnIt
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from storage.reading.aborted_transactions import TierAborts
from storage.reading.reader import ReadTime, TierReader, TierRecords
from storage.reading.segment_finder import SegmentFinder
from storage.steps import Steps, waited
from tests.support.fake_wire import BATCH_BYTES, FakeBrokerLog, FakePartitionLog, FakeWire, tier_batch
from tests.support.segments import topic_partition, uuid_of

NODE_ID = 1
LEADER_EPOCH = 5

TopicPartition = tuple[str, int]


class FakeClient:
    """Tidegate's own questions, as FrontierClient asks them, answered by the models."""

    def __init__(self, brokers: Mapping[int, FakeBrokerLog]) -> None:
        self.brokers = brokers
        self.failure: Exception | None = None
        self.latency_s = 0.0
        self.offsets_asked: list[tuple[int, list[TopicPartition]]] = []
        self.timestamps_asked: set[int] = set()
        self.epochs_asked: list[tuple[int, str, int, list[int]]] = []
        self.epoch_requests: list[list[TopicPartition]] = []
        self.epoch_error_codes: list[int] = []
        """For the next answers to epoch questions."""
        self.ids: dict[str, bytes] = {}
        """Ids of topics by name, as brokers know them."""
        self.ids_failure: Exception | None = None
        self.ids_asked: list[list[str]] = []

    async def list_offsets(self, node_id: int, queries: Sequence[OffsetQuery]) -> dict[OffsetQuery, OffsetAnswer]:
        self.timestamps_asked.update(timestamp for *_, timestamp in queries)
        self.offsets_asked.append((node_id, list(dict.fromkeys((topic, number) for topic, number, _ in queries))))
        await trio.sleep(self.latency_s)
        if self.failure is not None:
            raise self.failure
        logs = self.brokers[node_id].named()
        return {query: _offset(logs.get(query[:2]), query[2]) for query in queries}

    async def epoch_end_offsets(
        self, node_id: int, asked: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, dict[int, EpochEndOffset]]:
        self.epochs_asked += [(node_id, *partition, list(epochs)) for partition, epochs in asked.items()]
        self.epoch_requests.append([*asked])
        await trio.sleep(self.latency_s)
        if self.failure is not None:
            raise self.failure
        return {partition: self._epoch_ends(node_id, partition, epochs) for partition, epochs in asked.items()}

    async def topic_ids(self, node_id: int, names: Sequence[str]) -> dict[str, bytes]:
        await trio.lowlevel.checkpoint()
        self.ids_asked.append(list(names))
        if self.ids_failure is not None:
            raise self.ids_failure
        return {name: self.ids[name] for name in names if name in self.ids}

    def _epoch_ends(self, node_id: int, partition: TopicPartition, epochs: Sequence[int]) -> dict[int, EpochEndOffset]:
        if self.epoch_error_codes:
            code = self.epoch_error_codes.pop(0)
            return {epoch: EpochEndOffset(code, -1, -1) for epoch in epochs}
        log = self.brokers[node_id].named().get(partition)
        if log is None:
            return {epoch: EpochEndOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1) for epoch in epochs}
        return {epoch: EpochEndOffset(0, *log.epoch_end(epoch)) for epoch in epochs}

    @property
    def partitions_asked(self) -> list[list[TopicPartition]]:
        """For each question about offsets: the partitions."""
        return [partitions for _, partitions in self.offsets_asked]


def _offset(log: FakePartitionLog | None, timestamp: int) -> OffsetAnswer:
    if log is None:
        return OffsetAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
    offsets: dict[int, int] = {
        OffsetTimestamp.EARLIEST_LOCAL: log.local_log_start_offset,
        OffsetTimestamp.EARLIEST: log.log_start_offset,
        OffsetTimestamp.LATEST: log.end_offset,
    }
    return OffsetAnswer(log.offsets_error_code, offsets[timestamp], log.leader_epoch, -1)


class FakeClusterView:
    """A Cluster's topics and leaders, as a test sets them; `unlearned` topics are known after they were asked for."""

    def __init__(self) -> None:
        self.ids: dict[str, bytes] = {}
        self.unlearned: dict[str, bytes] = {}
        self.leaders: dict[tuple[bytes, int], PartitionLeader] = {}
        self.learned: list[list[str]] = []
        self.on_learn: Callable[[], None] | None = None
        self.latency_s = 0.0
        self.failure: Exception | None = None
        self.room = 1000
        self.fetch_versions: dict[int, int] = {}
        """The newest that a broker has, where it has said so."""

    @property
    def names_room(self) -> int:
        return self.room

    async def learn_topics(self, names: Sequence[str]) -> list[TopicMetadata]:
        self.learned.append(list(names))
        await trio.sleep(self.latency_s)
        if self.failure is not None:
            raise self.failure
        if self.on_learn is not None:
            self.on_learn()
        self.ids.update({name: self.unlearned[name] for name in names if name in self.unlearned})
        return []

    async def learn_names(self, names: Sequence[str]) -> None:
        await self.learn_topics(names)

    def topic_id(self, name: str) -> bytes | None:
        return self.ids.get(name)

    def newest_version(self, node_id: int, api_key: int) -> int | None:
        return self.fetch_versions.get(node_id) if api_key == ApiKey.FETCH else None

    def leader_of(self, topic_id: bytes, partition: int) -> PartitionLeader | None:
        return self.leaders.get((topic_id, partition))

    def forget_topic(self, topic_id: bytes) -> None:
        self.ids = {name: known for name, known in self.ids.items() if known != topic_id}


class ScriptedReader:
    """A TierReader over the catalog's segments: it finds them as the real one does, and gives `tier_batch`es, as slowly
    and wrongly as a test says."""

    def __init__(self, catalog: Catalog) -> None:
        self.finder = SegmentFinder(catalog)
        self.delay_s = 0.0
        self.delays_s: dict[TopicIdPartition, float] = {}
        self.failures: dict[TopicIdPartition, Exception] = {}
        self.reads: list[tuple[TopicIdPartition, int, int, bool]] = []
        """Partition, offset, max_bytes, minimum_one_batch."""
        self.aborts: dict[TopicIdPartition, TierAborts] = {}
        """What READ_COMMITTED reads find; where it is not said, nothing in all segments that follow on each other."""

    def forget_reader(self, reader: Hashable) -> None:
        """Nothing is kept of readers."""

    def read(self, *args: Any, **wishes: Any) -> Steps[TierRecords]:
        return (yield from waited(partial(self.give, *args, **wishes)))

    async def give(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        minimum_one_batch: bool,
        lineage: LeaderEpochLineage,
        reader: Hashable = None,
        committed: bool = False,
        time: ReadTime | None = None,
        finder: SegmentFinder | None = None,
    ) -> TierRecords:
        finder = finder or self.finder
        segment = finder.segment_for(partition, offset, lineage)
        if committed:
            finder.check_end(segment)
        self.reads.append((partition, offset, max_bytes, minimum_one_batch))
        await trio.sleep(self.delays_s.get(partition, self.delay_s))
        if partition in self.failures:
            raise self.failures[partition]
        offset, end_offset = max(offset, segment.start_offset), segment.end_offset
        if finder.cuts_at is not None and committed:
            end_offset = min(end_offset, finder.cuts_at - 1)
        count = min(max(max_bytes // BATCH_BYTES, int(minimum_one_batch)), end_offset - offset + 1)
        batches = [memoryview(tier_batch(partition.partition, offset + number)) for number in range(count)]
        aborts = self._scripted_aborts(segment, lineage, finder) if committed and count else None
        return TierRecords(batches, count * BATCH_BYTES, first_batch_too_large=not count, aborts=aborts)

    def _scripted_aborts(
        self, segment: RemoteLogSegmentMetadata, lineage: LeaderEpochLineage, finder: SegmentFinder
    ) -> TierAborts:
        following: RemoteLogSegmentMetadata | None = segment
        end_offset = segment.end_offset
        while following is not None:
            end_offset = following.end_offset
            following = finder.find(segment.topic_id_partition, end_offset + 1, lineage)
        nothing = TierAborts([], segment.end_offset + 1, finder.tells_all_aborts, searched_below=end_offset + 1)
        return self.aborts.get(segment.topic_id_partition, nothing)


@dataclass
class FakeTail:
    """The metadata topic: `on_catch_up` is what it still holds; `caught_up` what was asked for."""

    caught_up: list[TopicIdPartition] = field(default_factory=list)
    on_catch_up: Callable[[], None] | None = None
    delay_s: float = 0.0
    failure: Exception | None = None
    not_ready: set[TopicIdPartition] = field(default_factory=set)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return partition not in self.not_ready

    async def catch_up(self, partition: TopicIdPartition) -> None:
        self.caught_up.append(partition)
        await trio.sleep(self.delay_s)
        if self.failure is not None:
            raise self.failure
        if self.on_catch_up is not None:
            self.on_catch_up()


@dataclass
class FakeLogStarts:
    """TierLogStarts: where the catalog's segments begin, or at `raised` if that is higher; `raises` is how raising
    fails."""

    catalog: Catalog
    raised: dict[TopicIdPartition, int] = field(default_factory=dict)
    raises: UpstreamError | None = None
    delay_s: float = 0.0

    def get(self, partition: TopicIdPartition) -> int | None:
        summary = self.catalog.summary(partition)
        return None if summary is None else max(summary.start_offset, self.raised.get(partition, 0))

    async def raise_all(self, offsets: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
        await trio.sleep(self.delay_s)
        if self.raises is not None:
            raise self.raises
        self.raised |= {key: max(offset, self.raised.get(key, 0)) for key, offset in offsets.items()}
        return {partition: max(self.raised[partition], self.get(partition) or 0) for partition in offsets}


class TierWorld:
    """All of it. `settings` are those of every client made afterwards."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        frontier_age_s_max: float = 1.0,
        broker: FakeBrokerLog | None = None,
        open_reader: Callable[[Catalog], ScriptedReader] = ScriptedReader,
        owns_tier: bool = False,
        segment_s_max: float = 0.0,
    ) -> None:
        self.nursery = nursery
        self.broker = broker or FakeBrokerLog()
        self.brokers = {NODE_ID: self.broker}
        self.client_of_ours = FakeClient(self.brokers)
        self.cluster = FakeClusterView()
        self.catalog = Catalog()
        self.tail = FakeTail()
        self.reader = open_reader(self.catalog)
        self.meters = Meters(Registry())
        # Each has what the parts below ask of the class that it stands for, and nothing else of it.
        self.frontier_client = cast(FrontierClient, self.client_of_ours)
        self.own_cluster = cast(Cluster, self.cluster)
        self.log_starts = FakeLogStarts(self.catalog)
        self.tier_log_starts = cast(TierLogStarts, self.log_starts)
        ours = WeOwnIt(self.catalog, self.tier_log_starts, self.meters.tier, segment_s_max=segment_s_max)
        self.owner: TierOwner = ours if owns_tier else BROKERS_OWN_IT
        self.frontiers = Frontiers(self.frontier_client, nursery, age_s_max=frontier_age_s_max, owner=self.owner)
        self.lineages = Lineages(self.frontier_client, self.own_cluster, self.catalog, nursery, self.owner)
        self.tier = Tier(
            catalog=self.catalog,
            tail=self.tail,
            reader=cast(TierReader, self.reader),
            frontiers=self.frontiers,
            lineages=self.lineages,
            cluster=self.own_cluster,
            meter=self.meters.tier,
        )
        self.fallback = Fallback(
            FallbackSettings(after_s=5.0, partitions_max=4), self.meters.fallback, left_to=self.owner.left_to
        )
        self.generation = LogStartGeneration()
        self.slots = SessionSlots()
        self.settings = FetchSettings(
            authority_age_s_max=0.0, fetch_wait_s_max=0.5, linger_s=0.02, read_prefer_tier=False
        )

    def add_partition(
        self,
        topic: str = "orders",
        number: int = 0,
        *,
        segments: Sequence[tuple[int, int]] = ((0, 499), (500, 999)),
        **offsets: int,
    ) -> TopicIdPartition:
        """A partition whose segments (first and last offset) are in the tier, all of one leader epoch.

        Args:
            offsets: fields of the broker's log: its tier ends at 1000, and so does it, unless they say otherwise.
        """
        partition = topic_partition(topic, number)
        self.cluster.ids[topic] = self.client_of_ours.ids[topic] = partition.topic_id
        self.set_leader(partition, NODE_ID)
        log = self.broker.add(partition, **offsets)
        log.epoch_ends[LEADER_EPOCH] = (LEADER_EPOCH, 2**62)
        for first, last in segments:
            self.add_segment(partition, first, last)
        return partition

    def set_leader(self, partition: TopicIdPartition, node_id: int) -> None:
        """Set what the cluster's metadata says."""
        self.cluster.leaders[partition.topic_id, partition.partition] = PartitionLeader(node_id, LEADER_EPOCH)

    def log(self, partition: TopicIdPartition) -> FakePartitionLog:
        return self.broker.logs[partition.topic_id, partition.partition]

    def add_segment(
        self,
        partition: TopicIdPartition,
        first: int,
        last: int,
        *,
        epochs: Mapping[int, int] | None = None,
        newest_ms: int = 0,
    ) -> None:
        """One more FINISHED segment; `epochs` are leader epochs and their first offsets, `newest_ms` a time."""
        segment_id = RemoteLogSegmentId(partition, uuid_of(f"{partition} {first} {epochs}"))
        self.catalog.apply(
            RemoteLogSegmentMetadata(
                segment_id,
                start_offset=first,
                end_offset=last,
                max_timestamp_ms=newest_ms,
                broker_id=NODE_ID,
                event_timestamp_ms=0,
                segment_size_bytes=(last - first + 1) * BATCH_BYTES,
                segment_leader_epochs=epochs or {LEADER_EPOCH: first},
                txn_index_empty=True,
            ),
            initialized=True,
        )
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        self.catalog.apply(RemoteLogSegmentMetadataUpdate(segment_id, 0, finished, NODE_ID), initialized=True)

    def client(self, *, node_id: int | None = NODE_ID, audit: ClientAudit | None = None) -> "FakeFetcher":
        """One more client connection."""
        reads = ClientReads(audit=audit)
        service = FetchService(
            tier=self.tier,
            client=reads,
            fallback=self.fallback,
            settings=self.settings,
            generation=self.generation,
            slots=self.slots,
            meters=self.meters,
        )
        return FakeFetcher(service, reads, FakeWire(self.brokers[node_id or NODE_ID], self.nursery, node_id=node_id))

    def sample(self, name: str, **labels: str) -> float:
        """A metric's value; 0 when it was never fed."""
        return self.meters.registry.sample_value(name, labels) or 0.0


@dataclass
class FakeFetcher:
    """A client's connection: its service and its wire."""

    service: FetchService
    reads: ClientReads
    wire: FakeWire

    async def fetch(self, asked: Sequence[FetchPartition], **fields: int) -> FetchResponse:
        """The answer to a Fetch that is not relayed."""
        request = fetch_of(asked, **fields)
        buffers = await self.service.handle(memoryview(bytearray(client_frame(request))), self.wire)
        assert not isinstance(buffers, Relay), "the Fetch was relayed"
        response = decode_response(memoryview(b"".join(buffers)), request.api_version)
        assert response.correlation_id == request.correlation_id
        return response

    async def is_relayed(self, asked: Sequence[FetchPartition], **fields: int) -> bool:
        frame = client_frame(fetch_of(asked, **fields))
        return isinstance(await self.service.handle(memoryview(bytearray(frame)), self.wire), Relay)


def ask(
    partition: TopicIdPartition,
    offset: int,
    *,
    max_bytes: int = 10 * BATCH_BYTES,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchPartition:
    """Return what a Fetch asks of one partition."""
    return FetchPartition(
        partition.topic,
        partition.topic_id,
        partition.partition,
        current_leader_epoch,
        offset,
        last_fetched_epoch,
        -1,
        max_bytes,
    )


def fetch_of(asked: Sequence[FetchPartition], **fields: object) -> FetchRequest:
    """A consumer's Fetch: v17 with session epoch 0 unless `fields` says otherwise."""
    request = FetchRequest(
        api_version=17,
        correlation_id=4711,
        client_id="a-client",
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 * 1024 * 1024,
        isolation_level=0,
        session_id=0,
        session_epoch=0,
        session_epoch_position=None,
        partitions=list(asked),
        rack_id="rack-a",
        tags=NO_TAGS,
    )
    for name, value in fields.items():
        setattr(request, name, value)
    if request.replica_id != -1 and request.api_version >= 15:
        # Tag 1: replica id and replica epoch, with an empty tagged section.
        request.tags = b"\x01\x01\x0d" + request.replica_id.to_bytes(4, "big", signed=True) + bytes(9)
    return request


def client_frame(request: FetchRequest) -> bytes:
    """The frame that a client sends for it."""
    return encode_request(
        request,
        request.partitions,
        correlation_id=request.correlation_id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        forgotten=request.forgotten,
    )


def records_of(response: FetchResponse) -> list[bytes]:
    """The record bytes of each partition, in the answer's order."""
    return [b"".join(bytes(buffer) for buffer in answer.records) for answer in response.partitions]


def codes_of(response: FetchResponse) -> list[int]:
    """The error code of each partition."""
    return [answer.error_code for answer in response.partitions]
