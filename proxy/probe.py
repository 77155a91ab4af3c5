"""The probe: the upstream question that a tier read rides on (design L1).

A Fetch of our own on the client's upstream connection, in its place in the stream of requests: the broker
checks the client's rights, the leader and the epochs, and tells high watermark, LSO and log start.

- READ_UNCOMMITTED: one request for all partitions, each at its high watermark, where there is nothing to read.
- READ_COMMITTED: one request a partition, at the local log start. Its list of aborted transactions names every
  transaction that began in the tier and was aborted in the local log (its marker is at or beyond that offset,
  its first record below it), which no transaction index in the tier tells. Brokers give that list only with
  records, and max_bytes 1 yields records for one partition a request.
- OFFSET_OUT_OF_RANGE is never an answer: our offset was stale. What was known is learned anew, one more probe is
  sent, and then the client is told to ask for metadata again (6).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import trio

from metrics.probes import RelayProbe
from protocol.api_01_fetch import (
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionAnswer,
)
from protocol.api_01_fetch_request import encode_request
from protocol.api_01_fetch_response import decode_response
from protocol.errors import ErrorCode
from protocol.identifiers import ApiKey, IsolationLevel
from proxy.assembly import is_whole
from proxy.authority import Authorities, Authority, AuthorityKey
from proxy.errors import code_for_version
from proxy.fetch_plan import TierPart
from proxy.frontier import LEARN_WAIT_S_MAX
from proxy.tier import Tier
from proxy.upstream_wire import PendingAnswer, UpstreamWire

PROBE_BYTES_MAX = 1
"""One batch at most comes back, and is discarded."""

_TOPIC_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
_FRONTIER_GONE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, *_TOPIC_GONE})


@dataclass(slots=True)
class Verdicts:
    """What the broker said: each part is vouched for, answered, or given back to the broker.

    `whole` is set when the broker answered the request as a whole: throttled, or an error of the request.
    `learned_anew` are parts of which the probe showed that what their reads were started with is out of date.
    """

    whole: FetchResponse | None = None
    throttle_time_ms: int = 0
    vouched: list[tuple[TierPart, Authority]] = field(default_factory=list)
    answered: list[tuple[TierPart, PartitionAnswer]] = field(default_factory=list)
    given_back: list[TierPart] = field(default_factory=list)
    learned_anew: list[TierPart] = field(default_factory=list)


class Prober:
    """Probes of one connection."""

    def __init__(
        self, wire: UpstreamWire, node_id: int, tier: Tier, authorities: Authorities, probe: RelayProbe
    ) -> None:
        self._wire = wire
        self._node_id = node_id
        self._tier = tier
        self._authorities = authorities
        self._probe = probe

    async def probe(self, request: FetchRequest, parts: Sequence[TierPart]) -> Verdicts:
        """Have the broker judge all parts; a probe that still counts is not repeated."""
        verdicts = Verdicts()
        asked: list[TierPart] = []
        for part in parts:
            authority = self._authorities.get(_key(request, part))
            if authority is None or not _still_counts(request, part, authority):
                asked.append(part)
            else:
                self._probe.on_probe_reused()
                self._vouch(part, authority, verdicts)
        stale = await self._ask(request, asked, verdicts)
        if stale and verdicts.whole is None:
            stale = await self._ask(request, await self._learn_anew(stale, verdicts), verdicts)
            for part in stale:
                self._tier.forget(self._node_id, part.partition)
                verdicts.answered.append((part, _refusal(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        return verdicts

    async def _ask(self, request: FetchRequest, parts: Sequence[TierPart], verdicts: Verdicts) -> list[TierPart]:
        """Probe these parts; returns those whose probe offset was stale."""
        committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        groups = [[part] for part in parts] if committed else [list(parts)] if parts else []
        version = max(request.api_version, TOPIC_ID_VERSION_MIN)
        started_at_s = trio.current_time()
        pending = [(group, await self._send(request, group, version)) for group in groups]
        stale: list[TierPart] = []
        for group, answer in pending:
            response = decode_response(await answer.frame(), version)
            discarded_bytes = sum(entry.records_bytes for entry in response.partitions)
            self._probe.on_probe_answered(trio.current_time() - started_at_s, discarded_bytes)
            verdicts.throttle_time_ms = max(verdicts.throttle_time_ms, response.throttle_time_ms)
            if is_whole(response):
                verdicts.whole = verdicts.whole or response
                continue
            by_partition = {(entry.topic_id, entry.partition): entry for entry in response.partitions}
            for part in group:
                entry = by_partition.get((part.partition.topic_id, part.partition.partition))
                if entry is not None and entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    stale.append(part)
                else:
                    self._judge(request, part, entry, verdicts)
        return stale

    async def _send(self, request: FetchRequest, parts: Sequence[TierPart], version: int) -> PendingAnswer:
        committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        correlation_id = self._wire.next_correlation_id()
        questions = [
            FetchPartition(
                topic=part.partition.topic,
                topic_id=part.partition.topic_id,
                partition=part.partition.partition,
                current_leader_epoch=part.asked.current_leader_epoch,
                fetch_offset=part.frontier.local_log_start_offset if committed else part.frontier.probe_offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=PROBE_BYTES_MAX,
            )
            for part in parts
        ]
        frame = encode_request(
            request,
            questions,
            correlation_id=correlation_id,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=PROBE_BYTES_MAX,
            api_version=version,
        )
        self._probe.on_probe_sent()
        return await self._wire.ask(ApiKey.FETCH, version, correlation_id, frame)

    def _judge(self, request: FetchRequest, part: TierPart, entry: PartitionAnswer | None, verdicts: Verdicts) -> None:
        if entry is None or entry.error_code in _TOPIC_GONE:
            # Another topic may have the name by now; a client that asks by name is the broker's to answer.
            self._tier.forget_topic(part.partition)
        if entry is None or (entry.error_code in _TOPIC_GONE and part.asked.topic_id is None):
            verdicts.given_back.append(part)
        elif entry.error_code or entry.preferred_read_replica >= 0:
            self._authorities.end(_key(request, part))
            if entry.error_code in _FRONTIER_GONE:
                self._tier.forget(self._node_id, part.partition)
            entry.topic, entry.topic_id, entry.records = part.asked.topic, part.asked.topic_id, ()
            entry.error_code = code_for_version(entry.error_code, request.api_version)
            verdicts.answered.append((part, entry))
        else:
            self._take(request, part, entry, verdicts)

    def _take(self, request: FetchRequest, part: TierPart, entry: PartitionAnswer, verdicts: Verdicts) -> None:
        """A good probe."""
        if part.asked.current_leader_epoch > part.frontier.leader_epoch:
            # The broker let the client's epoch pass, so it is the broker's own, and newer than ours (design L2).
            part.frontier = replace(part.frontier, leader_epoch=part.asked.current_leader_epoch)
            verdicts.learned_anew.append(part)
        frontier = part.frontier
        self._tier.frontiers.saw(
            self._node_id,
            part.partition,
            high_watermark=entry.high_watermark,
            last_stable_offset=entry.last_stable_offset,
            log_start_offset=entry.log_start_offset,
            leader_epoch=frontier.leader_epoch,
        )
        aborted = entry.aborted_transactions or ()
        authority = Authority(
            entry.high_watermark,
            entry.last_stable_offset,
            entry.log_start_offset,
            abort_free=not any(first < frontier.local_log_start_offset for _, first in aborted),
            leader_epoch=frontier.leader_epoch,
            local_log_start_offset=frontier.local_log_start_offset,
            given_at_s=trio.current_time(),
        )
        self._authorities.put(_key(request, part), authority)
        self._vouch(part, authority, verdicts)

    def _vouch(self, part: TierPart, authority: Authority, verdicts: Verdicts) -> None:
        if part.asked.fetch_offset < authority.log_start_offset:
            verdicts.answered.append((part, _refusal(part, ErrorCode.OFFSET_OUT_OF_RANGE)))
        elif not authority.abort_free:
            verdicts.given_back.append(part)
        else:
            verdicts.vouched.append((part, authority))

    async def _learn_anew(self, parts: Sequence[TierPart], verdicts: Verdicts) -> list[TierPart]:
        """Forget what was known of these parts and ask again; those not the tier's after all are given back."""
        for part in parts:
            self._tier.forget(self._node_id, part.partition)
        with trio.move_on_after(LEARN_WAIT_S_MAX):
            await self._tier.frontiers.refresh(self._node_id, [part.partition for part in parts])
        again: list[TierPart] = []
        for part in parts:
            frontier = self._tier.frontiers.get(self._node_id, part.partition)
            if frontier is None or part.asked.fetch_offset >= frontier.local_log_start_offset:
                verdicts.given_back.append(part)
            else:
                part.frontier = frontier
                again.append(part)
        verdicts.learned_anew += again
        return again


def _key(request: FetchRequest, part: TierPart) -> AuthorityKey:
    return AuthorityKey(part.partition, request.isolation_level, part.asked.current_leader_epoch)


def _still_counts(request: FetchRequest, part: TierPart, authority: Authority) -> bool:
    """Whether what a reused probe was asked of is still so: its leader, and where its search for aborts began.

    Never for a client that asks by name: the probe vouched for a topic id, and the name may be another topic's by now.
    """
    if part.asked.topic_id is None or authority.leader_epoch != part.frontier.leader_epoch:
        return False
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    return not committed or authority.local_log_start_offset == part.frontier.local_log_start_offset


def _refusal(part: TierPart, error_code: ErrorCode) -> PartitionAnswer:
    return PartitionAnswer.error(part.asked.topic, part.asked.topic_id, part.asked.partition, error_code)
