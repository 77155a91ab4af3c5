"""Which partitions of a Fetch are the tier's, and how its byte budget is shared out. Pure.

The rules are the broker's (Kafka 4.2 and later): partitions take from the request's limit in request order; one that
is read remotely is charged min(its own limit, what is left) in advance, and the broker neither reads nor waits for one
that is left with nothing; a local one is charged what it gives; the first that gives anything may exceed its limit by
one batch, if its limit is not 0 where it is read remotely.

What a local partition gives is not known before the broker is asked, and no tier read waits for that:

1. A local partition in front of a tier partition takes min(its own limit, what is left) from it if it is believed to
   have records, and nothing otherwise. `has_records` says which (`proxy.fetch.own_fetch.LocalEnds`). So idle partitions
   at the end of their logs, which KIP-227's rotation gathers in front, take nothing from tier partitions behind them.
2. All local partitions are asked for in one Fetch, in request order; its limit is what all tier partitions leave
   together. So what a local one takes less than rule 1 supposed falls to the local ones behind it. Each is asked for
   with what the tier partitions in front of it leave at most.
3. The right to exceed a limit is planned for the first partition that is believed to have records. Whoever exceeded
   its limit behind one that gave records is emptied when the answer is put together (`proxy.fetch.assembly`).

If a belief is wrong, a tier partition gets less than at the broker, or a local one a single batch; the broker's answer
corrects the belief for the next Fetch.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from protocol.fetch.messages import FetchPartition, FetchRequest
from protocol.fetch.messages import PartitionKey as PartitionKey
from protocol.fetch.messages import key_of as key_of
from proxy.fetch.frontier import Frontier
from storage.model import TopicIdPartition

FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Kafka's default of the broker's `fetch.max.bytes`: a larger request is answered as if it had asked for this."""


@dataclass(slots=True, eq=False)
class TierPart:
    """A partition of a Fetch that is read from the tier. `budget_bytes` 0: answered empty, without a read.

    `frontier` is what the plan was made by; whoever learns better replaces it. Hashable, by identity.
    """

    asked: FetchPartition
    partition: TopicIdPartition
    frontier: Frontier
    budget_bytes: int = 0
    minimum_one_batch: bool = False


Place = TierPart | bool | None
"""What stands in one place of a request: a tier partition; a local one, True if it is believed to have records; or None
for one that is answered already, and takes nothing."""


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
            places.append(has_records(asked, frontier))
        else:
            places.append(TierPart(asked, candidate, frontier))
    return _share_out(request, places)


def leave_to_broker(request: FetchRequest, plan: FetchPlan, parts: Collection[TierPart]) -> FetchPlan:
    """The plan with these parts as local ones: the broker reads them remotely, and they keep their charge."""
    if not parts:
        return plan
    return _share_out(
        request,
        [
            place.asked.partition_max_bytes > 0 if isinstance(place, TierPart) and place in parts else place
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
    before = {part: (part.budget_bytes, part.minimum_one_batch) for part in plan.tier}
    left = _share_out(request, [None if place in parts else place for place in plan.places])
    return left, [part for part in left.tier if before[part] != (part.budget_bytes, part.minimum_one_batch)]


def _share_out(request: FetchRequest, places: Sequence[Place]) -> FetchPlan:
    """Give each tier part its budget, each local partition its limit, and one of them the right to exceed it."""
    tier: list[TierPart] = []
    local: list[FetchPartition] = []
    all_bytes = left = max(0, min(request.max_bytes, FETCH_BYTES_MAX))
    tier_bytes = 0
    granted = False
    for asked, place in zip(request.partitions, places, strict=True):
        if isinstance(place, TierPart):
            # Log starts only rise: what was below one will be refused, and takes nothing.
            is_out_of_range = asked.fetch_offset < place.frontier.log_start_offset
            place.budget_bytes = 0 if is_out_of_range else max(0, min(asked.partition_max_bytes, left))
            place.minimum_one_batch = place.budget_bytes > 0 and not granted
            granted |= place.minimum_one_batch
            left -= place.budget_bytes
            tier_bytes += place.budget_bytes
            tier.append(place)
        elif place is not None:
            bytes_max = all_bytes - tier_bytes
            local.append(asked if asked.partition_max_bytes <= bytes_max else _limited(asked, bytes_max))
            if place:
                granted = True
                left -= max(0, min(asked.partition_max_bytes, left))
    return FetchPlan(tier, local, all_bytes - tier_bytes, places)


def limited_to_budget(part: TierPart) -> FetchPartition:
    """What a broker that reads this part in the tier's stead is asked for: what falls to it in its place."""
    return _limited(part.asked, min(part.asked.partition_max_bytes, part.budget_bytes))


def _limited(asked: FetchPartition, bytes_max: int) -> FetchPartition:
    return replace(asked, partition_max_bytes=bytes_max)
