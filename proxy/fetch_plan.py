"""Which partitions of a Fetch are the tier's, and how its byte budget is shared out. Pure (design §3.6, L3).

Budgets as the broker's (spec/kafka-remote.md §3.2), with the tier first: its partitions are charged their whole
limit in advance, in request order; the first that has a limit may exceed it by one batch; one that is left with
nothing is answered empty, without a read. What remains is the limit of the client's own Fetch for the other partitions.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from protocol.api_01_fetch import FetchPartition, FetchRequest
from protocol.api_01_fetch import PartitionKey as PartitionKey
from protocol.api_01_fetch import key_of as key_of
from proxy.frontier import Frontier
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


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """A split Fetch: both sides in request order."""

    tier: Sequence[TierPart]
    local: Sequence[FetchPartition]
    local_bytes_max: int


def plan_fetch(
    request: FetchRequest,
    candidates: Sequence[TopicIdPartition | None],
    frontier_of: Callable[[TopicIdPartition], Frontier | None],
    belongs_to_tier: Callable[[FetchPartition, TopicIdPartition, Frontier], bool],
) -> FetchPlan:
    """Split a request.

    Args:
        candidates: for each partition of the request, its identity if the tier has segments of it.
        frontier_of: what is known of its offsets; None leaves the partition to the broker.
        belongs_to_tier: the verdict on one partition.
    """
    tier: list[TierPart] = []
    local: list[FetchPartition] = []
    for asked, candidate in zip(request.partitions, candidates, strict=True):
        frontier = None if candidate is None else frontier_of(candidate)
        if candidate is None or frontier is None or not belongs_to_tier(asked, candidate, frontier):
            local.append(asked)
        else:
            tier.append(TierPart(asked, candidate, frontier))
    return FetchPlan(tier, local, share_out(tier, request.max_bytes))


def leave_to_broker(request: FetchRequest, plan: FetchPlan, parts: Collection[TierPart]) -> FetchPlan:
    """The plan without these parts, which the broker answers."""
    if not parts:
        return plan
    tier = [part for part in plan.tier if part not in parts]
    kept = {key_of(part.asked) for part in tier}
    local = [asked for asked in request.partitions if key_of(asked) not in kept]
    return FetchPlan(tier, local, share_out(tier, request.max_bytes))


def share_out(parts: Sequence[TierPart], max_bytes: int) -> int:
    """Give each part its budget, and the first that has any its right to exceed it; returns the bytes left."""
    left = max(0, min(max_bytes, FETCH_BYTES_MAX))
    granted = False
    for part in parts:
        # Log starts only rise: what was below one will be refused, and takes nothing.
        is_out_of_range = part.asked.fetch_offset < part.frontier.log_start_offset
        part.budget_bytes = 0 if is_out_of_range else max(0, min(part.asked.partition_max_bytes, left))
        part.minimum_one_batch = part.budget_bytes > 0 and not granted
        granted |= part.minimum_one_batch
        left -= part.budget_bytes
    return left


def share_out_again(parts: Sequence[TierPart], max_bytes: int) -> list[TierPart]:
    """Share out among the parts that are left of a plan; returns those that now have other budgets.

    A part that is refused each time must not keep those behind it without bytes for good.
    """
    before = [(part.budget_bytes, part.minimum_one_batch) for part in parts]
    share_out(parts, max_bytes)
    return [part for part, had in zip(parts, before, strict=True) if had != (part.budget_bytes, part.minimum_one_batch)]
