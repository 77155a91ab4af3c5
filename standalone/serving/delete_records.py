"""A connection's DeleteRecords, where the tier is our own (docs/protocol.md#list-offsets-standalone).

The request is the broker's: it is sent on as it came, and its errors stand. What it has accepted is then true of the
tier too, also where the broker had nothing to do because its own log starts higher.

Rule 1. The client hears of success when the new log start is committed, so that no process serves what was deleted
        after the next time that it asks. Where that fails, the partition gets REQUEST_TIMED_OUT, on which clients try
        again: at the broker the records are gone already, and to delete them twice is to delete them once.
Rule 2. Which topic has the name is asked after the broker's answer. Where that, or whether the tier has the partition,
        is not known, the partition gets REQUEST_TIMED_OUT too.
"""

from functools import partial

import structlog
import trio

from protocol.client.errors import UpstreamError
from protocol.delete_records import (
    HIGH_WATERMARK,
    DeleteRecordsAnswer,
    DeleteRecordsRequest,
    decode_request,
    decode_response,
    patch,
)
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import decode_request_header
from proxy.connection.request_handlers import RELAY, Answer, Relay, UpstreamWire
from proxy.connection.slices import BYTES_AT_ONCE, off_loop
from proxy.fetch.authorities import LogStartGeneration
from proxy.offsets.timestamp_lookup import Key
from standalone.serving.tier_offsets import TierOffsets, forward
from storage.model import TopicIdPartition

COMMIT_S_MAX = 30.0
"""How long a commit is waited for at most; a request may name less."""

UNKNOWN_LOW_WATERMARK = -1

_log = structlog.get_logger(__name__)


class DeleteRecordsService:
    """Good probes are void when a request is sent, and when it is answered (`generation`)."""

    def __init__(self, tier_offsets: TierOffsets, generation: LogStartGeneration) -> None:
        self._tier_offsets = tier_offsets
        self._generation = generation

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request, and answer it if it is not to be relayed.

        Raises:
            PeerProtocolError: the request is malformed, or too large.
        """
        header, is_large = decode_request_header(frame), len(frame) > BYTES_AT_ONCE
        request = await off_loop(is_large, partial(decode_request, frame, header))
        if not any(self._tier_offsets.may_hold(each.topic) for each in request.partitions):
            return RELAY
        version = header.api_version
        self._generation.move()
        response = await forward(frame, ApiKey.DELETE_RECORDS, version, wire, header.correlation_id)
        answers = await off_loop(
            is_large, partial(decode_response, memoryview(response), version, len(request.partitions))
        )
        accepted = [each for each in answers if not each.error_code and self._tier_offsets.may_hold(each.topic)]
        if accepted:
            await self._delete(request, accepted, wire.node_id)
        for answer in accepted:
            patch(response, answer)
        self._generation.move()
        return [response]

    async def _delete(
        self, request: DeleteRecordsRequest, accepted: list[DeleteRecordsAnswer], node_id: int | None
    ) -> None:
        """Delete in the tier too, and put into the answers what became of it."""
        placed = await self._tier_offsets.place([(each.topic, each.partition) for each in accepted], node_id)
        asked = _asked(request)
        wanted: dict[TopicIdPartition, int] = {}
        for answer in accepted:
            key = answer.topic, answer.partition
            if (partition := placed.held.get(key)) is not None:
                offset = asked.get(key, HIGH_WATERMARK)
                wanted[partition] = answer.low_watermark if offset == HIGH_WATERMARK else offset
            elif key in placed.unknown:
                _fail(answer)
        raised = await self._commit(wanted, request.timeout_ms)
        self._tier_offsets.forget(wanted, node_id)
        for answer in accepted:
            partition = placed.held.get((answer.topic, answer.partition))
            if partition is None:
                continue
            if raised is None:
                _fail(answer)
            else:
                answer.low_watermark = min(answer.low_watermark, raised[partition])

    async def _commit(self, wanted: dict[TopicIdPartition, int], timeout_ms: int) -> dict[TopicIdPartition, int] | None:
        """Return where the tier's logs start now; None if that could not be committed."""
        if not wanted:
            return {}
        timeout_s = min(timeout_ms / 1000, COMMIT_S_MAX) if timeout_ms > 0 else COMMIT_S_MAX
        reason = f"no answer within {timeout_s:g} s"
        with trio.move_on_after(timeout_s):
            try:
                return await self._tier_offsets.log_starts.raise_all(wanted)
            except UpstreamError as error:
                reason = str(error)
        _log.warning("log_start_not_committed", partitions=len(wanted), reason=reason)
        return None


def _asked(request: DeleteRecordsRequest) -> dict[Key, int]:
    """The offsets; of a partition that is named twice the last one, as the broker takes it."""
    return {(each.topic, each.partition): each.offset for each in request.partitions}


def _fail(answer: DeleteRecordsAnswer) -> None:
    answer.error_code, answer.low_watermark = ErrorCode.REQUEST_TIMED_OUT, UNKNOWN_LOW_WATERMARK
