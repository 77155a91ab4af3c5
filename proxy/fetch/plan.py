"""The plan of a Fetch: which partitions are the tier's, and how its byte budget is shared out. Pure.

Rule 1. The plan is made once. What is learned later stands elsewhere: shares, and what the broker vouched for.
Rule 2. Local partitions are asked for in one Fetch, which may bring their part of the limit by number, or what the
        limits of the tier partitions leave of it if that is more.
Rule 3. Tier partitions get what the local ones did not take, in request order: each min(its own limit, what is left),
        as at the broker. One that is refused, or answered otherwise, takes nothing.
Rule 4. One batch in the whole answer may exceed a limit: that of the first partition in request order that has
        records. The broker grants that right to a local one; a tier partition in front of it has it too. If both use
        it, the local one is emptied (`proxy.fetch.answer.withhold_excess`) and takes nothing: local ones behind it that
        had to do without are asked for once more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from protocol.fetch.messages import NO_TAGS, FetchPartition, FetchRequest, PartitionAnswer, PartitionKey, key_of
from protocol.wire.errors import ErrorCode
from proxy.fetch.frontiers import Frontier
from storage.model import TopicIdPartition

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
