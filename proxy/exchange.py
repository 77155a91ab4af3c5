"""What happens to a Fetch. Read me first.

    client ──Fetch──▶ plan: which partitions lie below the frontier?
                       │ none: the frame is relayed as it came
                       ▼
        tier reads start ──▶ probe on the client's own connection ──▶ its own Fetch for the rest
                       │            (may it? HW, LSO, log start)            │
                       ▼                                                    ▼
        each read is judged ──▶ what the tier has not, or fails to read, is asked of the broker too
                       │
                       ▼
                    assembly: one answer per partition, in request order

Nothing of the tier leaves without the probe's word (design L1). One deadline holds for all of it (L3); a read
that misses it is answered empty, and its fill goes on for the next request. A read that fails is the broker's to do
(`proxy.fallback`, L2); what the broker cannot take at the moment is put off.
"""

from dataclasses import dataclass, field, replace

import trio

from metrics.probes import Direction, Probes
from protocol.api_01_fetch import FetchRequest, PartitionAnswer
from protocol.identifiers import IsolationLevel
from proxy.assembly import assemble_in_slices, lacks_aborts, pass_whole, tier_answer
from proxy.authority import Authority
from proxy.client_reads import ClientReads
from proxy.fallback import COME_AGAIN, Fallback, Way, comes_again_s
from proxy.fetch_answer import FetchAnswer
from proxy.fetch_plan import FetchPlan, PartitionKey, TierPart, key_of, share_out_again
from proxy.own_fetch import OwnFetch
from proxy.probe import Prober, Verdicts
from proxy.slices import in_slices
from proxy.tier import Tier
from proxy.tier_reads import TierReads
from storage.reader import OffsetNotInTierError, TierRecords

BROKER_WAIT_MS_MAX = 5000
"""What a broker may take for a partition that the tier failed to read."""


@dataclass(slots=True)
class _Sorted:
    """The parts of a plan by who answers them; `failed` and `later` with what the broker vouched for."""

    answers: dict[PartitionKey, PartitionAnswer]
    """Answered: by the probe, or with the tier's records."""
    given_back: list[TierPart]
    """Not the tier's after all: the broker's."""
    failed: list[tuple[TierPart, Authority]] = field(default_factory=list)
    """The tier's, which fails: the broker's as far as it goes (`Fallback.at_broker`)."""
    later: list[tuple[TierPart, Authority]] = field(default_factory=list)
    """Put off."""

    @property
    def records_bytes(self) -> int:
        return sum(answer.records_bytes for answer in self.answers.values())

    @property
    def has_news(self) -> bool:
        return any(answer.records_bytes or answer.error_code for answer in self.answers.values())


async def exchange(
    request: FetchRequest,
    plan: FetchPlan,
    *,
    tier: Tier,
    fallback: Fallback,
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
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        wanted = [part for part in plan.tier if fallback.reads_tier(part.partition)]
        reads = TierReads(tier, probes.tier, wanted, nursery, deadline_s=deadline_s, committed=committed, client=client)
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

    parts = _sort(request, verdicts, reads, fallback, client, started_s)
    probes.relay.on_tier_served(parts.records_bytes)
    put_off = parts.later + await _ask_broker(request, parts, own_fetch, fallback, prober.node_id)
    if put_off and own_fetch.whole is None:
        if not (own_fetch.has_news or parts.has_news):
            await own_fetch.until_news(request, plan, comes_again_s(started_s, request.max_wait_ms))
        # Beside records an empty answer brings the client back soon enough, and is no reason to doubt the leader.
        is_beside_news = own_fetch.has_news or parts.has_news
        for part, authority in put_off:
            empty = tier_answer(request, part, authority, None)
            parts.answers[key_of(part.asked)] = empty if is_beside_news else _come_again(part)
    if own_fetch.whole is not None:
        return pass_whole(own_fetch.whole)
    parts.answers.update(own_fetch.by_key)
    probes.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, sum(answer.records_bytes for answer in own_fetch.answers))
    throttle_time_ms = max(verdicts.throttle_time_ms, own_fetch.throttle_time_ms)
    sections = [*verdicts.sections, *own_fetch.sections]
    return await in_slices(assemble_in_slices(request, parts.answers, throttle_time_ms, sections))


def _sort(
    request: FetchRequest,
    verdicts: Verdicts,
    reads: TierReads,
    fallback: Fallback,
    client: ClientReads,
    started_s: float,
) -> _Sorted:
    """Say of each part who answers it."""
    parts = _Sorted({key_of(part.asked): answer for part, answer in verdicts.answered}, [*verdicts.given_back])
    for part, authority in verdicts.vouched:
        result = reads.results.get(part)
        if isinstance(result, OffsetNotInTierError) or lacks_aborts(authority, result):
            parts.given_back.append(part)
            continue
        match _way_of(part, result, reads, fallback, client, started_s):
            case Way.BROKER:
                parts.failed.append((part, authority))
            case Way.LATER:
                parts.later.append((part, authority))
            case Way.TIER:
                records = result if isinstance(result, TierRecords) else None
                parts.answers[key_of(part.asked)] = tier_answer(request, part, authority, records)
    return parts


def _way_of(
    part: TierPart,
    result: TierRecords | Exception | None,
    reads: TierReads,
    fallback: Fallback,
    client: ClientReads,
    started_s: float,
) -> Way:
    partition, offset = part.partition, part.asked.fetch_offset
    if isinstance(result, TierRecords):
        if result.size_bytes:
            client.patience.end(partition)
            fallback.served(partition)
        return Way.TIER
    if part not in reads.parts:
        return Way.BROKER if part.budget_bytes else Way.TIER
    if result is None and part not in reads.expired:
        return Way.TIER  # cut short by the linger: that it is late says nothing of the tier
    return fallback.judge(partition, offset, result, patience=client.patience, started_s=started_s)


async def _ask_broker(
    request: FetchRequest, parts: _Sorted, own_fetch: OwnFetch, fallback: Fallback, node_id: int
) -> list[tuple[TierPart, Authority]]:
    """Have the broker read what the tier does not; returns what it cannot take at the moment."""
    with fallback.at_broker(node_id, len(parts.failed)) as granted:
        taken = [part for part, _ in parts.failed[:granted]]
        asked = [*parts.given_back, *taken]
        if asked:
            bytes_left = request.max_bytes - own_fetch.bytes_got - parts.records_bytes
            # What they were charged in advance is theirs, also if an oversize batch took more than its share.
            charged_bytes = sum(part.budget_bytes for part in asked)
            # Brokers before 3.8 let a remote read take the request's wait, later ones have a limit of their own.
            wait_ms = min(request.max_wait_ms, BROKER_WAIT_MS_MAX)
            others_have_records = bool(own_fetch.bytes_got or parts.records_bytes)
            # The broker reads at most what falls to a partition at its place in the client's request.
            partitions = [part.asked for part in parts.given_back]
            partitions += [replace(part.asked, partition_max_bytes=part.budget_bytes) for part in taken]
            await own_fetch.ask(request, partitions, max(bytes_left, charged_bytes), max_wait_ms=wait_ms)
            if others_have_records:
                rightless = [each for part, each in zip(asked, partitions, strict=True) if not part.minimum_one_batch]
                own_fetch.withhold_excess(rightless)
        for part in taken if own_fetch.whole is None else ():
            fallback.on_broker_read(part.partition, own_fetch.bytes_of(part.asked))
    return parts.failed[granted:]


def _come_again(part: TierPart) -> PartitionAnswer:
    return PartitionAnswer.error(part.asked.topic, part.asked.topic_id, part.asked.partition, COME_AGAIN)


def _to_read_again(request: FetchRequest, plan: FetchPlan, verdicts: Verdicts) -> list[TierPart]:
    """Parts whose reads began under another leader epoch, or with less than falls to them now."""
    if not verdicts.answered:
        return verdicts.learned_anew
    answered = {part for part, _ in verdicts.answered}
    richer = share_out_again([part for part in plan.tier if part not in answered], request.max_bytes)
    return [*verdicts.learned_anew, *richer]
