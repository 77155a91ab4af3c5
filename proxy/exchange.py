"""What happens to a Fetch. Read me first.

    client ──Fetch──▶ plan: which partitions lie below the frontier?
                       │ none: the frame is relayed as it came
                       ▼
        tier reads start ──▶ probe on the client's own connection ──▶ its own Fetch for the rest
                       │            (may it? HW, LSO, log start)            │
                       ▼                                                    ▼
                    assembly: one answer per partition, in request order

Nothing of the tier leaves without the probe's word (design L1). One deadline holds for all of it (L3); a read
that misses it is answered empty, and its fill goes on for the next request.
"""

from collections.abc import Sequence

import trio

from metrics.probes import Direction, Probes
from protocol.api_01_fetch import FetchRequest, PartitionAnswer
from proxy.assembly import assemble, by_key, pass_whole, tier_answer
from proxy.fetch_plan import FetchPlan, PartitionKey, key_of
from proxy.own_fetch import OwnFetch
from proxy.probe import Prober
from proxy.tier import Tier
from proxy.tier_reads import TierReads
from proxy.upstream.transport import Bytes
from storage.reader import OffsetNotInTierError


async def exchange(
    request: FetchRequest,
    plan: FetchPlan,
    *,
    tier: Tier,
    prober: Prober,
    own_fetch: OwnFetch,
    probes: Probes,
    deadline_s: float,
    linger_s: float,
) -> Sequence[Bytes]:
    """Answer a Fetch that has tier partitions. Returns the whole response frame, in buffers."""
    reads = TierReads(tier, probes.tier, plan.tier, deadline_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads.run)
        try:
            verdicts = await prober.probe(request, plan.tier)
            if verdicts.whole is None:
                await own_fetch.until_ready(request, plan, reads, linger_s)
        finally:
            reads.stop()
    if (whole := verdicts.whole or own_fetch.whole) is not None:
        return pass_whole(request, whole)

    answers: dict[PartitionKey, PartitionAnswer] = {key_of(part.asked): answer for part, answer in verdicts.answered}
    given_back = [part.asked for part in verdicts.given_back]
    result_of = {id(part): reads.results.get(index) for index, part in enumerate(plan.tier)}
    if verdicts.answered:
        refused = {id(part) for part, _ in verdicts.answered}
        result_of.update(await reads.again_without(refused, request.max_bytes))
    for part, authority in verdicts.vouched:
        if isinstance(result := result_of[id(part)], OffsetNotInTierError):
            given_back.append(part.asked)
        else:
            answer = answers[key_of(part.asked)] = tier_answer(request, part, authority, result)
            probes.relay.on_tier_served(answer.records_bytes)
    if given_back:
        await own_fetch.ask(request, given_back, max(plan.local_bytes_max, request.max_bytes - own_fetch.bytes_got))
    if own_fetch.whole is not None:
        return pass_whole(request, own_fetch.whole)
    answers.update(by_key(own_fetch.answers))
    probes.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, sum(answer.records_bytes for answer in own_fetch.answers))
    return assemble(request, answers, max(verdicts.throttle_time_ms, own_fetch.throttle_time_ms))
