"""Merging probe answers, tier records and the broker's own answers into one Fetch response. Pure
(ARCHITECTURE.md#one-request-end-to-end).

Offsets are the broker's live ones, from the probe; record bytes are the tier's. Every partition of the request
has one answer, in request order.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from protocol.fetch.messages import NO_SESSION_ID, NO_TAGS, FetchPartition, FetchRequest, FetchResponse, PartitionAnswer
from protocol.fetch.messages import PartitionKey as PartitionKey
from protocol.fetch.messages import key_of as key_of
from protocol.fetch.response import encode_response
from protocol.fetch.walker import ENDPOINTS_VERSION_MIN, endpoints_of
from protocol.record_batches import Buffer
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from proxy.connection.request_handlers import ITEMS_AT_ONCE, UpstreamWire, off_loop
from proxy.fetch.known import Authority, Frontier
from storage.model import TopicIdPartition
from storage.reading.reader import TierRecords

# Which partitions of a Fetch are the tier's, and how its byte budget is shared out. Pure.
#
# Rule 1. The plan is made once. What is learned later stands elsewhere: shares, and what the broker vouched for.
# Rule 2. Local partitions are asked for in one Fetch, which may bring their part of the limit by number, or what the
#         limits of the tier partitions leave of it if that is more.
# Rule 3. Tier partitions get what the local ones did not take, in request order: each min(its own limit, what is left),
#         as at the broker. One that is refused, or answered otherwise, takes nothing.
# Rule 4. One batch in the whole answer may exceed a limit: that of the first partition in request order that has
#         records. The broker grants that right to a local one; a tier partition in front of it has it too. If both use
#         it, the local one is emptied (`withhold_excess`), and takes nothing.


FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Kafka's default of the broker's `fetch.max.bytes`: a larger request is answered as if it had asked for this."""


@dataclass(frozen=True, slots=True)
class Instead:
    """What a client gets for a partition in place of records: an error, or tags."""

    error_code: ErrorCode = ErrorCode.NONE
    tags: bytes = NO_TAGS


@dataclass(frozen=True, slots=True, eq=False)
class TierPart:
    """A partition of a Fetch that is read from the tier, and what the plan was made by. Hashable, by identity."""

    asked: FetchPartition
    partition: TopicIdPartition
    frontier: Frontier
    place: int = 0
    """In the request."""


class Share(NamedTuple):
    """What one tier partition may bring of the limit. 0: it is answered empty, without a read."""

    bytes_max: int
    may_exceed: bool = False


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """A split Fetch: both sides in request order."""

    tier: Sequence[TierPart]
    local: Sequence[FetchPartition]
    instead: Mapping[TierPart, Instead] = field(default_factory=dict)
    """With what parts are answered without a read, whatever their offset."""


def tier_parts(
    request: FetchRequest,
    candidates: Sequence[TopicIdPartition | None],
    frontier_of: Callable[[TopicIdPartition], Frontier | None],
    belongs_to_tier: Callable[[FetchPartition, TopicIdPartition, Frontier], bool],
) -> list[TierPart]:
    """Return the parts of a request that are the tier's.

    Args:
        candidates: for each partition of the request, its identity if the tier has segments of it.
        frontier_of: what is known of its offsets; None leaves the partition to the broker.
        belongs_to_tier: the verdict on one partition.
    """
    parts = []
    for place, (asked, candidate) in enumerate(zip(request.partitions, candidates, strict=True)):
        frontier = None if candidate is None else frontier_of(candidate)
        if candidate is not None and frontier is not None and belongs_to_tier(asked, candidate, frontier):
            parts.append(TierPart(asked, candidate, frontier, place))
    return parts


def plan_fetch(request: FetchRequest, tier: Sequence[TierPart], instead: Mapping[TierPart, Instead]) -> FetchPlan:
    """Return a request split into these parts and the broker's."""
    places = {part.place for part in tier}
    local = [asked for place, asked in enumerate(request.partitions) if place not in places]
    return FetchPlan(tier, local, instead)


def bytes_max_of(request: FetchRequest) -> int:
    """Return what all partitions of an answer may bring together."""
    return max(0, min(request.max_bytes, FETCH_BYTES_MAX))


def local_bytes_max(request: FetchRequest, plan: FetchPlan) -> int:
    """Return what all local partitions may bring together (rule 2)."""
    limit = bytes_max_of(request)
    tier_bytes = sum(_wanted_bytes(plan, part) for part in plan.tier)
    return max(limit * len(plan.local) // len(request.partitions), limit - tier_bytes)


def share_out(
    request: FetchRequest, plan: FetchPlan, parts: Iterable[TierPart], local: Mapping[PartitionKey, PartitionAnswer]
) -> dict[TierPart, Share]:
    """Return what each of these parts may bring (rule 3).

    Args:
        parts: in request order.
        local: what the broker gave of the plan's local partitions.
    """
    limit = left = bytes_max_of(request)
    first_local = len(request.partitions)
    may_exceed = True
    shares = {}
    if local and (given := _given(request, local)):
        first_local, first = given[0]
        left -= sum(answer.records_bytes for _, answer in given)
        if first.records_bytes > min(request.partitions[first_local].partition_max_bytes, limit):
            parts = list(parts)
            if any(part.place < first_local and _wanted_bytes(plan, part) for part in parts):
                left += first.records_bytes  # it will have to go
    for part in parts:
        bytes_max = max(0, min(_wanted_bytes(plan, part), left))
        shares[part] = Share(bytes_max, may_exceed and bytes_max > 0 and part.place < first_local)
        may_exceed &= not bytes_max
        left -= bytes_max
    return shares


def _given(request: FetchRequest, local: Mapping[PartitionKey, PartitionAnswer]) -> list[tuple[int, PartitionAnswer]]:
    """The answers with records, with their places in the request."""
    found = ((place, local.get(key_of(asked))) for place, asked in enumerate(request.partitions))
    return [(place, answer) for place, answer in found if answer is not None and answer.records_bytes]


def _wanted_bytes(plan: FetchPlan, part: TierPart) -> int:
    # Log starts only rise: what was below one will be refused, and takes nothing.
    is_read = part not in plan.instead and part.asked.fetch_offset >= part.frontier.log_start_offset
    return max(0, part.asked.partition_max_bytes) if is_read else 0


def limited_to(part: TierPart, share: Share) -> FetchPartition:
    """Return what a broker that reads this part in the tier's stead is asked for: what falls to it in its place."""
    return replace(part.asked, partition_max_bytes=min(part.asked.partition_max_bytes, share.bytes_max))


def first_at_broker(part: TierPart, share: Share, local_log_start_offset: int) -> FetchPartition:
    """Return what the broker is asked for where nothing is left between the offset and its log: the first that it
    has."""
    offset = max(part.asked.fetch_offset, local_log_start_offset)
    return replace(limited_to(part, share), last_fetched_epoch=-1, fetch_offset=offset)


# What a Fetch is answered with, before and after it is bytes.


TOP_LEVEL_ERROR_VERSION_MIN = 7
"""Before, an error of the whole request stands in every partition."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Answers to the partitions of a request, in its order; none in a throttled answer, or one with an error of the
    whole request.

    `sections` are the tagged sections of the responses that it is made of: they name nodes, at upstream's addresses.
    """

    partitions: Sequence[PartitionAnswer]
    throttle_time_ms: int = 0
    error_code: int = ErrorCode.NONE
    sections: Sequence[bytes] = ()


async def answer_frame(
    request: FetchRequest, answer: FetchAnswer, wire: UpstreamWire, session_id: int = NO_SESSION_ID
) -> list[Buffer]:
    """The whole response frame, in buffers. Listeners of the nodes that it names are bound when this returns."""
    tags = NO_TAGS
    if answer.sections and request.api_version >= ENDPOINTS_VERSION_MIN:
        endpoints = endpoints_of(answer.sections)
        if endpoints:
            tags = endpoints.section(await wire.advertise(endpoints.nodes))
    is_large = len(request.partitions) > ITEMS_AT_ONCE or len(answer.partitions) > ITEMS_AT_ONCE
    return await off_loop(is_large, partial(encode_answer, request, answer, session_id, tags))


def encode_answer(
    request: FetchRequest, answer: FetchAnswer, session_id: int = NO_SESSION_ID, tags: bytes = NO_TAGS
) -> list[Buffer]:
    """The same with a tagged section that is ready.

    What the version cannot say of the whole it says of each partition.
    """
    partitions, error_code = answer.partitions, answer.error_code
    if error_code and request.api_version < TOP_LEVEL_ERROR_VERSION_MIN:
        partitions = [
            PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, error_code)
            for asked in request.partitions
        ]
        error_code = ErrorCode.NONE
    return encode_response(
        request.api_version,
        request.correlation_id,
        throttle_time_ms=answer.throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        answers=partitions,
        tags=tags,
    )


def tier_answer(
    request: FetchRequest, part: TierPart, authority: Authority, result: TierRecords | None
) -> PartitionAnswer:
    """The answer of one vouched-for part; a result of None is a read that was not there in time."""
    asked = part.asked
    return PartitionAnswer(
        asked.topic,
        asked.topic_id,
        asked.partition,
        ErrorCode.NONE,
        authority.high_watermark,
        authority.last_stable_offset,
        authority.log_start_offset,
        aborted_transactions=_aborted(request, authority, result),
        records=() if result is None else result.buffers,
    )


def lacks_aborts(authority: Authority, result: TierRecords | Exception | None) -> bool:
    """Return whether aborted transactions of a READ_COMMITTED answer may be known to neither the tier nor the probe."""
    if not isinstance(result, TierRecords) or result.aborts is None or result.aborts.is_complete:
        return False
    return authority.aborted_tail is None or result.aborts.searched_below < authority.local_log_start_offset


def _aborted(request: FetchRequest, authority: Authority, result: TierRecords | None) -> list[tuple[int, int]] | None:
    """As at the broker: null where nothing was looked for, a list where READ_COMMITTED was answered with records."""
    if request.isolation_level != IsolationLevel.READ_COMMITTED or result is None or result.first_batch_too_large:
        return None
    aborts = result.aborts
    assert aborts is not None, "a READ_COMMITTED read without its search for aborts"
    aborted = [*aborts.transactions]
    if not aborts.is_complete:
        aborted += [entry for entry in authority.aborted_tail or () if entry[1] < aborts.upper_bound_offset]
    return list(dict.fromkeys(aborted))


def withhold_excess(
    request: FetchRequest, answers: MutableMapping[PartitionKey, PartitionAnswer], exceeding: Collection[PartitionKey]
) -> None:
    """Empty those answers beyond their limit that stand behind one with records (rule 4).

    A Fetch of our own grants the first partition that has records a batch beyond its limit; in the client's request
    that right may be another's, and there is one.
    """
    are_records_given = False
    for asked in request.partitions if exceeding else ():
        key = key_of(asked)
        answer = answers.get(key)
        if answer is None or not answer.records_bytes:
            continue
        if are_records_given and key in exceeding:
            answers[key] = replace(answer, records=(), aborted_transactions=None)
        are_records_given = True


def assemble(
    request: FetchRequest,
    answers: Mapping[PartitionKey, PartitionAnswer],
    throttle_time_ms: int,
    sections: Sequence[bytes] = (),
) -> FetchAnswer:
    """One answer per partition of the request; `sections` as FetchAnswer has them."""
    assembled = [answers.get(key_of(asked)) or _unanswered(asked) for asked in request.partitions]
    return FetchAnswer(assembled, throttle_time_ms, sections=sections)


def is_whole(answer: FetchResponse | FetchAnswer) -> bool:
    """Return whether it answers the request as a whole: throttled, without partitions, or an error."""
    return bool(answer.error_code) or (not answer.partitions and answer.throttle_time_ms > 0)


def pass_whole(response: FetchResponse) -> FetchAnswer:
    """Return what the broker answered to our part of the request, as the answer to all of it."""
    return FetchAnswer((), response.throttle_time_ms, response.error_code)


def _unanswered(asked: FetchPartition) -> PartitionAnswer:
    """Upstream left out a partition that it was asked for: nothing is known of it."""
    return PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
