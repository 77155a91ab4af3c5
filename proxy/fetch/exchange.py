"""One Fetch from end to end (the package's docstring has the picture).

Nothing of the tier leaves without the probe's word, and nothing is fetched for a client that never had it
(docs/protocol.md#l1): the first read of a partition on a connection starts after its probe, later ones beside theirs
(`proxy.fetch.authorities`). Beside local partitions all reads wait for these, which cost no round trip of their own:
what they leave of the limit is the tier's (`proxy.fetch.plan`).

One deadline holds for all of it (docs/protocol.md#l3); a read that misses it is answered empty, and its fill goes on
for the next request. A probe's answer is waited for as the client waits for its broker, without an end of our own: to
answer in a hung broker's place would hide from clients that they have to turn away from it. But from the deadline on
nothing is held for it (`proxy.fetch.reads`, rule 4).

A read that fails is the broker's to do (`proxy.fetch.fallback`, docs/protocol.md#l2); what the broker cannot take at
the moment, or at all (`proxy.tier_owner`), is put off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from metrics.meters import Direction, FallbackReason, Meters
from protocol.fetch.messages import FetchRequest, PartitionAnswer, PartitionKey, key_of
from protocol.record_batches import first_bad_batch
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from proxy.connection.audit import ClientAudit
from proxy.connection.client_reads import ClientReads
from proxy.connection.slices import ITEMS_AT_ONCE, off_loop
from proxy.fetch.answer import (
    FetchAnswer,
    assemble,
    lacks_aborts,
    pass_whole,
    refusal,
    starved_behind,
    tier_answer,
    withhold_excess,
)
from proxy.fetch.authorities import Authority
from proxy.fetch.fallback import COME_AGAIN, Fallback, Way, comes_again_s
from proxy.fetch.own_fetch import OwnFetch
from proxy.fetch.plan import FetchPlan, Instead, Share, TierPart, bytes_max_of, first_at_broker, limited_to, share_out
from proxy.fetch.probe import Probed, Prober, Verdicts
from proxy.fetch.reads import TierReads
from proxy.fetch.tier import Tier
from storage.reading.reader import VERIFY_IN_THREAD_BYTES, OffsetNotInTierError, TierRecords
from storage.reading.segment_finder import LocalLogIsNextError

BROKER_WAIT_MS_MAX = 5000
"""What a broker may take for a partition that the tier failed to read."""


@dataclass(slots=True)
class Exchange:
    """A Fetch that has tier partitions, under way; `answer` tells what happens to it.

    What the answer is made of is held by `client` until its `release`.
    """

    request: FetchRequest
    plan: FetchPlan
    tier: Tier
    fallback: Fallback
    prober: Prober
    own_fetch: OwnFetch
    meters: Meters
    client: ClientReads
    wait_s: float
    """What tier reads may take."""
    linger_s: float
    """What they may take when there are records of others."""
    verdicts: Verdicts
    """What the broker says, also to the own Fetch."""
    shares: Mapping[TierPart, Share] = field(default_factory=dict)
    started_s: float = field(default_factory=trio.current_time)

    async def answer(self) -> FetchAnswer:
        """Ask, read, judge what was read, have the broker read what is left, and put it together."""
        committed = self.request.isolation_level == IsolationLevel.READ_COMMITTED
        reads = TierReads(self.tier, self.meters.tier, self.client, self.started_s, self.wait_s, committed=committed)
        await self._read(reads)
        answers = await self._answers(reads) if self.verdicts.whole is None else {}
        if self.verdicts.whole is not None:
            return pass_whole(self.verdicts.whole)
        brokers = self.own_fetch.by_key
        by_tier = {key: answers[key] for key in answers.keys() - brokers.keys()}
        relay = self.meters.relay
        relay.on_tier_served(sum([answer.records_bytes for answer in by_tier.values()]))
        relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, sum([answers[key].records_bytes for key in brokers]))
        if self.client.audit is not None:
            self._note_reads(self.client.audit, by_tier, reads)
        is_large = len(self.request.partitions) > ITEMS_AT_ONCE
        return await off_loop(is_large, partial(assemble, self.request, answers, self.verdicts))

    async def _read(self, reads: TierReads) -> None:
        """Ask the broker, and read what it allows. Where its word is known and all is at hand nothing is waited for."""
        asked = self.prober.recall(self.request, self.plan.tier, self.verdicts, self.started_s)
        if not (asked or self.plan.local):
            self._read_allowed(reads)
            if await reads.are_at_hand():
                return
        async with trio.open_nursery() as nursery:
            reads.go_on_in(nursery)
            try:
                if asked or self.plan.local:
                    await self._ask(asked, reads)
                    if self.verdicts.whole is not None:
                        return
                    self._read_allowed(reads)
                left_bytes = bytes_max_of(self.request) - sum(share.bytes_max for share in self.shares.values())
                await self.own_fetch.until_ready(self.request, self.plan, reads, self.linger_s, left_bytes)
            finally:
                reads.stop()

    async def _ask(self, asked: list[Probed], reads: TierReads) -> None:
        """Ask the broker."""
        request, plan, own_fetch = self.request, self.plan, self.own_fetch
        behind = partial(own_fetch.begin, request, plan) if plan.local else partial(self._read_beside, reads)
        await self.prober.probe(request, asked, self.verdicts, behind)
        if self.verdicts.whole is None:
            await own_fetch.first_answer()

    async def _read_beside(self, reads: TierReads) -> None:
        """Beside the probe, start reads that this client was allowed before."""
        self.shares = share_out(self.request, self.plan, self.plan.tier, {})
        # One that is to try the tier after trouble waits for the word: a refused one must not use up the try.
        rights = (part for part in self.plan.tier if self.prober.has_right(part))
        reads.start((part for part in rights if not self.fallback.is_in_spell(part.partition)), self.shares)

    def _read_allowed(self, reads: TierReads) -> None:
        """Start what the broker allows, and give up what it does not."""
        request, plan, verdicts = self.request, self.plan, self.verdicts
        unanswered = [part for part in plan.tier if part not in verdicts.answered]
        self.shares = share_out(request, plan, unanswered, self.own_fetch.by_key)
        reads.settle(verdicts.vouched, self.shares, verdicts.learned_anew)
        left = [part for part in plan.tier if part in verdicts.vouched and part not in reads.parts]
        wanted = [part for part in left if self.fallback.reads_tier(part.partition)]
        reads.start(wanted, self.shares, verdicts.vouched)

    # What was read.

    async def _answers(self, reads: TierReads) -> dict[PartitionKey, PartitionAnswer]:
        """One for each partition, unless the broker answers the request as a whole."""
        verdicts, parts = self.verdicts, self._sort(reads)
        if parts.failed or parts.given_back or parts.next_at_broker:
            await self._ask_broker(parts)
        if parts.later and verdicts.whole is None:
            await self._put_off(parts)
        answers = {**parts.answers, **self.own_fetch.by_key}
        if verdicts.whole is None:
            await self._withhold_excess(answers, parts)
        return answers

    def _sort(self, reads: TierReads) -> "_Sorted":
        """Say of each part who answers it."""
        verdicts = self.verdicts
        parts = _Sorted({key_of(part.asked): answer for part, answer in verdicts.answered.items()})
        for part, known in verdicts.given_back.items():
            self._give(part, known.local_log_start_offset, None, parts, parts.given_back)
        for part, authority in verdicts.vouched.items():
            result = reads.results.get(part)
            local_start = authority.local_log_start_offset
            if (instead := self.plan.instead.get(part)) is not None:
                self._answer_instead(part, authority, instead, parts)
            elif isinstance(result, LocalLogIsNextError):
                parts.next_at_broker.append(part)
            elif isinstance(result, OffsetNotInTierError) or lacks_aborts(authority, result):
                self._give(part, local_start, authority, parts, parts.given_back)
            elif (way := self._way_of(part, result, reads)) is Way.BROKER:
                self._give(part, local_start, authority, parts, parts.failed)
            elif way is Way.LATER:
                parts.later[part] = authority
            else:
                records = result if isinstance(result, TierRecords) else None
                if records is not None and records.size_bytes > self.shares[part].bytes_max:
                    parts.exceeding.add(key_of(part.asked))
                parts.answers[key_of(part.asked)] = tier_answer(self.request, part, authority, records)
        return parts

    def _give(
        self, part: TierPart, local_start: int, authority: Authority | None, parts: "_Sorted", to: list[TierPart]
    ) -> None:
        """A part is the broker's, if that has it; else nobody has it just now, which is counted."""
        if self.tier.owner.can_broker_read(part.asked.fetch_offset, local_start):
            to.append(part)
        else:
            self.fallback.refuse(1)
            parts.later[part] = authority

    def _answer_instead(self, part: TierPart, authority: Authority, instead: Instead, parts: "_Sorted") -> None:
        """A part was not read, as was known before."""
        if instead.error_code == COME_AGAIN:
            self._give(part, authority.local_log_start_offset, authority, parts, parts.given_back)
        elif instead.error_code:
            parts.answers[key_of(part.asked)] = refusal(part.asked, instead.error_code)
        else:
            answer = tier_answer(self.request, part, authority, None)
            parts.answers[key_of(part.asked)] = replace(answer, tags=instead.tags)

    def _way_of(self, part: TierPart, result: TierRecords | Exception | None, reads: TierReads) -> Way:
        partition, patience = part.partition, self.client.patience
        if isinstance(result, TierRecords):
            if result.size_bytes:
                patience.end(partition)
                self.fallback.served(partition)
            return Way.TIER
        if part not in reads.parts:
            return Way.BROKER if self.shares[part].bytes_max else Way.TIER
        if result is None and part not in reads.expired:
            return Way.TIER  # cut short by the linger: that it is late says nothing of the tier
        offset = part.asked.fetch_offset
        return self.fallback.judge(partition, offset, result, patience=patience, started_s=self.started_s)

    # What was not.

    async def _ask_broker(self, parts: "_Sorted") -> None:
        """Ask the broker for what the tier does not read, as much as falls to each in its place of the client's
        request; what it cannot take at the moment is put off."""
        request, own_fetch, fallback, vouched = self.request, self.own_fetch, self.fallback, self.verdicts.vouched
        with fallback.at_broker(self.prober.node_id, len(parts.failed)) as granted:
            taken = parts.failed[:granted]
            questions = {part: limited_to(part, self.shares[part]) for part in (*parts.given_back, *taken)}
            for part in parts.next_at_broker:
                questions[part] = first_at_broker(part, self.shares[part], vouched[part].local_log_start_offset)
            if questions:
                asked = sorted(questions, key=lambda part: part.place)
                charged_bytes = sum(self.shares[part].bytes_max for part in asked)
                # Brokers before 3.8 let a remote read take the request's wait, later ones have a limit of their own.
                wait_ms = min(request.max_wait_ms, BROKER_WAIT_MS_MAX) if charged_bytes else 0
                await own_fetch.ask(request, [questions[part] for part in asked], charged_bytes, max_wait_ms=wait_ms)
            for part in taken if self.verdicts.whole is None else ():
                fallback.on_broker_read(part.partition, own_fetch.bytes_of(part.asked))
                answer = own_fetch.by_key.get(key_of(part.asked))
                if answer is not None and fallback.reason_of(part.partition) is FallbackReason.CORRUPT:
                    await self._leave_bad_out(part, answer)
        parts.later |= {part: vouched[part] for part in parts.failed[granted:]}

    async def _leave_bad_out(self, part: TierPart, answer: PartitionAnswer) -> None:
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
        segment = self.tier.segment_of(part, self.verdicts.vouched[part].leader_epoch)
        self.fallback.on_corrupt(part.partition, offset, why, segment)
        answer.error_code, answer.records, answer.aborted_transactions = ErrorCode.CORRUPT_MESSAGE, (), None

    async def _put_off(self, parts: "_Sorted") -> None:
        """Beside records an empty answer brings the client back soon enough, and is no reason to doubt the leader."""
        own_fetch = self.own_fetch
        if not (own_fetch.has_news or parts.has_news):
            time_s = comes_again_s(self.started_s, self.request.max_wait_ms)
            await own_fetch.until_news(self.request, self.plan, time_s)
        is_beside_news = own_fetch.has_news or parts.has_news
        for part, authority in parts.later.items():
            if is_beside_news and authority is not None:
                parts.answers[key_of(part.asked)] = tier_answer(self.request, part, authority, None)
            else:
                parts.answers[key_of(part.asked)] = refusal(part.asked, COME_AGAIN)

    async def _withhold_excess(self, answers: dict[PartitionKey, PartitionAnswer], parts: "_Sorted") -> None:
        """Empty what is beyond its limit and not due, and ask once more for local partitions that had to do without."""
        request, own_fetch = self.request, self.own_fetch
        withheld = withhold_excess(request, answers, {*parts.exceeding, *own_fetch.exceeding})
        # Each round has fewer: those that were withheld are not asked for again.
        while withheld and (starved := starved_behind(withheld, self.plan.local, answers)):
            left_bytes = bytes_max_of(request) - sum(answer.records_bytes for answer in answers.values())
            if left_bytes <= 0:
                break  # they would have had nothing of it
            await own_fetch.ask(request, starved, left_bytes)
            keys = {key_of(asked) for asked in starved}
            answers |= {key: own_fetch.by_key[key] for key in keys}
            withheld = withhold_excess(request, answers, own_fetch.exceeding & keys)

    def _note_reads(
        self, audit: ClientAudit, by_tier: Mapping[PartitionKey, PartitionAnswer], reads: TierReads
    ) -> None:
        """Tell the audit log of what the answer has of the tier."""
        for part in self.plan.tier:
            records, answer = reads.results.get(part), by_tier.get(key_of(part.asked))
            if isinstance(records, TierRecords) and answer is not None and answer.records:
                audit.serves(self.request.client_id, part.partition, records)


@dataclass(slots=True)
class _Sorted:
    """The parts of a plan by who answers them."""

    answers: dict[PartitionKey, PartitionAnswer]
    """Answered: by the probe, or with the tier's records."""
    given_back: list[TierPart] = field(default_factory=list)
    """Not the tier's after all: the broker's."""
    failed: list[TierPart] = field(default_factory=list)
    """The tier's, which fails: the broker's as far as it goes (`Fallback.at_broker`)."""
    later: dict[TierPart, Authority | None] = field(default_factory=dict)
    """Put off; without an authority what the broker has not vouched for."""
    next_at_broker: list[TierPart] = field(default_factory=list)
    """Nothing is left below the broker's log, whose first records answer."""
    exceeding: set[PartitionKey] = field(default_factory=set)
    """Those whose records are more than their share."""

    @property
    def has_news(self) -> bool:
        return any(answer.records_bytes or answer.error_code for answer in self.answers.values())
