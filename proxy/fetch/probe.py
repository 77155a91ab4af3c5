"""The probe: the upstream question that a tier read rides on (docs/protocol.md#l1).

A Fetch of our own on the client's upstream connection, in its place in the stream of requests: the broker
checks the client's rights, the leader and the epochs, and tells high watermark, LSO and log start.

- One request for all partitions, each at its high watermark, where there is nothing to read.
- READ_COMMITTED: behind it one more for each partition whose aborted tail is not known (proxy.fetch.aborted_tails), at
  the local log start. Brokers list aborted transactions only with records, and max_bytes 1 yields records for one
  partition a request. None if the tier tells it all (`proxy.tier_owner`).
- OFFSET_OUT_OF_RANGE is never an answer: our offset was stale. What was known is learned again, one more probe is
  sent, and then the client gets an error that has it ask for metadata again (6).
- Brokers before 3.1 are asked by name, in the client's own version. Whether the name is the topic's that we mean they
  are asked afterwards, on a connection of our own: a broker knows a topic's id before it answers for its partitions.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from metrics.meters import RelayMeter
from protocol.fetch.messages import TOPIC_ID_VERSION_MIN, FetchPartition, FetchRequest, PartitionAnswer
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from proxy.connection.request_handlers import UpstreamWire
from proxy.fetch.aborted_tails import AbortedTail
from proxy.fetch.answer import BrokersWord, refusal
from proxy.fetch.authorities import Authorities, Authority, AuthorityKey
from proxy.fetch.frontiers import LEARN_WAIT_S_MAX, Frontier
from proxy.fetch.plan import TierPart
from proxy.fetch.sent_fetch import SentFetch, send_fetch
from proxy.fetch.tier import Tier
from proxy.turns import move_on_after

PROBE_BYTES_MAX = 1
"""One batch at most comes back, and is discarded."""

PROBE_HELD_BYTES_MAX = 64 * 1024
"""A batch that is larger is dropped as it arrives."""


KAFKA_STORAGE_ERROR_VERSION_MIN = 6
"""Older clients do not know that code; brokers tell them another."""

_PartitionId = tuple[bytes | None, int]
_Question = tuple[float, SentFetch]
"""When it was asked, by trio's clock, and the request."""

Probed = tuple[TierPart, Frontier]
"""A part, and what it is probed by."""

_TOPIC_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
_FRONTIER_GONE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, *_TOPIC_GONE})


@dataclass(slots=True)
class Verdicts(BrokersWord):
    """What the broker said: each part is vouched for, answered, or given back to the broker.

    `learned_anew` are parts of which the probe showed that what their reads were started with is out of date.
    """

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

    def recall(
        self, request: FetchRequest, parts: Sequence[TierPart], verdicts: Verdicts, now_s: float
    ) -> list[Probed]:
        """Judge the parts by probes that still count, and return those that are left for `probe`."""
        asked: list[Probed] = []
        for part in parts:
            authority = self._authorities.get(_key(request, part), now_s)
            if authority is None or not _still_counts(request, part, authority):
                asked.append((part, part.frontier))
            else:
                self._vouch(part, authority, verdicts)
        self._meter.on_probes_reused(len(parts) - len(asked))
        return asked

    async def probe(
        self, request: FetchRequest, asked: list[Probed], verdicts: Verdicts, behind: Callable[[], Awaitable[None]]
    ) -> None:
        """Let the broker judge these parts.

        Args:
            behind: is called when the first probe is sent; what it sends stands right behind that.
        """
        stale = await self._ask(request, await self._with_log_ends(asked), verdicts, behind)
        if stale and verdicts.whole is None:
            stale = await self._ask(request, await self._learn_anew(stale, verdicts), verdicts)
            for part in stale:
                self._tier.forget(self.node_id, part.partition)
                verdicts.answered[part] = refusal(part.asked, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def _with_log_ends(self, asked: list[Probed]) -> list[Probed]:
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
        asked: Sequence[Probed],
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

    def _known_tails(self, request: FetchRequest, asked: Sequence[Probed]) -> dict[TierPart, AbortedTail | None]:
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
        if not verdicts.take(response) and sent.api_version < TOPIC_ID_VERSION_MIN:
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
        probed: Probed,
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
        probed: Probed,
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
            verdicts.answered[part] = refusal(part.asked, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            verdicts.vouched[part] = authority

    async def _learn_anew(self, parts: Sequence[TierPart], verdicts: Verdicts) -> list[Probed]:
        """Forget what was known of these parts and return what is learned; those not the tier's after all are given
        back."""
        for part in parts:
            self._tier.forget(self.node_id, part.partition)
        with move_on_after(LEARN_WAIT_S_MAX):
            await self._tier.frontiers.refresh(self.node_id, [part.partition for part in parts])
        again: list[Probed] = []
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
