"""What happens to a Fetch. Read me first.

    client ──Fetch──▶ plan: which partitions lie below the frontier?
                       │ none: the frame is relayed as it came
                       ▼
        probe on the client's own connection: may it? HW, LSO, log start
                       │    beside it, reads of partitions that it was allowed before
                       ▼
        tier reads ──▶ its own Fetch for the rest
                       │
                       ▼
        each read is judged ──▶ what the tier has not, or fails to read, is asked of the broker too
                       │
                       ▼
                    assembly: one answer per partition, in request order

Nothing of the tier leaves without the probe's word, and nothing is fetched for a client that never had it
(docs/protocol.md#l1): the first read of a partition on a connection starts after its probe, later ones beside theirs
(`proxy.fetch.known`). One deadline holds for all of it (docs/protocol.md#l3); a read that misses it is answered
empty, and its fill goes on for the next request. A probe's answer is waited for as the client waits for its broker,
without an end of our own: to answer in a hung broker's place would hide from clients that they have to turn away from
it. But from the deadline on nothing is held for it (`proxy.fetch.tier`, rule 4).

A read that fails is the broker's to do (`proxy.fetch.fallback`, docs/protocol.md#l2); what the broker cannot take at
the moment, or at all (`proxy.tier_owner`), is put off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from metrics.meters import Direction, FallbackReason, Meters
from protocol.fetch.messages import FetchRequest, PartitionAnswer
from protocol.record_batches import first_bad_batch
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from proxy.connection.audit import ClientAudit
from proxy.connection.request_handlers import ITEMS_AT_ONCE, ClientReads, off_loop
from proxy.fetch.assembly import (
    FetchAnswer,
    FetchPlan,
    Instead,
    PartitionKey,
    Share,
    TierPart,
    assemble,
    bytes_max_of,
    first_at_broker,
    key_of,
    lacks_aborts,
    limited_to,
    pass_whole,
    share_out,
    tier_answer,
    withhold_excess,
)
from proxy.fetch.fallback import COME_AGAIN, Fallback, Way, comes_again_s
from proxy.fetch.known import Authority
from proxy.fetch.probe import OwnFetch, Prober, Verdicts
from proxy.fetch.tier import Tier, TierReads
from proxy.tier_owner import TierOwner
from storage.reading.reader import VERIFY_IN_THREAD_BYTES, OffsetNotInTierError, TierRecords
from storage.reading.segment_finder import LocalLogIsNextError

BROKER_WAIT_MS_MAX = 5000
"""What a broker may take for a partition that the tier failed to read."""


@dataclass(slots=True)
class _Sorted:
    """The parts of a plan by who answers them; `failed` and `later` with what the broker vouched for."""

    owner: TierOwner
    fallback: Fallback
    answers: dict[PartitionKey, PartitionAnswer]
    """Answered: by the probe, or with the tier's records."""
    given_back: list[TierPart] = field(default_factory=list)
    """Not the tier's after all: the broker's."""
    failed: list[tuple[TierPart, Authority]] = field(default_factory=list)
    """The tier's, which fails: the broker's as far as it goes (`Fallback.at_broker`)."""
    later: list[tuple[TierPart, Authority | None]] = field(default_factory=list)
    """Put off; without an authority what the broker has not vouched for."""
    next_at_broker: list[TierPart] = field(default_factory=list)
    """Nothing is left below the broker's log, whose first records answer."""
    exceeding: set[PartitionKey] = field(default_factory=set)
    """Those whose records are more than their share."""

    def give_back(self, part: TierPart, local_log_start_offset: int, authority: Authority | None) -> None:
        """A part is not the tier's after all: it is the broker's, if that has it."""
        if self.owner.can_broker_read(part.asked.fetch_offset, local_log_start_offset):
            self.given_back.append(part)
        else:
            self._put_off(part, authority)

    def fail(self, part: TierPart, authority: Authority) -> None:
        """The tier fails a part: it is the broker's as far as that goes, if that has it."""
        if self.owner.can_broker_read(part.asked.fetch_offset, authority.local_log_start_offset):
            self.failed.append((part, authority))
        else:
            self._put_off(part, authority)

    def answer_instead(self, request: FetchRequest, part: TierPart, authority: Authority, instead: Instead) -> None:
        """A part was not read, as was known before."""
        if instead.error_code == COME_AGAIN:
            self.give_back(part, authority.local_log_start_offset, authority)
        elif instead.error_code:
            self.answers[key_of(part.asked)] = _refusal(part, instead.error_code)
        else:
            answer = tier_answer(request, part, authority, None)
            self.answers[key_of(part.asked)] = replace(answer, tags=instead.tags)

    def _put_off(self, part: TierPart, authority: Authority | None) -> None:
        """Nobody has it just now. Each time is counted."""
        self.fallback.refuse(1)
        self.later.append((part, authority))

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
    meters: Meters,
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
        reads = TierReads(tier, meters.tier, nursery, deadline_s=deadline_s, committed=committed, client=client)
        try:
            verdicts, shares = await _read(request, plan, prober, own_fetch, reads, fallback, linger_s)
        finally:
            reads.stop()
    if (whole := verdicts.whole or own_fetch.whole) is not None:
        return pass_whole(whole)

    parts = _sort(request, plan, verdicts, shares, tier.owner, reads, fallback, client, started_s)
    refused = await _ask_broker(request, verdicts, shares, parts, own_fetch, tier, fallback, prober.node_id)
    if (put_off := parts.later + refused) and own_fetch.whole is None:
        if not (own_fetch.has_news or parts.has_news):
            await own_fetch.until_news(request, plan, comes_again_s(started_s, request.max_wait_ms))
        # Beside records an empty answer brings the client back soon enough, and is no reason to doubt the leader.
        is_beside_news = own_fetch.has_news or parts.has_news
        for part, authority in put_off:
            if is_beside_news and authority is not None:
                parts.answers[key_of(part.asked)] = tier_answer(request, part, authority, None)
            else:
                parts.answers[key_of(part.asked)] = _refusal(part, COME_AGAIN)
    if own_fetch.whole is not None:
        return pass_whole(own_fetch.whole)
    brokers = own_fetch.by_key
    answers = {**parts.answers, **brokers}
    withhold_excess(request, answers, {*parts.exceeding, *own_fetch.exceeding})
    by_tier = parts.answers.keys() - brokers.keys()
    meters.relay.on_tier_served(sum(answers[key].records_bytes for key in by_tier))
    if client.audit is not None:
        _note_reads(client.audit, request, plan, {key: answers[key] for key in by_tier}, reads)
    meters.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, sum(answers[key].records_bytes for key in brokers))
    throttle_time_ms = max(verdicts.throttle_time_ms, own_fetch.throttle_time_ms)
    sections = [*verdicts.sections, *own_fetch.sections]
    is_large = len(request.partitions) > ITEMS_AT_ONCE
    return await off_loop(is_large, partial(assemble, request, answers, throttle_time_ms, sections))


async def _read(
    request: FetchRequest,
    plan: FetchPlan,
    prober: Prober,
    own_fetch: OwnFetch,
    reads: TierReads,
    fallback: Fallback,
    linger_s: float,
) -> tuple[Verdicts, Mapping[TierPart, Share]]:
    """Ask the broker, read what it allows, and return what it said and how the limit was shared out by that."""
    shares: Mapping[TierPart, Share] = {}
    if not plan.local:
        shares = share_out(request, plan, plan.tier, {})
        # One that is to try the tier after trouble waits for the word: a refused one must not use up the try.
        allowed = (part for part in plan.tier if prober.has_right(part) and not fallback.is_in_spell(part.partition))
        reads.start(allowed, shares)
    verdicts = await prober.probe(request, plan.tier, partial(own_fetch.begin, request, plan))
    if verdicts.whole is None:
        await own_fetch.first_answer()
    if verdicts.whole is not None or own_fetch.whole is not None:
        return verdicts, {}
    vouched = verdicts.vouched
    if plan.local or verdicts.answered:
        unanswered = (part for part in plan.tier if part not in verdicts.answered)
        shares = share_out(request, plan, unanswered, own_fetch.by_key)
    reads.settle(vouched, shares, verdicts.learned_anew)
    wanted = (part for part in plan.tier if part in vouched and part not in reads.parts)
    reads.start((part for part in wanted if fallback.reads_tier(part.partition)), shares, vouched)
    left_bytes = bytes_max_of(request) - sum(share.bytes_max for share in shares.values())
    await own_fetch.until_ready(request, plan, reads, linger_s, left_bytes)
    return verdicts, shares


def _sort(
    request: FetchRequest,
    plan: FetchPlan,
    verdicts: Verdicts,
    shares: Mapping[TierPart, Share],
    owner: TierOwner,
    reads: TierReads,
    fallback: Fallback,
    client: ClientReads,
    started_s: float,
) -> _Sorted:
    """Say of each part who answers it."""
    parts = _Sorted(owner, fallback, {key_of(part.asked): answer for part, answer in verdicts.answered.items()})
    for part, known in verdicts.given_back.items():
        parts.give_back(part, known.local_log_start_offset, None)
    for part, authority in verdicts.vouched.items():
        result = reads.results.get(part)
        if (instead := plan.instead.get(part)) is not None:
            parts.answer_instead(request, part, authority, instead)
            continue
        if isinstance(result, LocalLogIsNextError):
            parts.next_at_broker.append(part)
            continue
        if isinstance(result, OffsetNotInTierError) or lacks_aborts(authority, result):
            parts.give_back(part, authority.local_log_start_offset, authority)
            continue
        match _way_of(part, result, shares[part], reads, fallback, client, started_s):
            case Way.BROKER:
                parts.fail(part, authority)
            case Way.LATER:
                parts.later.append((part, authority))
            case Way.TIER:
                records = result if isinstance(result, TierRecords) else None
                if records is not None and records.size_bytes > shares[part].bytes_max:
                    parts.exceeding.add(key_of(part.asked))
                parts.answers[key_of(part.asked)] = tier_answer(request, part, authority, records)
    return parts


def _way_of(
    part: TierPart,
    result: TierRecords | Exception | None,
    share: Share,
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
        return Way.BROKER if share.bytes_max else Way.TIER
    if result is None and part not in reads.expired:
        return Way.TIER  # cut short by the linger: that it is late says nothing of the tier
    return fallback.judge(partition, offset, result, patience=client.patience, started_s=started_s)


async def _ask_broker(
    request: FetchRequest,
    verdicts: Verdicts,
    shares: Mapping[TierPart, Share],
    parts: _Sorted,
    own_fetch: OwnFetch,
    tier: Tier,
    fallback: Fallback,
    node_id: int,
) -> list[tuple[TierPart, Authority | None]]:
    """Ask the broker for what the tier does not read, as much as falls to each in its place of the client's request;
    returns what it cannot take at the moment."""
    with fallback.at_broker(node_id, len(parts.failed)) as granted:
        taken = [part for part, _ in parts.failed[:granted]]
        questions = {part: limited_to(part, shares[part]) for part in (*parts.given_back, *taken)}
        for part in parts.next_at_broker:
            local_start = verdicts.vouched[part].local_log_start_offset
            questions[part] = first_at_broker(part, shares[part], local_start)
        if questions:
            asked = sorted(questions, key=lambda part: part.place)
            charged_bytes = sum(shares[part].bytes_max for part in asked)
            # Brokers before 3.8 let a remote read take the request's wait, later ones have a limit of their own.
            wait_ms = min(request.max_wait_ms, BROKER_WAIT_MS_MAX) if charged_bytes else 0
            await own_fetch.ask(request, [questions[part] for part in asked], charged_bytes, max_wait_ms=wait_ms)
        for part in taken if own_fetch.whole is None else ():
            fallback.on_broker_read(part.partition, own_fetch.bytes_of(part.asked))
            answer = own_fetch.by_key.get(key_of(part.asked))
            if answer is not None and fallback.reason_of(part.partition) is FallbackReason.CORRUPT:
                segment = tier.segment_of(part, verdicts.vouched[part].leader_epoch)
                await _leave_bad_out(part, answer, segment, fallback)
    return [*parts.failed[granted:]]


async def _leave_bad_out(part: TierPart, answer: PartitionAnswer, segment: str | None, fallback: Fallback) -> None:
    """Law L2: of what the broker read where the tier is damaged no bad batch is handed on."""
    if not answer.records:
        return
    records = memoryview(answer.records[0])  # all of them: they are of one frame
    asked = records, part.asked.fetch_offset, answer.high_watermark
    if len(records) < VERIFY_IN_THREAD_BYTES:
        bad = first_bad_batch(*asked)
    else:
        bad = await trio.to_thread.run_sync(first_bad_batch, *asked)
    if bad is None:
        return
    position, offset, why = bad
    if position:
        answer.records = (records[:position],)
        return
    fallback.on_corrupt(part.partition, offset, why, segment)
    answer.error_code, answer.records, answer.aborted_transactions = ErrorCode.CORRUPT_MESSAGE, (), None


def _note_reads(
    audit: ClientAudit,
    request: FetchRequest,
    plan: FetchPlan,
    by_tier: Mapping[PartitionKey, PartitionAnswer],
    reads: TierReads,
) -> None:
    """Tell the audit log of what the answer has of the tier."""
    for part in plan.tier:
        records, answer = reads.results.get(part), by_tier.get(key_of(part.asked))
        if isinstance(records, TierRecords) and answer is not None and answer.records:
            audit.serves(request.client_id, part.partition, records)


def _refusal(part: TierPart, error_code: ErrorCode) -> PartitionAnswer:
    return PartitionAnswer.error(part.asked.topic, part.asked.topic_id, part.asked.partition, error_code)
