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

import trio

from metrics.probes import Direction, Probes
from protocol.api_01_fetch import FetchRequest, PartitionAnswer
from protocol.identifiers import IsolationLevel
from proxy.assembly import assemble, by_key, lacks_aborts, pass_whole, tier_answer
from proxy.client_reads import ClientReads
from proxy.fetch_answer import FetchAnswer
from proxy.fetch_plan import FetchPlan, PartitionKey, TierPart, key_of, share_out_again
from proxy.own_fetch import OwnFetch
from proxy.probe import Prober, Verdicts
from proxy.tier import Tier
from proxy.tier_reads import TierReads
from storage.reader import OffsetNotInTierError


async def exchange(
    request: FetchRequest,
    plan: FetchPlan,
    *,
    tier: Tier,
    prober: Prober,
    own_fetch: OwnFetch,
    probes: Probes,
    client: ClientReads,
    deadline_s: float,
    linger_s: float,
) -> FetchAnswer:
    """Answer a Fetch that has tier partitions.

    What the answer is made of is held by `client` until its `release`.
    """
    async with trio.open_nursery() as nursery:
        committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        reads = TierReads(
            tier, probes.tier, plan.tier, nursery, deadline_s=deadline_s, committed=committed, client=client
        )
        reads.start()
        try:
            verdicts = await prober.probe(request, plan.tier)
            if verdicts.whole is None:
                reads.settle([part for part, _ in verdicts.vouched], _to_read_again(request, plan, verdicts))
                await own_fetch.until_ready(request, plan, reads, linger_s)
        finally:
            reads.stop()
    if (whole := verdicts.whole or own_fetch.whole) is not None:
        return pass_whole(whole)

    answers: dict[PartitionKey, PartitionAnswer] = {key_of(part.asked): answer for part, answer in verdicts.answered}
    given_back = [*verdicts.given_back]
    bytes_left = request.max_bytes - own_fetch.bytes_got
    for part, authority in verdicts.vouched:
        result = reads.results.get(part)
        if isinstance(result, OffsetNotInTierError) or lacks_aborts(authority, result):
            given_back.append(part)
        else:
            answer = answers[key_of(part.asked)] = tier_answer(request, part, authority, result)
            bytes_left -= answer.records_bytes
            probes.relay.on_tier_served(answer.records_bytes)
    if given_back:
        # What they were charged in advance is theirs, also if an oversize batch took more than its share.
        charged_bytes = sum(part.budget_bytes for part in given_back)
        await own_fetch.ask(request, [part.asked for part in given_back], max(bytes_left, charged_bytes))
    if own_fetch.whole is not None:
        return pass_whole(own_fetch.whole)
    answers.update(by_key(own_fetch.answers))
    probes.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, sum(answer.records_bytes for answer in own_fetch.answers))
    throttle_time_ms = max(verdicts.throttle_time_ms, own_fetch.throttle_time_ms)
    return assemble(request, answers, throttle_time_ms, [*verdicts.sections, *own_fetch.sections])


def _to_read_again(request: FetchRequest, plan: FetchPlan, verdicts: Verdicts) -> list[TierPart]:
    """Parts whose reads began under another leader epoch, or with less than falls to them now."""
    if not verdicts.answered:
        return verdicts.learned_anew
    answered = {part for part, _ in verdicts.answered}
    richer = share_out_again([part for part in plan.tier if part not in answered], request.max_bytes)
    return [*verdicts.learned_anew, *richer]
