"""Merging probe answers, tier records and the broker's own answers into one Fetch response. Pure
(ARCHITECTURE.md#one-request-end-to-end).

Offsets are the broker's live ones, from the probe; record bytes are the tier's. Every partition of the request
has one answer, in request order.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
# The rules are the broker's (Kafka 4.2 and later): partitions take from the request's limit in request order; one that
# is read remotely is charged min(its own limit, what is left) in advance, and the broker neither reads nor waits for
# one that is left with nothing; a local one is charged what it gives; the first that gives anything may exceed its
# limit by one batch, if its limit is not 0 where it is read remotely.
#
# What a local partition gives is not known before the broker is asked, and no tier read waits for that:
#
# 1. A local partition in front of a tier partition takes min(its own limit, what is left) from it if it is believed to
#    have records, and nothing otherwise. `has_records` says which (`proxy.fetch.probe.LocalEnds`). So idle partitions
#    at the end of their logs, which KIP-227's rotation gathers in front, take nothing from tier partitions behind them.
# 2. All local partitions are asked for in one Fetch, in request order; its limit is what all tier partitions leave
#    together. So what a local one takes less than rule 1 supposed falls to the local ones behind it. Each is asked for
#    with what the tier partitions in front of it leave at most.
# 3. The right to exceed a limit is planned for the first tier partition that may have any, whatever stands in front of
#    it: a local one that is believed to have records may be answered with an error, or with logs that diverge. A
#    partition that exceeded its limit behind one that gave records is emptied when the answer is put together.
#
# 4. What local ones in front turn out to give less than rule 1 supposed falls to the tier partitions behind them, if
#    these have less than they asked for and no local one behind has taken it (`share_out_again`).
#
# If a belief is wrong the other way round, a local one gets a single batch; the broker's answer corrects the belief
# for the next Fetch.


FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Kafka's default of the broker's `fetch.max.bytes`: a larger request is answered as if it had asked for this."""


@dataclass(frozen=True, slots=True)
class Instead:
    """What a client gets for a partition in place of records: an error, or tags."""

    error_code: ErrorCode = ErrorCode.NONE
    tags: bytes = NO_TAGS


@dataclass(slots=True, eq=False)
class TierPart:
    """A partition of a Fetch that is read from the tier. `budget_bytes` 0: answered empty, without a read.

    `frontier` is what the plan was made by; later knowledge replaces it. Hashable, by identity.
    """

    asked: FetchPartition
    partition: TopicIdPartition
    frontier: Frontier
    budget_bytes: int = 0
    minimum_one_batch: bool = False
    instead: Instead | None = None
    """With what it is answered without a read, whatever its offset."""


Place = TierPart | int | None
"""What stands in one place of a request: a tier partition; a local one, with the bytes that it is believed to give at
most; or None for one that is answered already, and takes nothing."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """A split Fetch: both sides in request order, and what stands in each place of the request."""

    tier: Sequence[TierPart]
    local: Sequence[FetchPartition]
    local_bytes_max: int
    places: Sequence[Place]


def plan_fetch(
    request: FetchRequest,
    candidates: Sequence[TopicIdPartition | None],
    frontier_of: Callable[[TopicIdPartition], Frontier | None],
    belongs_to_tier: Callable[[FetchPartition, TopicIdPartition, Frontier], bool],
    has_records: Callable[[FetchPartition, Frontier | None], bool],
) -> FetchPlan:
    """Split a request.

    Args:
        candidates: for each partition of the request, its identity if the tier has segments of it.
        frontier_of: what is known of its offsets; None leaves the partition to the broker.
        belongs_to_tier: the verdict on one partition.
        has_records: whether the broker is believed to have records of a local partition where it is read.
    """
    places: list[Place] = []
    for asked, candidate in zip(request.partitions, candidates, strict=True):
        frontier = None if candidate is None else frontier_of(candidate)
        if candidate is None or frontier is None or not belongs_to_tier(asked, candidate, frontier):
            places.append(asked.partition_max_bytes if has_records(asked, frontier) else 0)
        else:
            places.append(TierPart(asked, candidate, frontier))
    return _share_out(request, places)


def leave_to_broker(request: FetchRequest, plan: FetchPlan, parts: Collection[TierPart]) -> FetchPlan:
    """The plan with these parts as local ones: the broker reads them remotely, and they keep their charge. Those that
    are not read have none."""
    if not parts and not any(part.instead for part in plan.tier):
        return plan
    return _share_out(
        request,
        [
            place.asked.partition_max_bytes if isinstance(place, TierPart) and place in parts else place
            for place in plan.places
        ],
    )


def leave_out(
    request: FetchRequest, plan: FetchPlan, parts: Collection[TierPart]
) -> tuple[FetchPlan, Sequence[TierPart]]:
    """The plan without these parts, which are answered; and which of the others may read more or less than before.

    A part that is refused each time must not keep those behind it without bytes for good.
    """
    if not parts:
        return plan, ()
    before = _rights(plan)
    left = _share_out(request, [None if place in parts else place for place in plan.places])
    return left, [part for part in left.tier if before[part] != (part.budget_bytes, part.minimum_one_batch)]


def share_out_again(
    request: FetchRequest, plan: FetchPlan, answers: Mapping[PartitionKey, PartitionAnswer]
) -> tuple[FetchPlan, Sequence[TierPart]]:
    """The plan by what the broker gave to its local partitions (rule 4); and which tier parts may read more by it."""
    if not answers or all(part.budget_bytes >= part.asked.partition_max_bytes for part in plan.tier):
        return plan, ()
    before, local_bytes = _rights(plan), 0
    places = list(plan.places)
    for number, (asked, place) in enumerate(zip(request.partitions, places, strict=True)):
        answer = None if isinstance(place, TierPart) else answers.get(key_of(asked))
        if answer is not None and isinstance(place, int):
            local_bytes += answer.records_bytes
            places[number] = min(place, answer.records_bytes)
    again = _share_out(request, places)
    changed = [part for part in again.tier if before[part] != (part.budget_bytes, part.minimum_one_batch)]
    if again.local_bytes_max >= local_bytes:
        return again, changed
    for part, rights in before.items():
        part.budget_bytes, part.minimum_one_batch = rights
    return plan, ()


def _rights(plan: FetchPlan) -> dict[TierPart, tuple[int, bool]]:
    return {part: (part.budget_bytes, part.minimum_one_batch) for part in plan.tier}


def _share_out(request: FetchRequest, places: Sequence[Place]) -> FetchPlan:
    """Give each tier part its budget, each local partition its limit, and one tier part the right to exceed it."""
    tier: list[TierPart] = []
    local: list[FetchPartition] = []
    all_bytes = left = max(0, min(request.max_bytes, FETCH_BYTES_MAX))
    tier_bytes = 0
    granted = False
    for asked, place in zip(request.partitions, places, strict=True):
        if isinstance(place, TierPart):
            # Log starts only rise: what was below one will be refused, and takes nothing.
            is_out_of_range = asked.fetch_offset < place.frontier.log_start_offset
            place.budget_bytes = 0 if is_out_of_range or place.instead else max(0, min(asked.partition_max_bytes, left))
            place.minimum_one_batch = place.budget_bytes > 0 and not granted
            granted |= place.minimum_one_batch
            left -= place.budget_bytes
            tier_bytes += place.budget_bytes
            tier.append(place)
        elif place is not None:
            bytes_max = all_bytes - tier_bytes
            local.append(asked if asked.partition_max_bytes <= bytes_max else _limited(asked, bytes_max))
            left -= max(0, min(place, left))
    return FetchPlan(tier, local, all_bytes - tier_bytes, places)


def limited_to_budget(part: TierPart) -> FetchPartition:
    """Return what a broker that reads this part in the tier's stead is asked for: what falls to it in its place."""
    return _limited(part.asked, min(part.asked.partition_max_bytes, part.budget_bytes))


def first_at_broker(part: TierPart) -> FetchPartition:
    """Return what the broker is asked for where nothing is left between the offset and its log: the first that it
    has."""
    asked = replace(limited_to_budget(part), last_fetched_epoch=-1)
    return replace(asked, fetch_offset=max(asked.fetch_offset, part.frontier.local_log_start_offset))


def _limited(asked: FetchPartition, bytes_max: int) -> FetchPartition:
    return replace(asked, partition_max_bytes=bytes_max)


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
) -> set[PartitionKey]:
    """Empty those answers beyond their limit that stand behind one with records (proxy.fetch.assembly, rule 3); which.

    A Fetch of our own grants the first partition that has records a batch beyond its limit; in the client's request
    that right may be another's, and there is one.
    """
    withheld: set[PartitionKey] = set()
    are_records_given = False
    for asked in request.partitions if exceeding else ():
        key = key_of(asked)
        answer = answers.get(key)
        if answer is None or not answer.records_bytes:
            continue
        if are_records_given and key in exceeding:
            answers[key] = replace(answer, records=(), aborted_transactions=None)
            withheld.add(key)
        are_records_given = True
    return withheld


def starved_behind(
    withheld: Collection[PartitionKey], asked: Sequence[FetchPartition], answers: Mapping[PartitionKey, PartitionAnswer]
) -> list[FetchPartition]:
    """Return what a Fetch of our own asked for and got without records behind a withheld partition. That one may have
    taken what the broker would have given them."""
    keys = [key_of(each) for each in asked]
    first = next((at for at, key in enumerate(keys) if key in withheld), len(keys))
    return [
        each
        for each, key in zip(asked[first:], keys[first:], strict=True)
        if key not in withheld and (answer := answers.get(key)) is not None and not answer.records_bytes
        if not answer.error_code
    ]


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
