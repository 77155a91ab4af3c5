"""Everything behind the services of a tier of our own, in memory: `OffsetsWorld` with log starts that move.

    world = OwnTierWorld(nursery)
    orders = world.add_own("orders", local_log_start_offset=1000)      # what the broker has dropped is below that
    (answer,) = await world.own_answers([("orders", 0, EARLIEST)])

The broker knows nothing of the tier: it says EARLIEST of its own local log, and of leader epochs below that it says
what `broker_epochs` make it say.
"""

import datetime
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio
from kio.schema.errors import ErrorCode

from protocol.client.errors import UpstreamError
from protocol.delete_records import DeleteRecordsAnswer
from protocol.delete_records import decode_response as decode_deleted
from protocol.offset_for_leader_epoch import LeaderEpochAnswer
from protocol.offset_for_leader_epoch import decode_response as decode_epochs
from protocol.wire.framing import decode_request_header
from protocol.wire.identifiers import ApiKey
from proxy.connection.request_handlers import Relay
from proxy.offsets.delete_records import DeleteRecordsService
from proxy.offsets.leader_epochs import LeaderEpochsService
from proxy.offsets.own_list_offsets import OwnListOffsetsService
from proxy.offsets.tier_offsets import TierOffsets
from storage.model import TopicIdPartition
from tests.support import kio_frames
from tests.support.fake_wire import FakeWire
from tests.support.offsets_world import OffsetsBroker, OffsetsWorld, frame_of, request_of
from tests.support.tier_world import NODE_ID, TierWorld

CORRELATION_ID = 4711
Deletion = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class ScriptedLogStarts:
    """MovableLogStarts: the catalog's first offsets, and what was raised; `raises` is how raising fails."""

    world: TierWorld
    raised: dict[TopicIdPartition, int] = field(default_factory=dict)
    raises: UpstreamError | None = None
    delay_s: float = 0.0

    def get(self, partition: TopicIdPartition) -> int | None:
        starts = self.world.catalog.epoch_starts(partition.topic_id, partition.partition)
        return max(min(starts.values()), self.raised.get(partition, 0)) if starts else None

    async def raise_all(self, offsets: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
        await trio.sleep(self.delay_s)
        if self.raises is not None:
            raise self.raises
        self.raised |= {key: max(offset, self.raised.get(key, 0)) for key, offset in offsets.items()}
        return {partition: max(self.raised[partition], self.get(partition) or 0) for partition in offsets}


class OwnTierBroker(OffsetsBroker):
    """A broker without remote storage; it answers DeleteRecords and OffsetForLeaderEpoch too."""

    def __init__(self, world: TierWorld) -> None:
        super().__init__(world)
        self.frames: list[bytes] = []
        """Of the requests that are not ListOffsets."""
        self.codes: dict[tuple[str, int], int] = {}
        """What those are answered with."""
        self.broker_epochs: dict[tuple[str, int], Sequence[tuple[int, int]]] = {}
        """Leader epochs and their starts; the first begins where the local log does."""
        self._tier_world = world

    async def answer(self, frame: bytes) -> bytes:
        header = decode_request_header(memoryview(frame))
        if header.api_key == ApiKey.LIST_OFFSETS:
            return await super().answer(frame)
        self.frames.append(frame)
        schema = kio_frames.schema(header.api_key, header.api_version, kind="request")
        request = kio_frames.decode(schema, frame[header.body_position :])
        answer = self._delete if header.api_key == ApiKey.DELETE_RECORDS else self._epochs
        values = {"topics": [self._topic(topic, answer) for topic in request.topics]}
        response = kio_frames.fill(kio_frames.schema(header.api_key, header.api_version), values)
        return kio_frames.response_frame(response, header.correlation_id)

    def _topic(self, topic: Any, answer: Any) -> dict[str, object]:
        name = topic.name if hasattr(topic, "name") else topic.topic
        return {"name": name, "topic": name, "partitions": [answer(name, asked) for asked in topic.partitions]}

    def _delete(self, topic: str, asked: Any) -> dict[str, object]:
        number = int(asked.partition_index)
        log = self._tier_world.broker.named()[topic, number]
        code = self.codes.get((topic, number), 0)
        if not code:
            offset = log.high_watermark if asked.offset == -1 else asked.offset
            log.local_log_start_offset = log.log_start_offset = max(log.local_log_start_offset, offset)
        return {
            "partition_index": number,
            "low_watermark": -1 if code else log.local_log_start_offset,
            "error_code": ErrorCode(code),
        }

    def _epochs(self, topic: str, asked: Any) -> dict[str, object]:
        number = int(asked.partition)
        code = self.codes.get((topic, number), 0)
        epoch, end = (-1, -1) if code else self._epoch_end(topic, number, asked.leader_epoch)
        return {"partition": number, "error_code": ErrorCode(code), "leader_epoch": epoch, "end_offset": end}

    def _epoch_end(self, topic: str, number: int, asked: int) -> tuple[int, int]:
        """As LeaderEpochFileCache.endOffsetFor has it."""
        log = self._tier_world.broker.named()[topic, number]
        entries = self.broker_epochs.get((topic, number)) or [(log.leader_epoch, log.local_log_start_offset)]
        if asked == entries[-1][0]:
            return asked, log.end_offset
        higher = [start for epoch, start in entries if epoch > asked]
        if not higher:
            return -1, -1
        floor = [epoch for epoch, _ in entries if epoch <= asked]
        return (floor[-1] if floor else asked), higher[0]


class OwnTierWorld(OffsetsWorld):
    """All of it."""

    def __init__(self, nursery: trio.Nursery, *, node_id: int | None = NODE_ID) -> None:
        super().__init__(nursery, node_id=node_id)
        world = self.tier_world
        self.is_catalog_loaded = True
        self.log_starts = ScriptedLogStarts(world)
        self.tier_offsets = TierOffsets(
            catalog=world.catalog,
            tail=world.tail,
            tier=world.tier,
            cluster=world.own_cluster,
            client=world.frontier_client,
            lookup=self.lookup,
            log_starts=self.log_starts,
            is_catalog_loaded=lambda: self.is_catalog_loaded,
        )
        self.own_service = OwnListOffsetsService(self.tier_offsets)
        self.leader_epochs = LeaderEpochsService(self.tier_offsets)
        self.delete_records = DeleteRecordsService(self.tier_offsets)
        self.broker = self.own_broker = OwnTierBroker(world)
        self.wire = FakeWire(self.broker, nursery, node_id=node_id)

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
        offsets: dict[str, Any] = {
            "log_start_offset": local_log_start_offset,
            "local_log_start_offset": local_log_start_offset,
        }
        if epochs is None:
            return self.add(topic, number, **offsets, **fields)
        partition = self.add(topic, number, segments=(), **offsets, **fields)
        log = self.log(partition)
        log.epoch_ends.clear()
        ends = [*[*epochs.values()][1:], local_log_start_offset]
        for (epoch, start), end in zip(epochs.items(), ends, strict=True):
            self.tier_world.add_segment(partition, start, end - 1, epochs={epoch: start}, newest_ms=end)
            log.epoch_ends[epoch] = (epoch, end)
        return partition

    async def own_answers(
        self, questions: Sequence[tuple[str, int, int]], **fields: Any
    ) -> list[tuple[int, int, int, int]]:
        """Of each partition: error code, timestamp, offset, leader epoch."""
        theirs, self.service = self.service, self.own_service  # type: ignore[assignment]  # it is asked alike
        try:
            return await self.answers(questions, **fields)
        finally:
            self.service = theirs

    async def own_is_relayed(self, questions: Sequence[tuple[str, int, int]], **fields: Any) -> bool:
        frame = frame_of(request_of(questions, **fields))
        return isinstance(await self.own_service.handle(memoryview(bytearray(frame)), self.wire), Relay)

    async def delete(
        self, deletions: Sequence[Deletion], *, version: int = 2, timeout_ms: int = 0
    ) -> list[DeleteRecordsAnswer] | None:
        """The answers; None: it is relayed."""
        frame = delete_frame(deletions, version=version, timeout_ms=timeout_ms)
        outcome = await self.delete_records.handle(memoryview(bytearray(frame)), self.wire)
        return None if isinstance(outcome, Relay) else decode_deleted(_checked(outcome), version)

    async def epoch_ends(self, asked: Sequence[Deletion], *, version: int = 4) -> list[LeaderEpochAnswer] | None:
        """The answers to questions about (topic, partition, leader epoch); None: it is relayed."""
        frame = epochs_frame(asked, version=version)
        outcome = await self.leader_epochs.handle(memoryview(bytearray(frame)), self.wire)
        return None if isinstance(outcome, Relay) else decode_epochs(_checked(outcome), version)


def delete_frame(deletions: Sequence[Deletion], *, version: int, timeout_ms: int = 0) -> bytes:
    """A client's DeleteRecords."""
    topics: dict[str, list[dict[str, object]]] = {}
    for topic, number, offset in deletions:
        topics.setdefault(topic, []).append({"partition_index": number, "offset": offset})
    values = {
        "topics": [{"name": topic, "partitions": asked} for topic, asked in topics.items()],
        "timeout": datetime.timedelta(milliseconds=timeout_ms),
    }
    schema = kio_frames.schema(ApiKey.DELETE_RECORDS, version, kind="request")
    return kio_frames.request_frame(kio_frames.fill(schema, values), correlation_id=CORRELATION_ID)


def epochs_frame(asked: Sequence[Deletion], *, version: int) -> bytes:
    """A client's OffsetForLeaderEpoch about (topic, partition, leader epoch)."""
    topics: dict[str, list[dict[str, object]]] = {}
    for topic, number, epoch in asked:
        partition: dict[str, object] = {"partition": number, "current_leader_epoch": -1, "leader_epoch": epoch}
        topics.setdefault(topic, []).append(partition)
    values = {
        "replica_id": -1,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    schema = kio_frames.schema(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, kind="request")
    return kio_frames.request_frame(kio_frames.fill(schema, values), correlation_id=CORRELATION_ID)


def _checked(buffers: Sequence[Any]) -> memoryview:
    """The whole answer, which is under the client's correlation id."""
    with io.BytesIO() as whole:
        whole.writelines(buffers)
        frame = whole.getvalue()
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, CORRELATION_ID)
    return memoryview(frame)
