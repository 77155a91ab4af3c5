"""A connection's ListOffsets, where the tier is our own (docs/protocol.md#list-offsets-standalone).

The broker knows nothing of the tier, so its offsets are wrong for a partition that the tier has. Its errors are not:

    client ──ListOffsets──▶ the same request, with LATEST for what the tier may answer ──▶ broker
                            (rights, leader, epochs; high watermark or last stable offset)
           ◀── its answers, with ours in their places ◀─────────────────────────────────────┘

Rules:
1. The broker's error wins, whichever it is. Everything of ours is looked up after its answer (`tier_offsets`).
2. EARLIEST goes as it is, as it cannot be refused for a high watermark that lags, and its answer tells where the local
   log starts: the tier's log start takes its place if that is lower.
3. A look-up by time is the tier's first, segment after segment, and the broker's for what the tier does not have. What
   was found at or beyond the LATEST that the broker answered is not found. So it is for LATEST_TIERED and
   EARLIEST_PENDING_UPLOAD.
4. There is no way out: what cannot be looked up now is REPLICA_NOT_AVAILABLE, not at once, and what took too long
   REQUEST_TIMED_OUT. The broker's offset would have a consumer pass over what is in the tier.
5. A partition that is named twice is the broker's, which refuses it, and so is a timestamp that the version does not
   have.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from protocol.list_offsets import (
    ListOffsetsAnswer,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetTimestamp,
    decode_request,
    encode_response,
)
from protocol.wire.errors import ErrorCode, PeerProtocolError
from protocol.wire.request_headers import decode_request_header
from proxy.connection.request_handlers import RELAY, Answer, Relay, UpstreamWire
from proxy.connection.slices import BYTES_AT_ONCE, ITEMS_AT_ONCE, each_slice, off_loop
from proxy.fetch.fallback import COME_AGAIN, comes_again_s
from proxy.fetch.frontiers import Frontier
from proxy.offsets.service import CONSUMER_REPLICA_ID, LOOKUP_TIMEOUT_S, ask_again, ask_broker, by_key, key_of
from proxy.offsets.timestamp_lookup import Key
from standalone.serving.tier_offsets import TierOffsets
from storage.errors import RemoteStorageError
from storage.log.batch_records import ScanLimitError
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import TopicIdPartition

_VERSION_NEEDED: Mapping[int, int] = {
    OffsetTimestamp.EARLIEST: 1,
    OffsetTimestamp.LATEST_TIERED: 9,
    OffsetTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}
"""For the special timestamps that the tier has a say in."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """What an answer is to say; an offset of −1 is "not found"."""

    error_code: int = ErrorCode.NONE
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


_NOT_FOUND = _Found()
_COME_AGAIN = _Found(COME_AGAIN)
_TIMED_OUT = _Found(ErrorCode.REQUEST_TIMED_OUT)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A partition of the tier, and what was learned of it."""

    key: Key
    timestamp: int
    partition: TopicIdPartition
    frontier: Frontier
    lineage: LeaderEpochLineage
    log_start_offset: int


class OwnListOffsetsService:
    """One for each client connection.

    Args:
        timeout_s: what a look-up may take at most, in seconds; a request may name less.
    """

    def __init__(self, tier_offsets: TierOffsets, *, timeout_s: float = LOOKUP_TIMEOUT_S) -> None:
        self._tier_offsets = tier_offsets
        self._timeout_s = timeout_s

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request, and answer it if it is not to be relayed.

        Raises:
            PeerProtocolError: the request is malformed, or too large to be read.
        """
        header = decode_request_header(frame)
        request = await off_loop(len(frame) > BYTES_AT_ONCE, partial(decode_request, frame, header))
        if request.is_unread:
            raise PeerProtocolError("a ListOffsets request of too many partitions: ask for 10,000 at most at once")
        if request.replica_id != CONSUMER_REPLICA_ID:
            return RELAY
        ours = await self._ours(request)
        if not ours:
            return RELAY
        started_s = trio.current_time()
        by_latest = {key for key, question in ours.items() if question.timestamp != OffsetTimestamp.EARLIEST}
        response = await ask_broker(request, wire, latest=by_latest)
        allowed = {key: each for key, each in by_key(response).items() if key in ours and not each.error_code}
        placed = await self._tier_offsets.place(allowed, wire.node_id)
        found: dict[Key, _Found] = dict.fromkeys(placed.unknown, _COME_AGAIN)
        timeout_s = min(request.timeout_ms / 1000, self._timeout_s) if request.timeout_ms > 0 else self._timeout_s
        await self._look_up(ours, allowed, placed.held, found, wire.node_id, started_s + timeout_s)
        again = _put(ours, allowed, found)
        if again:
            await ask_again(request, wire, again, response)
        if any(each.error_code == COME_AGAIN for each in found.values()):
            await trio.sleep_until(comes_again_s(started_s, 0))
        is_large = len(response.partitions) > ITEMS_AT_ONCE
        encoded = partial(encode_response, response, request.api_version, request.correlation_id)
        return [await off_loop(is_large, encoded)]

    async def _ours(self, request: ListOffsetsRequest) -> dict[Key, ListOffsetsPartition]:
        """The questions that the tier may have a say in (rule 5)."""
        named = Counter(map(key_of, request.partitions))

        def some_of(questions: Sequence[ListOffsetsPartition]) -> list[ListOffsetsPartition]:
            return [
                question
                for question in questions
                if (question.timestamp >= 0 or _allows(request.api_version, question.timestamp))
                and named[key_of(question)] == 1
                and self._tier_offsets.may_hold(question.topic)
            ]

        found = await each_slice(request.partitions, some_of)
        return {key_of(question): question for some in found for question in some}

    async def _look_up(
        self,
        ours: Mapping[Key, ListOffsetsPartition],
        allowed: Mapping[Key, ListOffsetsAnswer],
        held: Mapping[Key, TopicIdPartition],
        found: dict[Key, _Found],
        node_id: int | None,
        deadline_s: float,
    ) -> None:
        """Look these up in the tier. Those of which it says nothing, and the broker is to, are left out."""
        # A tier that begins no lower than the local log has nothing to say of where the log begins.
        lower = {
            key: partition
            for key, partition in held.items()
            if ours[key].timestamp != OffsetTimestamp.EARLIEST
            or self._tier_offsets.log_start(partition, allowed[key].offset) < allowed[key].offset
        }
        if not lower:
            return
        frontiers = await self._tier_offsets.frontiers(lower.values(), node_id)
        lineages = await self._tier_offsets.lineages(frontiers)
        by_time: list[_Asked] = []
        for key, partition in lower.items():
            timestamp, frontier, lineage = ours[key].timestamp, frontiers.get(partition), lineages.get(partition)
            if timestamp == OffsetTimestamp.EARLIEST:
                start = self._tier_offsets.log_start(partition, allowed[key].offset)
                # The answer says where the log starts even if the epoch there is not known.
                epoch = None if lineage is None else lineage.epoch_for(start)
                found[key] = _Found(offset=start, leader_epoch=-1 if epoch is None else epoch)
            elif frontier is None or lineage is None:
                found[key] = _COME_AGAIN
            else:
                start = self._tier_offsets.log_start(partition, frontier.local_log_start_offset)
                asked = _Asked(key, timestamp, partition, frontier, lineage, start)
                if timestamp >= 0:
                    by_time.append(asked)
                else:
                    found[key] = await self._border(asked, node_id)
            await trio.lowlevel.checkpoint()  # each looks through the catalog
        await self._search(by_time, found, deadline_s)

    async def _border(self, asked: _Asked, node_id: int | None) -> _Found:
        """LATEST_TIERED and EARLIEST_PENDING_UPLOAD, as Kafka has them."""
        highest = self._tier_offsets.highest_offset(asked.partition, asked.lineage)
        if asked.timestamp == OffsetTimestamp.LATEST_TIERED:
            if highest is None:
                return _NOT_FOUND
            offset, epoch = highest
            # A broker's history of leader epochs begins at the log start.
            return _Found(offset=offset, leader_epoch=epoch if offset >= asked.log_start_offset else -1)
        offset = asked.log_start_offset if highest is None else max(highest[0] + 1, asked.log_start_offset)
        epoch = await self._tier_offsets.epoch_of(asked.partition, offset, asked.frontier, asked.lineage, node_id)
        return _Found(offset=offset, leader_epoch=epoch)

    async def _search(self, questions: Sequence[_Asked], found: dict[Key, _Found], deadline_s: float) -> None:
        """Look-ups by time, side by side; those that find nothing are left out of `found`."""

        async def search(asked: _Asked) -> None:
            with trio.move_on_at(deadline_s) as scope:
                result = await self._search_one(asked)
                if result is not None:
                    found[asked.key] = result
            if scope.cancelled_caught:
                self._tier_offsets.lookup.meter.on_look_up_expired(*asked.key)
                found[asked.key] = _TIMED_OUT

        if questions:
            with self._tier_offsets.lookup.meter.look_up_waiting():
                async with trio.open_nursery() as nursery:
                    for asked in questions:
                        nursery.start_soon(search, asked)

    async def _search_one(self, asked: _Asked) -> _Found | None:
        partition = str(asked.partition)
        try:
            record = await self._tier_offsets.first_at(
                asked.partition,
                asked.timestamp,
                asked.frontier.local_log_start_offset,
                asked.lineage,
                log_start_offset=asked.log_start_offset,
                asker=self,
            )
        except ScanLimitError as error:
            _log.info("timestamp_search_left", partition=partition, reason=str(error))
            return _TIMED_OUT
        except RemoteStorageError as error:
            # Also a segment that retention has just taken: the client finds the next one.
            _log.debug("timestamp_search_failed", partition=partition, reason=str(error))
            return _COME_AGAIN
        except Exception:
            _log.exception("timestamp_search_fault", partition=partition)
            return _COME_AGAIN
        return (
            None if record is None else _Found(ErrorCode.NONE, record.timestamp_ms, record.offset, record.leader_epoch)
        )


def _allows(api_version: int, timestamp: int) -> bool:
    needed = _VERSION_NEEDED.get(timestamp)
    return needed is not None and api_version >= needed


def _put(
    ours: Mapping[Key, ListOffsetsPartition], allowed: Mapping[Key, ListOffsetsAnswer], found: Mapping[Key, _Found]
) -> set[Key]:
    """Turn the broker's answers into ours; those that were LATEST's, and are the broker's to give, are asked again."""
    again: set[Key] = set()
    for key, answer in allowed.items():
        result, is_earliest = found.get(key), ours[key].timestamp == OffsetTimestamp.EARLIEST
        if result is None:
            if not is_earliest:
                again.add(key)
            continue
        if not is_earliest and not result.error_code and result.offset >= answer.offset:
            result = _NOT_FOUND
        answer.error_code, answer.timestamp = result.error_code, result.timestamp
        answer.offset, answer.leader_epoch = result.offset, result.leader_epoch
    return again
