"""The probe: the upstream question that a tier read rides on (docs/protocol.md#l1).

A Fetch of our own on the client's upstream connection, in its place in the stream of requests: the broker
checks the client's rights, the leader and the epochs, and tells high watermark, LSO and log start.

- One request for all partitions, each at its high watermark, where there is nothing to read.
- READ_COMMITTED: behind it one more for each partition whose aborted tail is not known (proxy.fetch.aborted_tails), at
  the local log start. Brokers list aborted transactions only with records, and max_bytes 1 yields records for one
  partition a request.
- OFFSET_OUT_OF_RANGE is never an answer: our offset was stale. What was known is learned anew, one more probe is
  sent, and then the client is told to ask for metadata again (6).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from metrics.meters import RelayMeter
from protocol.fetch.messages import (
    NO_TAGS,
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionAnswer,
)
from protocol.fetch.request import encode_request_in_slices
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from proxy.connection.upstream_wire import UpstreamWire
from proxy.fetch.aborted_tails import AbortedTail
from proxy.fetch.assembly import is_whole
from proxy.fetch.authority import Authorities, Authority, AuthorityKey
from proxy.fetch.frontier import LEARN_WAIT_S_MAX
from proxy.fetch.own_fetch import SentFetch, send_fetch
from proxy.fetch.plan import TierPart
from proxy.fetch.tier import Tier

PROBE_BYTES_MAX = 1
"""One batch at most comes back, and is discarded."""

KAFKA_STORAGE_ERROR_VERSION_MIN = 6
"""Older clients do not know that code; brokers tell them another."""

_PartitionId = tuple[bytes | None, int]
_Question = tuple[float, SentFetch]
"""When it was asked, by trio's clock, and the request."""

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
    vouched: list[tuple[TierPart, Authority]] = field(default_factory=list)
    answered: list[tuple[TierPart, PartitionAnswer]] = field(default_factory=list)
    given_back: list[TierPart] = field(default_factory=list)
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
        """Whether the client may have a read of this part started beside its probe."""
        return self._authorities.has_right(part.partition)

    async def probe(self, request: FetchRequest, parts: Sequence[TierPart]) -> Verdicts:
        """Have the broker judge all parts; a probe that still counts is not repeated."""
        verdicts = Verdicts()
        asked: list[TierPart] = []
        now_s = trio.current_time()
        for part in parts:
            authority = self._authorities.get(_key(request, part), now_s)
            if authority is None or not _still_counts(request, part, authority):
                asked.append(part)
            else:
                self._vouch(part, authority, verdicts)
        self._meter.on_probes_reused(len(parts) - len(asked))
        stale = await self._ask(request, asked, verdicts)
        if stale and verdicts.whole is None:
            stale = await self._ask(request, await self._learn_anew(stale, verdicts), verdicts)
            for part in stale:
                self._tier.forget(self.node_id, part.partition)
                verdicts.answered.append((part, _refusal(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        return verdicts

    async def _ask(self, request: FetchRequest, parts: Sequence[TierPart], verdicts: Verdicts) -> list[TierPart]:
        """Probe these parts; returns those whose probe offset was stale."""
        if not parts:
            return []
        probe = await self._send(request, [(part, part.frontier.probe_offset) for part in parts])
        tails = self._known_tails(request, parts)
        questions = [
            (part, await self._send(request, [(part, part.frontier.local_log_start_offset)]))
            for part, tail in tails.items()
            if tail is None
        ]
        entries = await self._entries(probe, verdicts)
        for part, question in questions:
            tails[part] = self._learn_tail(part, await self._entries(question, verdicts))
        stale: list[TierPart] = []
        for part in parts if verdicts.whole is None else ():
            entry = entries.get(_id_of(part))
            if entry is not None and entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                stale.append(part)
            else:
                self._judge(request, part, entry, tails.get(part), verdicts)
        return stale

    def _known_tails(self, request: FetchRequest, parts: Sequence[TierPart]) -> dict[TierPart, AbortedTail | None]:
        """Of READ_COMMITTED parts; None is to be asked for."""
        if request.isolation_level != IsolationLevel.READ_COMMITTED:
            return {}
        tails = self._tier.aborted_tails
        return {
            part: tails.get(
                self.node_id, part.partition, part.frontier.local_log_start_offset, part.frontier.leader_epoch
            )
            for part in parts
        }

    def _learn_tail(self, part: TierPart, entries: Mapping[_PartitionId, PartitionAnswer]) -> AbortedTail | None:
        return self._tier.aborted_tails.learn(
            self.node_id,
            part.partition,
            part.frontier.local_log_start_offset,
            part.frontier.leader_epoch,
            entries.get(_id_of(part)),
        )

    async def _entries(self, question: _Question, verdicts: Verdicts) -> dict[_PartitionId, PartitionAnswer]:
        """The answer's partitions; none if it is one to the request as a whole, which is noted."""
        asked_at_s, sent = question
        response = await sent.response()
        discarded_bytes = sum(entry.records_bytes for entry in response.partitions)
        self._meter.on_probe_answered(trio.current_time() - asked_at_s, discarded_bytes)
        verdicts.throttle_time_ms = max(verdicts.throttle_time_ms, response.throttle_time_ms)
        if response.tags != NO_TAGS:
            verdicts.sections.append(response.tags)
        if is_whole(response):
            verdicts.whole = verdicts.whole or response
        return {(entry.topic_id, entry.partition): entry for entry in response.partitions}

    async def _send(self, request: FetchRequest, at: Sequence[tuple[TierPart, int]]) -> _Question:
        """Ask for a batch of each part at its offset."""
        version = max(request.api_version, TOPIC_ID_VERSION_MIN)
        correlation_id = self._wire.next_correlation_id()
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
        frame = encode_request_in_slices(
            request,
            questions,
            correlation_id=correlation_id,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=PROBE_BYTES_MAX,
            api_version=version,
        )
        self._meter.on_probe_sent()
        return trio.current_time(), await send_fetch(self._wire, version, correlation_id, frame)

    def _judge(
        self,
        request: FetchRequest,
        part: TierPart,
        entry: PartitionAnswer | None,
        tail: AbortedTail | None,
        verdicts: Verdicts,
    ) -> None:
        if entry is None or entry.error_code in _TOPIC_GONE:
            # Another topic may have the name by now; a client that asks by name is the broker's to answer.
            self._tier.forget_topic(part.partition)
        if entry is None or (entry.error_code in _TOPIC_GONE and part.asked.topic_id is None):
            self._authorities.end(_key(request, part))
            verdicts.given_back.append(part)
        elif entry.error_code or entry.preferred_read_replica >= 0:
            self._authorities.end(_key(request, part))
            self._tier.aborted_tails.forget(self.node_id, part.partition)
            if _tells_of_change(part, entry.error_code):
                self._tier.forget(self.node_id, part.partition)
            entry.topic, entry.topic_id, entry.records = part.asked.topic, part.asked.topic_id, ()
            entry.error_code = _code_for_version(entry.error_code, request.api_version)
            verdicts.answered.append((part, entry))
        else:
            self._take(request, part, entry, tail, verdicts)

    def _take(
        self,
        request: FetchRequest,
        part: TierPart,
        entry: PartitionAnswer,
        tail: AbortedTail | None,
        verdicts: Verdicts,
    ) -> None:
        """A good probe."""
        if part.asked.current_leader_epoch > part.frontier.leader_epoch:
            # The broker let the client's epoch pass, so it is the broker's own, and newer than ours
            # (docs/protocol.md#l2).
            part.frontier = replace(part.frontier, leader_epoch=part.asked.current_leader_epoch)
            verdicts.learned_anew.append(part)
        frontier = part.frontier
        self._tier.frontiers.saw(
            self.node_id,
            part.partition,
            high_watermark=entry.high_watermark,
            last_stable_offset=entry.last_stable_offset,
            log_start_offset=entry.log_start_offset,
            leader_epoch=frontier.leader_epoch,
        )
        self._tier.aborted_tails.saw(self.node_id, part.partition, entry.last_stable_offset)
        authority = Authority(
            entry.high_watermark,
            entry.last_stable_offset,
            entry.log_start_offset,
            leader_epoch=frontier.leader_epoch,
            local_log_start_offset=frontier.local_log_start_offset,
            aborted_tail=tail,
            given_at_s=trio.current_time(),
        )
        self._authorities.put(_key(request, part), authority)
        self._vouch(part, authority, verdicts)

    def _vouch(self, part: TierPart, authority: Authority, verdicts: Verdicts) -> None:
        if part.asked.fetch_offset < authority.log_start_offset:
            verdicts.answered.append((part, _refusal(part, ErrorCode.OFFSET_OUT_OF_RANGE)))
        else:
            verdicts.vouched.append((part, authority))

    async def _learn_anew(self, parts: Sequence[TierPart], verdicts: Verdicts) -> list[TierPart]:
        """Forget what was known of these parts and ask again; those not the tier's after all are given back."""
        for part in parts:
            self._tier.forget(self.node_id, part.partition)
        with trio.move_on_after(LEARN_WAIT_S_MAX):
            await self._tier.frontiers.refresh(self.node_id, [part.partition for part in parts])
        again: list[TierPart] = []
        for part in parts:
            frontier = self._tier.frontiers.get(self.node_id, part.partition)
            if frontier is None or part.asked.fetch_offset >= frontier.local_log_start_offset:
                verdicts.given_back.append(part)
            else:
                part.frontier = frontier
                again.append(part)
        verdicts.learned_anew += again
        return again


def _id_of(part: TierPart) -> _PartitionId:
    return part.partition.topic_id, part.partition.partition


def _key(request: FetchRequest, part: TierPart) -> AuthorityKey:
    return AuthorityKey(part.partition, request.isolation_level, part.asked.current_leader_epoch)


def _still_counts(request: FetchRequest, part: TierPart, authority: Authority) -> bool:
    """Whether what a reused probe was asked of is still so: leader, log start, where its aborted tail begins.

    Never for a client that asks by name: the probe vouched for a topic id, and the name may be another topic's by now.
    """
    if part.asked.topic_id is None or authority.leader_epoch != part.frontier.leader_epoch:
        return False
    if authority.log_start_offset < part.frontier.log_start_offset:
        return False  # another connection has heard of a DeleteRecords
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    return not committed or authority.local_log_start_offset == part.frontier.local_log_start_offset


def _tells_of_change(part: TierPart, error_code: ErrorCode | int) -> bool:
    """Whether a refusal says that our frontier is out of date, and not merely the client.

    A client with an old epoch must not have everybody's knowledge learned anew with each of its requests.
    """
    if error_code == ErrorCode.FENCED_LEADER_EPOCH:
        return part.asked.current_leader_epoch >= part.frontier.leader_epoch
    return error_code in _FRONTIER_GONE


def _code_for_version(error_code: int, api_version: int) -> int:
    """A broker's error code of a newer Fetch version, as it would have put it in the client's own."""
    if error_code == ErrorCode.KAFKA_STORAGE_ERROR and api_version < KAFKA_STORAGE_ERROR_VERSION_MIN:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error_code


def _refusal(part: TierPart, error_code: ErrorCode) -> PartitionAnswer:
    return PartitionAnswer.error(part.asked.topic, part.asked.topic_id, part.asked.partition, error_code)
