"""The probe: the upstream question that a tier read rides on (docs/protocol.md#l1).

A Fetch of our own on the client's upstream connection, in its place in the stream of requests: the broker
checks the client's rights, the leader and the epochs, and tells high watermark, LSO and log start.

- One request for all partitions, each at its high watermark, where there is nothing to read.
- READ_COMMITTED: behind it one more for each partition whose aborted tail is not known (proxy.fetch.known), at
  the local log start. Brokers list aborted transactions only with records, and max_bytes 1 yields records for one
  partition a request. None if the tier tells it all (`proxy.tier_owner`).
- OFFSET_OUT_OF_RANGE is never an answer: our offset was stale. What was known is learned again, one more probe is
  sent, and then the client gets an error that has it ask for metadata again (6).
- Brokers before 3.1 are asked by name, in the client's own version. Whether the name is the topic's that we mean they
  are asked afterwards, on a connection of our own: a broker knows a topic's id before it answers for its partitions.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from metrics.meters import RelayMeter
from protocol.fetch.messages import (
    NO_SESSION_ID,
    NO_TAGS,
    SESSIONLESS_EPOCH,
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionAnswer,
    encode_request,
)
from protocol.fetch.response import decode_response
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import ApiKey, IsolationLevel
from proxy.connection.request_handlers import ITEMS_AT_ONCE, PendingAnswer, UpstreamWire, each_slice, off_loop
from proxy.fetch.assembly import FetchPlan, PartitionKey, TierPart, bytes_max_of, is_whole, key_of, local_bytes_max
from proxy.fetch.known import LEARN_WAIT_S_MAX, AbortedTail, Authorities, Authority, AuthorityKey, Frontier
from proxy.fetch.tier import Tier, TierReads
from proxy.turns import move_on_after

# The client's own Fetch for what is left to the broker: partitions above the frontier, and those given back; or the
# whole of a session that has nothing in the tier at the moment (`fetch_whole`).
#
# It is sent right behind the probe, and asks without waiting, so that a hot partition is answered at once (the broker
# too ignores min_bytes once a partition of the request is remote). While tier reads are under way and there is nothing
# to answer with, it is asked again each ASK_AGAIN_S, without waiting: a long poll cannot be taken back, and would hold
# up a tier read that ends meanwhile. An error, a diverging epoch or a preferred replica would come back as it is: then
# only the tier is waited for. Where the tier has nothing to give, one long poll is left (`until_news`).


ASK_AGAIN_S = 0.25
"""A record that comes while the tier is slow waits so long at most; a client costs its broker four questions a second
meanwhile."""


class OwnFetch:
    """The broker's side of one exchange. `whole` is set when the broker answered the request as a whole; `sections` are
    the tagged sections of its responses.

    Args:
        granted: how much of what is wanted may be asked for, in bytes.
        edit: makes of answers what the client gets.
        put_off: has the client come again for an answer whose batch could not be held.
    """

    def __init__(
        self,
        wire: UpstreamWire,
        granted: Callable[[int], int] = lambda wanted_bytes: wanted_bytes,
        edit: Callable[[Sequence[PartitionAnswer]], None] = lambda _answers: None,
        put_off: Callable[[PartitionAnswer], None] = lambda _answer: None,
    ) -> None:
        self.whole: FetchResponse | None = None
        self.throttle_time_ms = 0
        self.bytes_got = 0
        self.sections: list[bytes] = []
        self.exceeding: set[PartitionKey] = set()
        """Partitions whose answer is larger than was asked for: the broker granted a batch beyond the limit."""
        self._wire = wire
        self._granted = granted
        self._edit = edit
        self._put_off = put_off
        self._begun: _Asked | None = None
        self._answers: dict[PartitionKey, PartitionAnswer] = {}

    @property
    def answers(self) -> Sequence[PartitionAnswer]:
        """The last answer of every partition that was asked for."""
        return tuple(self._answers.values())

    @property
    def by_key(self) -> Mapping[PartitionKey, PartitionAnswer]:
        """The same, by what the client asked for."""
        return self._answers

    def bytes_of(self, asked: FetchPartition) -> int:
        """Record bytes that the broker gave for a partition."""
        answer = self._answers.get(key_of(asked))
        return 0 if answer is None else answer.records_bytes

    @property
    def has_news(self) -> bool:
        """Return whether the broker gave something that the client is not to wait longer for."""
        return any(answer.records or _comes_back(answer) for answer in self._answers.values())

    async def begin(self, request: FetchRequest, plan: FetchPlan) -> None:
        """Ask for the plan's local partitions; `first_answer` takes the answer."""
        if plan.local:
            exceeds = bytes_max_of(request)  # what is more than their part goes from the tier's
            self._begun = await self._send(request, plan.local, local_bytes_max(request, plan), exceeds=exceeds)

    async def first_answer(self) -> None:
        """Return when what `begin` has asked is answered."""
        if self._begun is not None:
            await self._take(self._begun)

    async def until_ready(
        self, request: FetchRequest, plan: FetchPlan, reads: TierReads, linger_s: float, left_bytes: int
    ) -> None:
        """Wait until there is something to answer with: records, all tier reads, or the deadline. Meanwhile ask for the
        plan's local partitions again, as much as the tier's leave."""
        while plan.local and not self.has_news:
            ask_at_s = trio.current_time() + ASK_AGAIN_S
            await reads.wait_any_until(min(ask_at_s, reads.deadline_s))
            if reads.any_records or not reads.pending or ask_at_s >= reads.deadline_s:
                break
            await self.ask(request, plan.local, left_bytes)
            if self.whole is not None:
                return
        await self.until_read(reads, linger_s)

    async def until_read(self, reads: TierReads, linger_s: float) -> None:
        """Wait for the tier reads: for all, or a moment longer than until there is something to answer with."""
        if not self.bytes_got:
            await reads.wait_any_until(reads.deadline_s)
        since_s = min(trio.current_time(), reads.records_since_s)
        await reads.wait_until(min(reads.deadline_s, since_s + linger_s))

    async def until_news(self, request: FetchRequest, plan: FetchPlan, time_s: float) -> None:
        """There is nothing to answer with: return at that time, or when the plan's local partitions have something."""
        if plan.local:
            left_ms = int((time_s - trio.current_time()) * 1000)
            await self.ask(request, plan.local, bytes_max_of(request), max_wait_ms=max(0, left_ms))
        if not self.has_news and self.whole is None:
            await trio.sleep_until(time_s)

    async def ask(
        self, request: FetchRequest, partitions: Sequence[FetchPartition], bytes_max: int, *, max_wait_ms: int = 0
    ) -> None:
        """One Fetch of these partitions as the client asked for them, but without a session."""
        await self._take(await self._send(request, partitions, bytes_max, max_wait_ms=max_wait_ms))

    async def _send(
        self,
        request: FetchRequest,
        partitions: Sequence[FetchPartition],
        bytes_max: int,
        *,
        max_wait_ms: int = 0,
        exceeds: int | None = None,
    ) -> "_Asked":
        sent = await send_fetch(
            self._wire,
            request,
            partitions,
            max_wait_ms=max_wait_ms,
            min_bytes=1 if max_wait_ms else 0,
            # The answer is held whole: what a client asks beyond this it gets with its next request.
            max_bytes=self._granted(bytes_max),
        )
        return _Asked(sent, partitions, bytes_max if exceeds is None else exceeds)

    async def _take(self, asked: "_Asked") -> None:
        response = await asked.sent.response()
        self.throttle_time_ms = max(self.throttle_time_ms, response.throttle_time_ms)
        if response.tags != NO_TAGS:
            self.sections.append(response.tags)
        if is_whole(response):
            self.whole = response
            return
        self.bytes_got += sum(answer.records_bytes for answer in response.partitions)
        limits = {key_of(each): min(each.partition_max_bytes, asked.bytes_max) for each in asked.partitions}
        await each_slice(response.partitions, lambda some: self._keep(limits, some))

    def _keep(self, limits: Mapping[PartitionKey, int], answers: Sequence[PartitionAnswer]) -> None:
        for answer in answers:
            key = key_of(answer)
            self._answers[key] = answer
            if answer.dropped_bytes:
                self._put_off(answer)
            if answer.records_bytes > limits.get(key, answer.records_bytes):
                self.exceeding.add(key)
        self._edit(answers)


@dataclass(frozen=True, slots=True)
class _Asked:
    sent: "SentFetch"
    partitions: Sequence[FetchPartition]
    bytes_max: int
    """What is more of one partition exceeds its limit."""


def _comes_back(answer: PartitionAnswer) -> bool:
    """Return whether it is an error, a diverging epoch or a preferred replica: no records come of asking again."""
    return bool(answer.error_code) or answer.preferred_read_replica >= 0 or answer.tags != NO_TAGS


async def fetch_whole(wire: UpstreamWire, request: FetchRequest, session_epoch: int, bytes_max: int) -> FetchResponse:
    """All of a request, with the client's own waits, under a session epoch of our own."""
    sent = await send_fetch(
        wire,
        request,
        request.partitions,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=bytes_max,
        session_epoch=session_epoch,
    )
    return await sent.response()


async def close_upstream_session(wire: UpstreamWire, request: FetchRequest, session_id: int) -> None:
    """Make upstream forget a session. Nobody waits for the answer: it is empty, and comes before any to what is asked
    afterwards."""
    if session_id != NO_SESSION_ID:
        await send_fetch(wire, request, (), session_id=session_id)


class SentFetch:
    """A Fetch of our own that stands in the stream of the client's requests."""

    __slots__ = ("_answer", "_partitions", "api_version")

    def __init__(self, answer: PendingAnswer, api_version: int, partitions: int) -> None:
        self._answer = answer
        self._partitions = partitions
        self.api_version = api_version

    async def response(self) -> FetchResponse:
        """The broker's answer, whole; its records are views into the frame. Those for which there was no room have been
        dropped as they arrived."""
        decode = partial(decode_response, await self._answer.frame(), self.api_version, self._partitions)
        response = await off_loop(self._partitions > ITEMS_AT_ONCE, decode)
        for answer, dropped_bytes in zip(response.partitions, self._answer.dropped, strict=False):
            answer.dropped_bytes = dropped_bytes
        return response


async def send_fetch(
    wire: UpstreamWire,
    request: FetchRequest,
    partitions: Sequence[FetchPartition],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 0,
    session_id: int = NO_SESSION_ID,
    session_epoch: int = SESSIONLESS_EPOCH,
    api_version: int | None = None,
    records_bytes_max: int | None = None,
) -> SentFetch:
    """Send a Fetch of our own on behalf of `request`.

    Args:
        api_version: the request's unless given.
        records_bytes_max: what is more than about so much is dropped as it arrives; None: what may not be held is.
    """
    version = request.api_version if api_version is None else api_version
    correlation_id = wire.next_correlation_id()
    encode = partial(
        encode_request,
        request,
        partitions,
        correlation_id=correlation_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        api_version=version,
    )
    frame = await off_loop(len(partitions) > ITEMS_AT_ONCE, encode)
    held_bytes_max = None if records_bytes_max is None else records_bytes_max + ANSWER_OF_REQUEST_MAX * len(frame)
    pending = await wire.ask(ApiKey.FETCH, version, correlation_id, frame, held_bytes_max)
    return SentFetch(pending, version, len(partitions))


PROBE_BYTES_MAX = 1
"""One batch at most comes back, and is discarded."""

PROBE_HELD_BYTES_MAX = 64 * 1024
"""A batch that is larger is dropped as it arrives."""

ANSWER_OF_REQUEST_MAX = 2
"""A partition takes 29 to 33 bytes of a request, and 34 to 40 without records of its answer."""

KAFKA_STORAGE_ERROR_VERSION_MIN = 6
"""Older clients do not know that code; brokers tell them another."""

_PartitionId = tuple[bytes | None, int]
_Question = tuple[float, SentFetch]
"""When it was asked, by trio's clock, and the request."""

_Probed = tuple[TierPart, Frontier]
"""A part, and what it is probed by."""

_TOPIC_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
_FRONTIER_GONE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, *_TOPIC_GONE})


@dataclass(slots=True)
class Verdicts:
    """What the broker said: each part is vouched for, answered, or given back to the broker.

    `whole` is set when the broker answered the request as a whole: throttled, or an error of the request.
    `sections` are the tagged sections of its responses. `learned_anew` are parts of which the probe showed that what
    their reads were started with is out of date.
    """

    whole: FetchResponse | None = None
    throttle_time_ms: int = 0
    sections: list[bytes] = field(default_factory=list)
    vouched: dict[TierPart, Authority] = field(default_factory=dict)
    answered: dict[TierPart, PartitionAnswer] = field(default_factory=dict)
    given_back: dict[TierPart, Frontier] = field(default_factory=dict)
    """With the newest that is known."""
    learned_anew: list[TierPart] = field(default_factory=list)


class Prober:
    """Probes of one connection."""

    def __init__(
        self, wire: UpstreamWire, node_id: int, tier: Tier, authorities: Authorities, meter: RelayMeter
    ) -> None:
        self._wire = wire
        self.node_id = node_id
        self._tier = tier
        self._authorities = authorities
        self._meter = meter

    def has_right(self, part: TierPart) -> bool:
        """Return whether the client may have a read of this part started beside its probe."""
        return self._authorities.has_right(part.partition)

    async def probe(
        self, request: FetchRequest, parts: Sequence[TierPart], behind: Callable[[], Awaitable[None]]
    ) -> Verdicts:
        """Let the broker judge all parts; a probe that still counts is not repeated.

        Args:
            behind: is called when the first probe is sent; what it sends stands right behind that.
        """
        verdicts = Verdicts()
        asked: list[_Probed] = []
        now_s = trio.current_time()
        for part in parts:
            authority = self._authorities.get(_key(request, part), now_s)
            if authority is None or not _still_counts(request, part, authority):
                asked.append((part, part.frontier))
            else:
                self._vouch(part, authority, verdicts)
        self._meter.on_probes_reused(len(parts) - len(asked))
        stale = await self._ask(request, await self._with_log_ends(asked), verdicts, behind)
        if stale and verdicts.whole is None:
            stale = await self._ask(request, await self._learn_anew(stale, verdicts), verdicts)
            for part in stale:
                self._tier.forget(self.node_id, part.partition)
                verdicts.answered[part] = _refusal(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return verdicts

    async def _with_log_ends(self, asked: list[_Probed]) -> list[_Probed]:
        """Learn the log ends of partitions with large batches: there a probe finds no batch."""
        frontiers = self._tier.frontiers
        if not frontiers.with_large_batches:
            return asked
        large = {part.partition for part, _ in asked if part.partition in frontiers.with_large_batches}
        with move_on_after(LEARN_WAIT_S_MAX):
            await frontiers.refresh(self.node_id, large)
        return [(part, self._at_log_end(part, known) if part.partition in large else known) for part, known in asked]

    def _at_log_end(self, part: TierPart, frontier: Frontier) -> Frontier:
        learned = self._tier.frontiers.get(self.node_id, part.partition)
        if learned is None or learned.leader_epoch != frontier.leader_epoch:
            return frontier
        return replace(frontier, log_end_offset=learned.log_end_offset)

    async def _ask(
        self,
        request: FetchRequest,
        asked: Sequence[_Probed],
        verdicts: Verdicts,
        behind: Callable[[], Awaitable[None]] | None = None,
    ) -> list[TierPart]:
        """Probe these parts; return those whose probe offset was stale."""
        probe = await self._send(request, [(part, known.probe_offset) for part, known in asked]) if asked else None
        tails = self._known_tails(request, asked)
        questions = [
            (part, known, await self._send(request, [(part, known.local_log_start_offset)]))
            for part, known in (asked if None in tails.values() else ())
            if tails[part] is None
        ]
        if behind is not None:
            await behind()
        if probe is None:
            return []
        entries = await self._entries(probe, verdicts)
        for part, _ in asked:
            if (entry := entries.get(_id_of(part))) is not None:
                self._tier.frontiers.saw_batch(part.partition, entry.records_bytes + entry.dropped_bytes)
        for part, known, question in questions:
            tails[part] = self._learn_tail(part, known, await self._entries(question, verdicts))
        stale: list[TierPart] = []
        for part, known in asked if verdicts.whole is None else ():
            entry = entries.get(_id_of(part))
            if entry is not None and entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                stale.append(part)
            else:
                self._judge(request, (part, known), entry, tails.get(part), verdicts)
        return stale

    def _known_tails(self, request: FetchRequest, asked: Sequence[_Probed]) -> dict[TierPart, AbortedTail | None]:
        """By READ_COMMITTED parts, where they are needed; None is to be asked for."""
        if request.isolation_level != IsolationLevel.READ_COMMITTED or self._tier.owner.tells_all_aborts:
            return {}
        tails = self._tier.aborted_tails
        return {
            part: tails.get(self.node_id, part.partition, known.local_log_start_offset, known.leader_epoch)
            for part, known in asked
        }

    def _learn_tail(
        self, part: TierPart, known: Frontier, entries: Mapping[_PartitionId, PartitionAnswer]
    ) -> AbortedTail | None:
        return self._tier.aborted_tails.learn(
            self.node_id, part.partition, known.local_log_start_offset, known.leader_epoch, entries.get(_id_of(part))
        )

    async def _entries(self, question: _Question, verdicts: Verdicts) -> dict[_PartitionId, PartitionAnswer]:
        """The answer's partitions; none if it is one to the request as a whole, which is noted."""
        asked_at_s, sent = question
        response = await sent.response()
        discarded_bytes = sum(entry.records_bytes + entry.dropped_bytes for entry in response.partitions)
        self._meter.on_probe_answered(trio.current_time() - asked_at_s, discarded_bytes)
        verdicts.throttle_time_ms = max(verdicts.throttle_time_ms, response.throttle_time_ms)
        if response.tags != NO_TAGS:
            verdicts.sections.append(response.tags)
        if is_whole(response):
            verdicts.whole = verdicts.whole or response
        elif sent.api_version < TOPIC_ID_VERSION_MIN:
            names = dict.fromkeys(entry.topic or "" for entry in response.partitions)
            ids = await self._tier.topic_ids(self.node_id, [*names])
            for entry in response.partitions:
                entry.topic_id = ids.get(entry.topic or "")
        return {(entry.topic_id, entry.partition): entry for entry in response.partitions}

    async def _send(self, request: FetchRequest, at: Sequence[tuple[TierPart, int]]) -> _Question:
        """Ask for a batch of each part at its offset."""
        version = request.api_version
        if self._tier.knows_topic_ids(self.node_id):
            version = max(version, TOPIC_ID_VERSION_MIN)
        questions = [
            FetchPartition(
                topic=part.partition.topic,
                topic_id=part.partition.topic_id,
                partition=part.partition.partition,
                current_leader_epoch=part.asked.current_leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=PROBE_BYTES_MAX,
            )
            for part, offset in at
        ]
        self._meter.on_probe_sent()
        asked_at_s = trio.current_time()
        sent = await send_fetch(
            self._wire,
            request,
            questions,
            max_bytes=PROBE_BYTES_MAX,
            api_version=version,
            records_bytes_max=PROBE_HELD_BYTES_MAX,
        )
        return asked_at_s, sent

    def _judge(
        self,
        request: FetchRequest,
        probed: _Probed,
        entry: PartitionAnswer | None,
        tail: AbortedTail | None,
        verdicts: Verdicts,
    ) -> None:
        part, known = probed
        if entry is None or entry.error_code in _TOPIC_GONE:
            # Another topic may have the name by now; a client that asks by name is the broker's to answer.
            self._tier.forget_topic(part.partition)
        if entry is None or (entry.error_code in _TOPIC_GONE and part.asked.topic_id is None):
            self._authorities.end(_key(request, part))
            verdicts.given_back[part] = known
        elif entry.error_code or entry.preferred_read_replica >= 0:
            self._authorities.end(_key(request, part))
            self._tier.aborted_tails.forget(self.node_id, part.partition)
            if _tells_of_change(part, known, entry.error_code):
                self._tier.forget(self.node_id, part.partition)
            entry.topic, entry.topic_id, entry.records = part.asked.topic, part.asked.topic_id, ()
            entry.error_code = _code_for_version(entry.error_code, request.api_version)
            verdicts.answered[part] = entry
        else:
            self._take(request, probed, entry, tail, verdicts)

    def _take(
        self,
        request: FetchRequest,
        probed: _Probed,
        entry: PartitionAnswer,
        tail: AbortedTail | None,
        verdicts: Verdicts,
    ) -> None:
        """A good probe."""
        part, known = probed
        if part.asked.current_leader_epoch > known.leader_epoch:
            # The broker let the client's epoch pass, so it is the broker's own, and newer than ours
            # (docs/protocol.md#l2).
            known = replace(known, leader_epoch=part.asked.current_leader_epoch)
            verdicts.learned_anew.append(part)
        seen = self._tier.frontiers.saw(self.node_id, part.partition, known, entry)
        self._tier.aborted_tails.saw(self.node_id, part.partition, entry.last_stable_offset)
        authority = Authority(
            entry.high_watermark,
            entry.last_stable_offset,
            seen.log_start_offset,
            leader_epoch=known.leader_epoch,
            local_log_start_offset=known.local_log_start_offset,
            aborted_tail=tail,
            given_at_s=trio.current_time(),
        )
        self._authorities.put(_key(request, part), authority)
        self._vouch(part, authority, verdicts)

    def _vouch(self, part: TierPart, authority: Authority, verdicts: Verdicts) -> None:
        if part.asked.fetch_offset < authority.log_start_offset:
            verdicts.answered[part] = _refusal(part, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            verdicts.vouched[part] = authority

    async def _learn_anew(self, parts: Sequence[TierPart], verdicts: Verdicts) -> list[_Probed]:
        """Forget what was known of these parts and return what is learned; those not the tier's after all are given
        back."""
        for part in parts:
            self._tier.forget(self.node_id, part.partition)
        with move_on_after(LEARN_WAIT_S_MAX):
            await self._tier.frontiers.refresh(self.node_id, [part.partition for part in parts])
        again: list[_Probed] = []
        for part in parts:
            learned = self._tier.frontiers.get(self.node_id, part.partition)
            if learned is None or part.asked.fetch_offset >= learned.local_log_start_offset:
                verdicts.given_back[part] = learned or part.frontier
            else:
                again.append((part, learned))
                verdicts.learned_anew.append(part)
        return again


def _id_of(part: TierPart) -> _PartitionId:
    return part.partition.topic_id, part.partition.partition


def _key(request: FetchRequest, part: TierPart) -> AuthorityKey:
    return AuthorityKey(part.partition, request.isolation_level, part.asked.current_leader_epoch)


def _still_counts(request: FetchRequest, part: TierPart, authority: Authority) -> bool:
    """Return whether what a reused probe was asked of is still so: leader, log start, where its aborted tail begins.

    Never for a client that asks by name: the probe vouched for a topic id, and the name may be another topic's by now.
    """
    if part.asked.topic_id is None or authority.leader_epoch != part.frontier.leader_epoch:
        return False
    if authority.log_start_offset < part.frontier.log_start_offset:
        return False  # another connection has heard of a DeleteRecords
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    return not committed or authority.local_log_start_offset == part.frontier.local_log_start_offset


def _tells_of_change(part: TierPart, known: Frontier, error_code: ErrorCode | int) -> bool:
    """Return whether a refusal says that our frontier is out of date, and not merely the client.

    A client with an old epoch must not have everybody's knowledge learned again with each of its requests.
    """
    if error_code == ErrorCode.FENCED_LEADER_EPOCH:
        return part.asked.current_leader_epoch >= known.leader_epoch
    return error_code in _FRONTIER_GONE


def _code_for_version(error_code: int, api_version: int) -> int:
    """A broker's error code of a newer Fetch version, as it would have put it in the client's own."""
    if error_code == ErrorCode.KAFKA_STORAGE_ERROR and api_version < KAFKA_STORAGE_ERROR_VERSION_MIN:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error_code


def _refusal(part: TierPart, error_code: ErrorCode) -> PartitionAnswer:
    return PartitionAnswer.error(part.asked.topic, part.asked.topic_id, part.asked.partition, error_code)
