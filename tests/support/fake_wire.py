"""A scripted UpstreamWire, and the model of a broker that answers Fetch frames on it.

    broker = FakeBrokerLog()
    broker.add(partition, local_log_start_offset=1000, high_watermark=1500)
    wire = FakeWire(broker, nursery, node_id=1)
    pending = await wire.ask(ApiKey.FETCH, 17, 1, frame)

The model knows what docs/protocol.md#fetch, docs/protocol.md#fetch-sessions say of a consumer's Fetch: rights, names
and ids, leader epochs, out of range, preferred replicas, budgets with one oversize batch, the long poll, aborted
transactions that come with records only, and remote reads of its own. Beside that it answers ListOffsets, and as a
broker without a tier OffsetForLeaderEpoch and DeleteRecords. Frames are answered one after another, as brokers do.
Everything a test may change while it runs is an attribute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio
from kio.schema import errors as kio_errors

from protocol import list_offsets
from protocol.fetch.messages import TOPIC_ID_VERSION_MIN, FetchPartition, FetchRequest, PartitionAnswer
from protocol.fetch.requests import decode_request
from protocol.fetch.response import encode_response
from protocol.fetch.walker import ENDPOINTS_VERSION_MIN, RecordDropper
from protocol.list_offsets import (
    ListOffsetsAnswer,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetTimestamp,
)
from protocol.wire.endpoints import NodeAddress
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import ApiKey, IsolationLevel
from protocol.wire.request_headers import RequestHeader, decode_request_header
from proxy.connection.request_handlers import PendingAnswer
from storage.model import TopicIdPartition
from tests.support import kio_frames

BATCH_BYTES = 100
"""The size of every batch in the model, which has one record."""

BROKERS_OWN = (77, 1234)
"""Timestamp and offset with which the broker answers every look-up by time."""


@dataclass
class FakePartitionLog:
    """One partition at one broker. `aborted` are (producer id, first offset, offset of the marker)."""

    partition: TopicIdPartition
    log_start_offset: int = 0
    local_log_start_offset: int = 1000
    high_watermark: int = 1000
    log_end_offset: int = -1
    last_stable_offset: int = -1
    """-1: the high watermark."""
    leader_epoch: int = 5
    error_code: int = 0
    """What clients get, whatever they ask."""
    latest_error_code: int = 0
    """What clients get that ask for LATEST."""
    offsets_error_code: int = 0
    """What Tidegate gets that asks for offsets."""
    preferred_read_replica: int = -1
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    tags: bytes = b"\x00"
    batches: dict[int, bytes] = field(default_factory=dict)
    """By offset, what stands in the place of `broker_batch`."""
    epoch_ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Leader epoch asked → (epoch answered, end offset); the others are answered by `epoch_end`."""
    local_epochs: Sequence[tuple[int, int]] = ()
    """What the local log alone remembers, as clients hear it: leader epochs and their starts, the first where that log
    begins. None: the leader's own epoch."""

    @property
    def end_offset(self) -> int:
        return max(self.log_end_offset, self.high_watermark)

    @property
    def stable_offset(self) -> int:
        return self.high_watermark if self.last_stable_offset < 0 else self.last_stable_offset

    def epoch_end(self, asked: int) -> tuple[int, int]:
        """As LeaderEpochFileCache.endOffsetFor has it: of an epoch between two, the lower one; of one below the first,
        that very epoch and where the log starts; of one that is yet to come, nothing."""
        known = self.epoch_ends
        if asked in known or asked > max(known, default=-1):
            return known.get(asked, (-1, -1))
        answered, end = known[max((epoch for epoch in known if epoch < asked), default=max(known))]
        is_below_first = asked < min(known) or end <= self.log_start_offset
        return (asked, self.log_start_offset) if is_below_first else (answered, end)

    def local_epoch_end(self, asked: int) -> tuple[int, int]:
        """The same of a broker that has forgotten what its local log has not."""
        entries = self.local_epochs or [(self.leader_epoch, self.local_log_start_offset)]
        if asked == entries[-1][0]:
            return asked, self.end_offset
        higher = [start for epoch, start in entries if epoch > asked]
        if not higher:
            return -1, -1
        lower = [epoch for epoch, _ in entries if epoch <= asked]
        return (lower[-1] if lower else asked), higher[0]

    def append(self, records: int = 1) -> None:
        self.high_watermark = self.end_offset + records
        self.log_end_offset = self.high_watermark


class FakeBrokerLog:
    """What one broker has, and what it was asked: `fetches` and `offset_requests`, decoded, in order, and `frames` of
    all else; `asked_at_s` is when Fetches came."""

    def __init__(self) -> None:
        self.logs: dict[tuple[bytes, int], FakePartitionLog] = {}
        self._topic_ids: dict[str | None, bytes] = {}
        self.fetches: list[FetchRequest] = []
        self.asked_at_s: list[float] = []
        self.offset_requests: list[ListOffsetsRequest] = []
        self.frames: list[bytes] = []
        self.remote_reads = 0
        self.throttle_time_ms = 0
        self.throttle_times_ms: list[int] = []
        """For the next answers to ListOffsets."""
        self.tags = b"\x00"
        self.error_code = 0
        self.left_out: set[TopicIdPartition] = set()
        self.latency_s = 0.0
        self.waits = True
        self._appended = trio.Event()

    def add(self, partition: TopicIdPartition, **fields: Any) -> FakePartitionLog:
        log = FakePartitionLog(partition, **fields)
        self.logs[partition.topic_id, partition.partition] = log
        self._topic_ids[partition.topic] = partition.topic_id
        return log

    def append(self, log: FakePartitionLog, records: int = 1) -> None:
        """New records, which end long polls."""
        log.append(records)
        self._appended.set()
        self._appended = trio.Event()

    @property
    def asked(self) -> list[list[tuple[str | None, int, int]]]:
        """For each Fetch: topic name, partition and offset of what it asked for."""
        return [
            [(self._name(entry), entry.partition, entry.fetch_offset) for entry in f.partitions] for f in self.fetches
        ]

    @property
    def offsets_asked(self) -> list[list[tuple[str, int, int]]]:
        """For each ListOffsets: topic name, partition and timestamp of what it asked for."""
        return [
            [(each.topic, each.partition, each.timestamp) for each in request.partitions]
            for request in self.offset_requests
        ]

    async def answer(self, frame: bytes) -> bytes:
        header = decode_request_header(memoryview(frame))
        if header.api_key == ApiKey.FETCH:
            return await self._fetch(decode_request(memoryview(frame), header))
        await trio.sleep(self.latency_s)
        if header.api_key == ApiKey.LIST_OFFSETS:
            return self._list_offsets(list_offsets.decode_request(memoryview(frame), header))
        self.frames.append(frame)
        return self._by_name(frame, header)

    # --- Fetch ---

    async def _fetch(self, request: FetchRequest) -> bytes:
        self.fetches.append(request)
        self.asked_at_s.append(trio.current_time())
        await trio.sleep(self.latency_s)
        if self.throttle_time_ms or self.error_code:
            return self._encode(request, [], self.error_code)
        answers = self._read(request)
        if self.waits and request.max_wait_ms and not any(answer.records or answer.error_code for answer in answers):
            with trio.move_on_after(request.max_wait_ms / 1000):
                await self._appended.wait()
            answers = self._read(request)
        return self._encode(request, answers, ErrorCode.NONE)

    def _read(self, request: FetchRequest) -> list[PartitionAnswer]:
        left, minimum_one = request.max_bytes, True
        answers = []
        for asked in request.partitions:
            answer, log = self._judge(asked, request.api_version)
            if log is not None:
                size = min(asked.partition_max_bytes, left) // BATCH_BYTES * BATCH_BYTES
                first = asked.fetch_offset
                committed = request.isolation_level == IsolationLevel.READ_COMMITTED
                read_below = log.stable_offset if committed else log.high_watermark
                count = min(max(size // BATCH_BYTES, int(minimum_one)), read_below - first)
                if first < log.local_log_start_offset:
                    self.remote_reads += 1
                if count > 0:
                    batches = [broker_batch(asked.partition, first + number) for number in range(count)]
                    answer.records = [log.batches.get(first + at, batch) for at, batch in enumerate(batches)]
                    left, minimum_one = max(0, left - sum(map(len, answer.records))), False
                if committed:
                    answer.aborted_transactions = [
                        (producer_id, start)
                        for producer_id, start, marker in log.aborted
                        if count > 0 and marker >= first and start < first + count
                    ]
            if log is None or log.partition not in self.left_out:
                answers.append(answer)
        return sorted(answers, key=_place)

    def _judge(self, asked: FetchPartition, api_version: int) -> tuple[PartitionAnswer, FakePartitionLog | None]:
        """The answer without records, and the log to read them from if all is well."""
        log = self._find(asked)
        error_code = ErrorCode.NONE
        if log is None:
            by_id = api_version >= TOPIC_ID_VERSION_MIN
            error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif log.error_code:
            return PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, log.error_code, log.tags), None
        elif 0 <= asked.current_leader_epoch < log.leader_epoch:
            error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.current_leader_epoch > log.leader_epoch:
            error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif not log.log_start_offset <= asked.fetch_offset <= log.end_offset:
            error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        if log is None or error_code:
            return PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, error_code), None
        answer = PartitionAnswer(
            asked.topic,
            asked.topic_id,
            asked.partition,
            ErrorCode.NONE,
            log.high_watermark,
            log.stable_offset,
            log.log_start_offset,
            preferred_read_replica=log.preferred_read_replica,
            tags=log.tags,
        )
        return answer, None if log.preferred_read_replica >= 0 else log

    def _find(self, asked: FetchPartition) -> FakePartitionLog | None:
        topic_id = self._topic_ids.get(asked.topic) if asked.topic_id is None else asked.topic_id
        return None if topic_id is None else self.logs.get((topic_id, asked.partition))

    def named(self) -> dict[tuple[str | None, int], FakePartitionLog]:
        """The logs by topic name and partition."""
        return {(log.partition.topic, log.partition.partition): log for log in self.logs.values()}

    def _name(self, asked: FetchPartition) -> str | None:
        log = self._find(asked)
        return asked.topic if log is None else log.partition.topic

    def _encode(self, request: FetchRequest, answers: Sequence[PartitionAnswer], error_code: int) -> bytes:
        buffers = encode_response(
            request.api_version,
            request.correlation_id,
            throttle_time_ms=self.throttle_time_ms,
            error_code=error_code,
            session_id=0,
            answers=[replace(answer) for answer in answers],
            tags=self.tags if request.api_version >= ENDPOINTS_VERSION_MIN else b"\x00",
        )
        return b"".join(buffers)

    # --- ListOffsets ---

    def _list_offsets(self, request: ListOffsetsRequest) -> bytes:
        self.offset_requests.append(request)
        throttle_time_ms = self.throttle_times_ms.pop(0) if self.throttle_times_ms else 0
        logs = self.named()
        answers = []
        for asked in request.partitions:
            log = logs.get((asked.topic, asked.partition))
            if log is None or log.partition not in self.left_out:
                answers.append(_offset_answer(asked, log, request.isolation_level))
        response = ListOffsetsResponse(request.correlation_id, throttle_time_ms, answers)
        return list_offsets.encode_response(response, request.api_version, request.correlation_id)

    # --- OffsetForLeaderEpoch and DeleteRecords, as kio has them ---

    def _by_name(self, frame: bytes, header: RequestHeader) -> bytes:
        schema = kio_frames.schema(header.api_key, header.api_version, kind="request")
        request = kio_frames.decode(schema, frame[header.body_position :])
        answer = _deleted if header.api_key == ApiKey.DELETE_RECORDS else _epoch_end
        logs, topics = self.named(), []
        for topic in request.topics:
            name = topic.name if hasattr(topic, "name") else topic.topic
            topics.append(
                {"name": name, "topic": name, "partitions": [answer(logs, name, asked) for asked in topic.partitions]}
            )
        response = kio_frames.fill(kio_frames.schema(header.api_key, header.api_version), {"topics": topics})
        return kio_frames.response_frame(response, header.correlation_id)


def _place(answer: PartitionAnswer) -> int:
    """KafkaApis answers what it reads, then ids without a name, then what it refuses or does not have."""
    match answer.error_code:
        case ErrorCode.UNKNOWN_TOPIC_ID:
            return 1
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED | ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return 2
    return 0


Logs = Mapping[tuple[str | None, int], FakePartitionLog]


def _offset_answer(
    asked: ListOffsetsPartition, log: FakePartitionLog | None, isolation_level: int
) -> ListOffsetsAnswer:
    is_latest = asked.timestamp == OffsetTimestamp.LATEST
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else log.error_code
    code = code or (log.latest_error_code if log is not None and is_latest else 0)
    answer = ListOffsetsAnswer(asked.topic, asked.partition, code)
    if code or log is None:
        return answer
    answer.leader_epoch = log.leader_epoch
    if is_latest:
        committed = isolation_level == IsolationLevel.READ_COMMITTED
        answer.offset = log.stable_offset if committed else log.high_watermark
    elif asked.timestamp == OffsetTimestamp.EARLIEST:
        answer.offset = log.log_start_offset
    else:
        answer.timestamp, answer.offset = BROKERS_OWN
    return answer


def _deleted(logs: Logs, topic: str, asked: Any) -> dict[str, object]:
    log = logs[topic, int(asked.partition_index)]
    if not log.error_code:
        offset = log.high_watermark if asked.offset == -1 else asked.offset
        log.local_log_start_offset = log.log_start_offset = max(log.local_log_start_offset, offset)
    return {
        "partition_index": asked.partition_index,
        "low_watermark": -1 if log.error_code else log.local_log_start_offset,
        "error_code": kio_errors.ErrorCode(log.error_code),
    }


def _epoch_end(logs: Logs, topic: str, asked: Any) -> dict[str, object]:
    log = logs[topic, int(asked.partition)]
    epoch, end = (-1, -1) if log.error_code else log.local_epoch_end(asked.leader_epoch)
    code = kio_errors.ErrorCode(log.error_code)
    return {"partition": asked.partition, "error_code": code, "leader_epoch": epoch, "end_offset": end}


class FakeWire:
    """A client's upstream connection to that broker."""

    def __init__(self, broker: FakeBrokerLog, nursery: trio.Nursery, *, node_id: int | None = 1) -> None:
        self.node_id = node_id
        self.held_bytes_max: int | None = None
        """For an answer to a Fetch; None: as much as comes."""
        self._broker = broker
        self._correlation_id = 0
        self._send, self._receive = trio.open_memory_channel[tuple[bytes, PendingAnswer]](10_000)
        nursery.start_soon(self._serve)

    def next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    async def ask(
        self, api_key: int, api_version: int, correlation_id: int, frame: bytes, held_bytes_max: int | None = None
    ) -> PendingAnswer:
        header = decode_request_header(memoryview(frame))
        assert (api_key, api_version, correlation_id) == (header.api_key, header.api_version, header.correlation_id)
        pending = PendingAnswer(held_bytes_max)
        await self._send.send((frame, pending))
        return pending

    async def advertise(self, nodes: Sequence[NodeAddress]) -> dict[int, tuple[str, int]]:
        return {node.node_id: ("advertised", 19092 + node.node_id) for node in nodes}

    async def _serve(self) -> None:
        async for frame, pending in self._receive:
            answer = memoryview(bytearray(await self._broker.answer(frame)))
            held_bytes_max = min(self.held_bytes_max or len(answer), pending.held_bytes_max or len(answer))
            if len(answer) <= held_bytes_max:
                pending.deliver(answer)
            else:
                dropper = RecordDropper(decode_request_header(memoryview(frame)).api_version, held_bytes_max)
                assert dropper.feed(answer) == len(answer)
                pending.deliver(dropper.frame, dropper.dropped)


def broker_batch(partition: int, offset: int) -> bytes:
    """The record bytes that the broker has for an offset."""
    return f"broker {partition} {offset} ".encode().ljust(BATCH_BYTES, b".")


def tier_batch(partition: int, offset: int) -> bytes:
    """The record bytes that the tier has for an offset; the same size, so that budgets compare."""
    return f"tier {partition} {offset} ".encode().ljust(BATCH_BYTES, b".")
