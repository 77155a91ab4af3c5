"""Everything behind the services that tell of offsets, in memory: a `TierWorld` with a scripted search.

    world = OffsetsWorld(nursery)
    orders = world.add("orders", segments=[(0, 499, 5000), (500, 999, 9000)])     # first, last offset, newest time
    world.search.results[orders] = FoundTimestamp(4000, 17, 5)
    (answer,) = (await world.list_offsets([("orders", 0, 4000)])).partitions

With a tier of our own, whose log starts move:

    world = OffsetsWorld(nursery, owns_tier=True)
    orders = world.add_own("orders", local_log_start_offset=1000)      # what the broker has dropped is below that
    (answer,) = await world.answers([("orders", 0, EARLIEST)])

`ScriptedSearch` looks into no segment. The broker of a tier of our own knows nothing of that: it says EARLIEST of its
own local log, and of leader epochs below that it says what a log's `local_epochs` make it say.
"""

import datetime
import io
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import trio

from protocol.delete_records import DeleteRecordsAnswer
from protocol.delete_records import decode_response as decode_deleted
from protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, encode_request
from protocol.list_offsets import decode_response as decode_offsets
from protocol.offset_for_leader_epoch import LeaderEpochAnswer
from protocol.offset_for_leader_epoch import decode_response as decode_epochs
from protocol.wire.identifiers import ApiKey, IsolationLevel
from proxy.connection.request_handlers import RELAY, Answer, Exchange, Relay
from proxy.offsets.service import LOOKUP_TIMEOUT_S, ListOffsetsService
from proxy.offsets.timestamp_lookup import TimestampLookup
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition
from storage.reading.timestamp_search import FoundTimestamp, TimestampSearch
from tests.support import kio_frames
from tests.support.fake_wire import FakeWire
from tests.support.tier_world import NODE_ID, TierWorld

CORRELATION_ID = 4711

Question = tuple[str, int, int]
"""Topic, partition, and a timestamp, an offset or a leader epoch."""


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


class OffsetsWorld(TierWorld):
    """All of it, and one client connection, `wire`."""

    def __init__(self, nursery: trio.Nursery, *, node_id: int | None = NODE_ID, owns_tier: bool = False) -> None:
        super().__init__(nursery, owns_tier=owns_tier)
        self.is_catalog_loaded = True
        self.tier.is_loaded = lambda: self.is_catalog_loaded
        self.search = ScriptedSearch(self.catalog)
        search = cast(TimestampSearch, self.search)
        self.lookup = TimestampLookup(self.tier, search)
        list_offsets = ListOffsetsService(self.lookup, self.fallback).handle
        owners = self.owner.exchanges(self.tier, search, self.generation)(LOOKUP_TIMEOUT_S)
        self.exchanges: Mapping[int, Exchange] = {ApiKey.LIST_OFFSETS: list_offsets, **owners}
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
        partition = self.add_partition(topic, number, segments=(), high_watermark=high_watermark, **offsets)
        for first, last, newest_ms in segments:
            self.add_segment(partition, first, last, newest_ms=newest_ms)
        return partition

    def add_own(
        self,
        topic: str = "orders",
        number: int = 0,
        *,
        local_log_start_offset: int = 1000,
        epochs: Mapping[int, int] | None = None,
        **fields: Any,
    ) -> TopicIdPartition:
        """A partition as `add` makes it, whose broker has dropped what is below its local log start.

        Args:
            epochs: leader epochs and their first offsets in the tier, whose segments are cut there; None: all is of
                one epoch.
        """
        fields |= dict.fromkeys(("log_start_offset", "local_log_start_offset"), local_log_start_offset)
        if epochs is None:
            return self.add(topic, number, **fields)
        partition = self.add(topic, number, segments=(), **fields)
        log = self.log(partition)
        log.epoch_ends.clear()
        ends = [*[*epochs.values()][1:], local_log_start_offset]
        for (epoch, start), end in zip(epochs.items(), ends, strict=True):
            self.add_segment(partition, start, end - 1, epochs={epoch: start}, newest_ms=end)
            log.epoch_ends[epoch] = (epoch, end)
        return partition

    # --- ListOffsets ---

    async def list_offsets(self, questions: Sequence[Question], **fields: Any) -> ListOffsetsResponse:
        """The answer to a request that is not relayed."""
        request = request_of(questions, **fields)
        frame = _answered(await self._exchange(ApiKey.LIST_OFFSETS, frame_of(request)))
        assert frame is not None, "the request was relayed"
        return decode_offsets(frame, request.api_version)

    async def answers(self, questions: Sequence[Question], **fields: Any) -> list[tuple[int, int, int, int]]:
        """For each partition: error code, timestamp, offset, leader epoch."""
        response = await self.list_offsets(questions, **fields)
        assert [(each.topic, each.partition) for each in response.partitions] == [each[:2] for each in questions]
        return [(each.error_code, each.timestamp, each.offset, each.leader_epoch) for each in response.partitions]

    async def is_relayed(self, questions: Sequence[Question], **fields: Any) -> bool:
        """Nothing in it is changed."""
        frame = frame_of(request_of(questions, **fields))
        patched = memoryview(bytearray(frame))
        relayed = await self.exchanges[ApiKey.LIST_OFFSETS](patched, self.wire) is RELAY
        assert bytes(patched) == frame
        return relayed

    # --- what a tier of our own answers beside that; None: it is relayed ---

    async def delete(
        self, deletions: Sequence[Question], *, version: int = 2, timeout_ms: int = 0
    ) -> list[DeleteRecordsAnswer] | None:
        frame = delete_frame(deletions, version=version, timeout_ms=timeout_ms)
        answer = _answered(await self._exchange(ApiKey.DELETE_RECORDS, frame))
        return None if answer is None else decode_deleted(answer, version)

    async def epoch_ends(self, asked: Sequence[Question], *, version: int = 4) -> list[LeaderEpochAnswer] | None:
        frame = epochs_frame(asked, version=version)
        answer = _answered(await self._exchange(ApiKey.OFFSET_FOR_LEADER_EPOCH, frame))
        return None if answer is None else decode_epochs(answer, version)

    async def _exchange(self, api_key: ApiKey, frame: bytes) -> Answer | Relay:
        return await self.exchanges[api_key](memoryview(bytearray(frame)), self.wire)


def request_of(questions: Sequence[Question], **fields: Any) -> ListOffsetsRequest:
    """A consumer's ListOffsets: v11 unless `fields` says otherwise."""
    partitions = [ListOffsetsPartition(topic, partition, -1, time) for topic, partition, time in questions]
    request = ListOffsetsRequest(11, CORRELATION_ID, "a-client", -1, IsolationLevel.READ_UNCOMMITTED, partitions)
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def frame_of(request: ListOffsetsRequest) -> bytes:
    """The frame that a client sends for it."""
    return encode_request(request, correlation_id=request.correlation_id)


def delete_frame(deletions: Sequence[Question], *, version: int, timeout_ms: int = 0) -> bytes:
    """A client's DeleteRecords."""
    topics: dict[str, list[dict[str, object]]] = {}
    for topic, number, offset in deletions:
        topics.setdefault(topic, []).append({"partition_index": number, "offset": offset})
    values = {
        "topics": [{"name": topic, "partitions": asked} for topic, asked in topics.items()],
        "timeout": datetime.timedelta(milliseconds=timeout_ms),
    }
    return _client_frame(ApiKey.DELETE_RECORDS, version, values)


def epochs_frame(asked: Sequence[Question], *, version: int) -> bytes:
    """A client's OffsetForLeaderEpoch."""
    topics: dict[str, list[dict[str, object]]] = {}
    for topic, number, epoch in asked:
        partition: dict[str, object] = {"partition": number, "current_leader_epoch": -1, "leader_epoch": epoch}
        topics.setdefault(topic, []).append(partition)
    named = [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()]
    return _client_frame(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -1, "topics": named})


def _client_frame(api_key: ApiKey, version: int, values: Mapping[str, object]) -> bytes:
    schema = kio_frames.schema(api_key, version, kind="request")
    return kio_frames.request_frame(kio_frames.fill(schema, values), correlation_id=CORRELATION_ID)


def _answered(outcome: Answer | Relay) -> memoryview | None:
    """The whole answer, which is under the client's correlation id; None: the request was relayed."""
    if isinstance(outcome, Relay):
        return None
    with io.BytesIO() as whole:
        whole.writelines(outcome)
        frame = whole.getvalue()
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, CORRELATION_ID)
    return memoryview(frame)
