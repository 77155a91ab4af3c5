"""A connection's ListOffsets handling (docs/protocol.md#list-offsets; docs/protocol.md#l1).

What stays the broker's is relayed as it came: everything but consumers' look-ups by time that the tier decides. For
those, before the search:

    client ──ListOffsets──▶ the same request, those timestamps replaced by LATEST ──▶ broker
                            (rights, leader, epochs; high watermark or last stable offset)
           ◀── its answers, with ours in their places ◀─────────────────────────────┘

Rules:
1. The broker's error wins. The tier is searched for what the broker has answered without one, and not before: a client
   without rights costs no search. Only "the high watermark lags" (78, 5) is an answer to LATEST alone.
2. What was found at or beyond the LATEST that it answered is not found: −1, without an error.
3. What the tier does not have, and a topic name that may be another topic's by now, is asked of the broker once more,
   with its own timestamp.
4. A look-up that fails goes to the broker as a Fetch does, and as few at a time (`proxy.fetch.fallback`).
5. The deadline is our own, or the request's timeout if that is shorter; one that misses it gets REQUEST_TIMED_OUT.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog
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
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import decode_request_header
from proxy.connection.request_handlers import RELAY, Answer, Relay, UpstreamWire
from proxy.connection.slices import BYTES_AT_ONCE, ITEMS_AT_ONCE, each_slice, off_loop
from proxy.fetch.fallback import COME_AGAIN, Fallback, comes_again_s, reason_of
from proxy.offsets.timestamp_lookup import Key, TierQuestion, TimestampLookup
from storage.errors import RemoteStorageError
from storage.reading.timestamp_search import FoundTimestamp
from storage.tasks import TaskNursery

CONSUMER_REPLICA_ID = -1

LOOKUP_TIMEOUT_S = 30.0
"""The default of `remote.list.offsets.request.timeout.ms` (KIP-1075)."""

_LATEST_ONLY = frozenset({ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE})

_log = structlog.get_logger(__name__)


class ListOffsetsService:
    """One for each client connection.

    Args:
        timeout_s: what a look-up may take at most, in seconds; a request may name less.
    """

    def __init__(self, lookup: TimestampLookup, fallback: Fallback, *, timeout_s: float = LOOKUP_TIMEOUT_S) -> None:
        self._lookup = lookup
        self._fallback = fallback
        self._timeout_s = timeout_s

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request, and answer it if it is not to be relayed."""
        header = decode_request_header(frame)
        request = await off_loop(len(frame) > BYTES_AT_ONCE, partial(decode_request, frame, header))
        node_id = wire.node_id
        if request.is_unread:
            self._lookup.meter.on_request_unread(ApiKey.LIST_OFFSETS)
            return RELAY
        if request.replica_id != CONSUMER_REPLICA_ID or node_id is None or _has_duplicates(request):
            return RELAY
        started_s = trio.current_time()
        questions = await self._lookup.plan(request.partitions, node_id)
        if not questions:
            return RELAY
        timeout_s = min(request.timeout_ms / 1000, self._timeout_s) if request.timeout_ms > 0 else self._timeout_s
        with self._lookup.meter.look_up_waiting():
            response, found = await self._search(request, questions, started_s + timeout_s, wire, node_id)
        failed = [key for key in questions if key in found and found[key].is_failed]
        with self._fallback.at_broker(node_id, len(failed)) as granted:
            taken = {key: questions[key].partition for key in failed[:granted]}
            found = {key: result for key, result in found.items() if key not in taken}
            response = await _assemble(request, wire, response, questions, found)
        for partition in taken.values():
            self._fallback.on_broker_read(partition, 0)
        if any(result.error_code == COME_AGAIN for result in found.values()):
            await trio.sleep_until(comes_again_s(started_s, 0))
        is_large = len(response.partitions) > ITEMS_AT_ONCE
        return [await off_loop(is_large, partial(encode_response, response, *_form(request)))]

    async def _search(
        self,
        request: ListOffsetsRequest,
        questions: Mapping[Key, TierQuestion],
        deadline_s: float,
        wire: UpstreamWire,
        node_id: int,
    ) -> tuple[ListOffsetsResponse, Mapping[Key, "_Result"]]:
        """The broker's response with LATEST in the tier's places, and what the tier has for them."""
        async with trio.open_nursery() as nursery:
            response = await ask_broker(request, wire, latest=questions.keys())
            allowed = {key for key, answer in by_key(response).items() if not answer.error_code}
            answered = {key: question for key, question in questions.items() if key in allowed}
            searches = _Searches(self._lookup, self._fallback, deadline_s, nursery, asker=self)
            await each_slice([*answered.items()], searches.start)
            current = await self._lookup.current(answered, node_id) if answered else set()
            searches.give_up(answered.keys() - current)
        return response, {key: result for key, result in searches.results.items() if key in current}


async def ask_broker(
    request: ListOffsetsRequest,
    wire: UpstreamWire,
    *,
    latest: Collection[Key] = (),
    only: Collection[Key] | None = None,
) -> ListOffsetsResponse:
    """The client's request as our own: with LATEST for some partitions, or for some partitions only."""

    def ours(some: Sequence[ListOffsetsPartition]) -> list[ListOffsetsPartition]:
        return [
            replace(question, timestamp=OffsetTimestamp.LATEST) if key_of(question) in latest else question
            for question in some
            if only is None or key_of(question) in only
        ]

    partitions = [question for some in await each_slice(request.partitions, ours) for question in some]
    correlation_id = wire.next_correlation_id()
    asked = replace(request, partitions=partitions)
    is_large = len(partitions) > ITEMS_AT_ONCE
    frame = await off_loop(is_large, partial(encode_request, asked, correlation_id=correlation_id))
    pending = await wire.ask(ApiKey.LIST_OFFSETS, request.api_version, correlation_id, frame)
    response = await pending.frame()
    return await off_loop(is_large, partial(decode_response, response, request.api_version, len(partitions)))


async def _assemble(
    request: ListOffsetsRequest,
    wire: UpstreamWire,
    response: ListOffsetsResponse,
    questions: Mapping[Key, TierQuestion],
    found: Mapping[Key, "_Result"],
) -> ListOffsetsResponse:
    """The broker's response with the tier's answers in it."""
    answers = by_key(response)
    again: set[Key] = set()
    for key in questions.keys() & answers.keys():
        answer = answers[key]
        if answer.error_code:
            if answer.error_code in _LATEST_ONLY:
                again.add(key)
        elif (result := found.get(key)) is None:
            again.add(key)
        else:
            _put(answer, result)
    if again:
        await ask_again(request, wire, again, response)
    return response


async def ask_again(
    request: ListOffsetsRequest, wire: UpstreamWire, again: Collection[Key], response: ListOffsetsResponse
) -> None:
    """Ask once more for some answers of a response, with the client's own timestamps, and put them in their places."""
    second = await ask_broker(request, wire, only=again)
    response.throttle_time_ms = max(response.throttle_time_ms, second.throttle_time_ms)
    answers = by_key(response)
    for key, source in by_key(second).items():
        if key in again:
            target = answers[key]
            target.error_code, target.timestamp, target.offset = source.error_code, source.timestamp, source.offset
            target.leader_epoch, target.tags = source.leader_epoch, source.tags


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of a search: a record, or an error code. `is_failed`: the broker is to look, if it can now."""

    record: FoundTimestamp | None
    error_code: int = ErrorCode.NONE
    is_failed: bool = False


class _Searches:
    """The searches of one request, side by side under one deadline. `results` lacks those that found nothing, and
    those that were given up."""

    def __init__(
        self, lookup: TimestampLookup, fallback: Fallback, deadline_s: float, nursery: TaskNursery, *, asker: Hashable
    ) -> None:
        self.results: dict[Key, _Result] = {}
        self._lookup = lookup
        self._fallback = fallback
        self._asker = asker
        self._deadline_s = deadline_s
        self._nursery = nursery
        self._scopes: dict[Key, trio.CancelScope] = {}
        self._given_up: set[Key] = set()

    def start(self, questions: Sequence[tuple[Key, TierQuestion]]) -> None:
        """Search for these too."""
        for key, question in questions:
            self._scopes[key] = trio.CancelScope(deadline=self._deadline_s)
            self._nursery.start_soon(self._run, key, question)

    def give_up(self, keys: Collection[Key]) -> None:
        """Wait no longer for these."""
        self._given_up.update(keys)
        for key in keys:
            self._scopes[key].cancel()

    async def _run(self, key: Key, question: TierQuestion) -> None:
        with self._scopes[key] as scope:
            result = await self._result(question)
            if result is not None:
                self.results[key] = result
        if scope.cancelled_caught and key not in self._given_up:
            self._lookup.meter.on_look_up_expired(*key)
            self.results[key] = _Result(None, ErrorCode.REQUEST_TIMED_OUT)

    async def _result(self, question: TierQuestion) -> _Result | None:
        partition = question.partition
        if not self._fallback.reads_tier(partition):
            return _Result(None, COME_AGAIN, is_failed=True)
        try:
            record = await self._lookup.answer(question, self._asker)
        except Exception as error:
            if isinstance(error, RemoteStorageError):
                _log.debug("timestamp_search_failed", partition=str(partition), reason=str(error))
            else:
                _log.exception("timestamp_search_fault", partition=str(partition))
            if (reason := reason_of(error)) is not None:
                self._fallback.failed(partition, question.segment.start_offset, reason, str(error))
            return _Result(None, COME_AGAIN, is_failed=reason is not None)
        return None if record is None else _Result(record)


def _put(answer: ListOffsetsAnswer, result: _Result) -> None:
    """Turn the broker's answer to LATEST into ours."""
    latest_offset, record = answer.offset, result.record
    answer.error_code = result.error_code
    if record is not None and record.offset < latest_offset:
        answer.timestamp, answer.offset, answer.leader_epoch = record.timestamp_ms, record.offset, record.leader_epoch
    else:
        answer.timestamp = answer.offset = answer.leader_epoch = -1


def _form(request: ListOffsetsRequest) -> tuple[int, int]:
    return request.api_version, request.correlation_id


def by_key(response: ListOffsetsResponse) -> dict[Key, ListOffsetsAnswer]:
    """The answers; of a partition that was named twice, the last."""
    return {(answer.topic, answer.partition): answer for answer in response.partitions}


def key_of(question: ListOffsetsPartition) -> Key:
    """Which partition is asked about."""
    return question.topic, question.partition


def _has_duplicates(request: ListOffsetsRequest) -> bool:
    return len({key_of(question) for question in request.partitions}) < len(request.partitions)
