"""Everything behind a ListOffsetsService, in memory: a broker, catalog, a scripted search, and a client before it.

    world = OffsetsWorld(nursery)
    orders = world.add("orders", segments=[(0, 499, 5000), (500, 999, 9000)])     # first, last offset, newest time
    world.search.results[orders] = FoundTimestamp(4000, 17, 5)
    (answer,) = (await world.list_offsets([("orders", 0, 4000)])).partitions

Its parts are the real ones (catalog, frontiers, lineages, tier, lookup) but for the two ends: `ScriptedSearch` looks
into no segment, `OffsetsBroker` answers ListOffsets by the logs of `tests.support.tier_world`.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import trio

from protocol.list_offsets import (
    ListOffsetsAnswer,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetTimestamp,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocol.wire.errors import ErrorCode
from protocol.wire.framing import decode_request_header
from protocol.wire.identifiers import ApiKey, IsolationLevel
from proxy.connection.request_handlers import RELAY, Relay
from proxy.offsets.service import ListOffsetsService
from proxy.offsets.timestamp_lookup import TimestampLookup
from storage.log.timestamp_search import FoundTimestamp, TimestampSearch
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition
from tests.support.fake_wire import FakePartitionLog, FakeWire
from tests.support.tier_world import NODE_ID, TierWorld

Question = tuple[str, int, int]
"""Topic, partition, timestamp."""

BROKERS_OWN = (77, 1234)
"""Timestamp and offset with which the broker answers every look-up by time."""


class ScriptedSearch:
    """A TimestampSearch that finds what a test says, in the segment that the real `candidate` names."""

    def __init__(self, catalog: Catalog) -> None:
        nothing: Any = None
        search = TimestampSearch(catalog=catalog, parts=nothing, cache=nothing, answers=nothing)
        self.candidate, self.is_outdated, self.is_gone = search.candidate, search.is_outdated, search.is_gone
        self.results: dict[TopicIdPartition, FoundTimestamp | Exception] = {}
        self.delays_s: dict[TopicIdPartition, float] = {}
        self.on_search: Callable[[], None] | None = None
        self.searched: list[tuple[int, int, int]] = []
        """Start offset of the segment, time, log start."""

    async def search(
        self, segment: RemoteLogSegmentMetadata, timestamp_ms: int, *, log_start_offset: int
    ) -> FoundTimestamp | None:
        self.searched.append((segment.start_offset, timestamp_ms, log_start_offset))
        await trio.sleep(self.delays_s.get(segment.topic_id_partition, 0))
        if self.on_search is not None:
            self.on_search()
        result = self.results.get(segment.topic_id_partition)
        if isinstance(result, Exception):
            raise result
        return result


class OffsetsBroker:
    """The client's broker, which nothing but ListOffsets is asked of."""

    def __init__(self, world: TierWorld) -> None:
        self.requests: list[ListOffsetsRequest] = []
        self.latency_s = 0.0
        self.throttle_times_ms = [0]
        self.latest_error_codes: dict[tuple[str, int], int] = {}
        """For LATEST only."""
        self.left_out: set[tuple[str, int]] = set()
        self._world = world

    async def answer(self, frame: bytes) -> bytes:
        header = decode_request_header(memoryview(frame))
        assert header.api_key == ApiKey.LIST_OFFSETS
        request = decode_request(memoryview(frame), header)
        self.requests.append(request)
        await trio.sleep(self.latency_s)
        throttle_time_ms = self.throttle_times_ms.pop(0) if self.throttle_times_ms else 0
        logs = self._world.broker.named()
        answers = [
            self._answer(request, asked, logs.get((asked.topic, asked.partition)))
            for asked in request.partitions
            if (asked.topic, asked.partition) not in self.left_out
        ]
        response = ListOffsetsResponse(header.correlation_id, throttle_time_ms, answers)
        return encode_response(response, header.api_version, header.correlation_id)

    def _answer(
        self, request: ListOffsetsRequest, asked: ListOffsetsPartition, log: FakePartitionLog | None
    ) -> ListOffsetsAnswer:
        is_latest = asked.timestamp == OffsetTimestamp.LATEST
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else log.error_code
        code = code or (self.latest_error_codes.get((asked.topic, asked.partition), 0) if is_latest else 0)
        answer = ListOffsetsAnswer(asked.topic, asked.partition, code)
        if code or log is None:
            return answer
        answer.leader_epoch = log.leader_epoch
        if is_latest:
            committed = request.isolation_level == IsolationLevel.READ_COMMITTED
            answer.offset = log.stable_offset if committed else log.high_watermark
        elif asked.timestamp == OffsetTimestamp.EARLIEST:
            answer.offset = log.log_start_offset
        else:
            answer.timestamp, answer.offset = BROKERS_OWN
        return answer

    @property
    def asked(self) -> list[list[Question]]:
        """What it was asked, request by request."""
        return [
            [(each.topic, each.partition, each.timestamp) for each in request.partitions] for request in self.requests
        ]


class OffsetsWorld:
    """All of it."""

    def __init__(self, nursery: trio.Nursery, *, node_id: int | None = NODE_ID) -> None:
        self.tier_world = TierWorld(nursery)
        self.search = ScriptedSearch(self.tier_world.catalog)
        self.lookup = TimestampLookup(
            tier=self.tier_world.tier,
            client=self.tier_world.frontier_client,
            lineages=self.tier_world.lineages,
            search=cast(TimestampSearch, self.search),
            meter=self.tier_world.meters.tier,
        )
        self.service = ListOffsetsService(self.lookup, self.tier_world.fallback)
        self.broker = OffsetsBroker(self.tier_world)
        self.wire = FakeWire(self.broker, nursery, node_id=node_id)

    def add(
        self,
        topic: str = "orders",
        number: int = 0,
        *,
        segments: Sequence[tuple[int, int, int]] = ((0, 499, 5000), (500, 999, 9000)),
        high_watermark: int = 1500,
        **offsets: int,
    ) -> TopicIdPartition:
        """A partition whose segments (first and last offset, newest time) are in the tier, all of one leader epoch."""
        partition = self.tier_world.add_partition(topic, number, segments=(), high_watermark=high_watermark, **offsets)
        for first, last, newest_ms in segments:
            self.tier_world.add_segment(partition, first, last, newest_ms=newest_ms)
        return partition

    def log(self, partition: TopicIdPartition) -> FakePartitionLog:
        return self.tier_world.log(partition)

    async def list_offsets(self, questions: Sequence[Question], **fields: Any) -> ListOffsetsResponse:
        """The answer to a request that is not relayed."""
        request = request_of(questions, **fields)
        buffers = await self.service.handle(memoryview(bytearray(frame_of(request))), self.wire)
        assert not isinstance(buffers, Relay), "the request was relayed"
        response = decode_response(memoryview(b"".join(buffers)), request.api_version)
        assert response.correlation_id == request.correlation_id
        return response

    async def answers(self, questions: Sequence[Question], **fields: Any) -> list[tuple[int, int, int, int]]:
        """Of each partition: error code, timestamp, offset, leader epoch."""
        response = await self.list_offsets(questions, **fields)
        assert [(each.topic, each.partition) for each in response.partitions] == [each[:2] for each in questions]
        return [(each.error_code, each.timestamp, each.offset, each.leader_epoch) for each in response.partitions]

    async def is_relayed(self, questions: Sequence[Question], **fields: Any) -> bool:
        frame = frame_of(request_of(questions, **fields))
        patched = memoryview(bytearray(frame))
        relayed = await self.service.handle(patched, self.wire) is RELAY
        assert bytes(patched) == frame
        return relayed


def request_of(questions: Sequence[Question], **fields: Any) -> ListOffsetsRequest:
    """A consumer's ListOffsets: v11 unless `fields` says otherwise."""
    partitions = [ListOffsetsPartition(topic, partition, -1, time) for topic, partition, time in questions]
    request = ListOffsetsRequest(11, 4711, "a-client", -1, IsolationLevel.READ_UNCOMMITTED, partitions)
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def frame_of(request: ListOffsetsRequest) -> bytes:
    """The frame that a client sends for it."""
    return encode_request(request, correlation_id=request.correlation_id)
