"""A connection's Fetch handling: decode, decide, exchange (design §3.4 to §3.9, L1, L4).

Sessions: a client is kept sessionless (id 0), which KIP-227 allows: each Fetch is a full one. The epoch of a
request that is relayed is patched in place; a request for a session that was never given is refused as the
broker would (70).
"""

from dataclasses import dataclass

import trio

from metrics.probes import Probes
from protocol.api_01_fetch import SESSIONLESS_EPOCH, TOPIC_ID_VERSION_MIN, FetchPartition, FetchRequest
from protocol.api_01_fetch_request import decode_request
from protocol.errors import ErrorCode
from protocol.headers import decode_request_header
from protocol.identifiers import IsolationLevel
from proxy.authority import Authorities, LogStartGeneration
from proxy.client_reads import ClientReads
from proxy.exchange import exchange
from proxy.fetch_answer import FetchAnswer, encode_answer
from proxy.fetch_plan import FetchPlan, has_duplicates, plan_fetch
from proxy.frontier import LEARN_WAIT_S_MAX, Frontier
from proxy.own_fetch import OwnFetch
from proxy.probe import Prober
from proxy.request_handlers import RELAY, Answer, Relay
from proxy.tier import Tier
from proxy.upstream.errors import UpstreamError
from proxy.upstream_wire import UpstreamWire
from storage.model import TopicIdPartition

CONSUMER_REPLICA_ID = -1

TIER_WAIT_S_MAX = 5.0
"""A tier read never holds a request longer, whatever the client allows (design L3)."""

FOLLOWER_FETCH_VERSION_MIN = 11
"""Below, only the leader may be asked (KIP-392)."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Times in seconds. `read_prefer_tier`: offsets in both places come from the tier too."""

    authority_age_s_max: float
    fetch_wait_s_max: float
    linger_s: float
    read_prefer_tier: bool


class FetchService:
    """One for each client connection."""

    def __init__(self, *, tier: Tier, settings: FetchSettings, generation: LogStartGeneration, probes: Probes) -> None:
        self._tier = tier
        self._settings = settings
        self._probes = probes
        self._authorities = Authorities(settings.authority_age_s_max, generation)
        self._client = ClientReads()

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request, and answer it if it is not to be relayed.

        An answer is followed by `on_answered`.
        """
        request = decode_request(frame, decode_request_header(frame))
        if request.replica_id != CONSUMER_REPLICA_ID:
            return RELAY
        if request.session_epoch > 0:
            return encode_answer(request, FetchAnswer((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        if request.session_epoch_position is not None:
            at = request.session_epoch_position
            frame[at : at + 4] = SESSIONLESS_EPOCH.to_bytes(4, "big", signed=True)
        node_id = wire.node_id
        if node_id is None:
            return RELAY
        plan = await self._plan(request, node_id)
        if plan is None or not plan.tier or has_duplicates(request) or request.max_bytes < 0:
            return RELAY
        wait_s = min(max(request.max_wait_ms / 1000, self._settings.fetch_wait_s_max), TIER_WAIT_S_MAX)
        try:
            answer = await exchange(
                request,
                plan,
                tier=self._tier,
                prober=Prober(wire, node_id, self._tier, self._authorities, self._probes.relay),
                own_fetch=OwnFetch(wire),
                probes=self._probes,
                client=self._client,
                deadline_s=trio.current_time() + wait_s,
                linger_s=self._settings.linger_s,
            )
        except BaseException:
            self._client.release()
            raise
        return encode_answer(request, answer)

    def on_answered(self) -> None:
        """The answer was sent, or cannot be: what it holds of the tier's memory is free."""
        self._client.release()

    def close(self) -> None:
        """The client has gone."""
        self._client.release()
        self._tier.forget_reader(self._client.identity)

    def forget_authority(self) -> None:
        """The client may be somebody else from now on, or have other rights."""
        self._authorities.end_all()

    async def _plan(self, request: FetchRequest, node_id: int) -> FetchPlan | None:
        candidates = await self._candidates(request)
        if not any(candidates):
            return None
        frontiers = self._tier.frontiers
        unknown: list[TopicIdPartition] = []
        ageing: list[TopicIdPartition] = []
        for asked, candidate in zip(request.partitions, candidates, strict=True):
            if candidate is None:
                continue
            frontier = frontiers.get(node_id, candidate)
            if frontier is None:
                unknown.append(candidate)
            elif not frontiers.is_fresh(frontier):
                # The local log start only rises: an offset above it is the broker's to answer either way.
                below = asked.fetch_offset < frontier.local_log_start_offset
                (unknown if below else ageing).append(candidate)
        if ageing:
            frontiers.refresh_soon(node_id, ageing)
        if unknown:
            with trio.move_on_after(LEARN_WAIT_S_MAX):
                await frontiers.refresh(node_id, unknown)
        plan = plan_fetch(
            request,
            candidates,
            lambda candidate: frontiers.get(node_id, candidate),
            lambda asked, candidate, frontier: self._belongs_to_tier(request, asked, candidate, frontier, node_id),
        )
        for part in plan.tier:
            self._probes.relay.on_frontier_used(frontiers.age_s(part.frontier))
        with trio.move_on_after(LEARN_WAIT_S_MAX):
            return plan if await self._all_on_lineage(plan) else None
        return None

    async def _candidates(self, request: FetchRequest) -> list[TopicIdPartition | None]:
        """For each partition, its identity if the tier has segments of it."""
        tier = self._tier
        if request.api_version >= TOPIC_ID_VERSION_MIN:
            return [tier.partition(asked.topic_id or b"", asked.partition) for asked in request.partitions]
        names = [asked.topic for asked in request.partitions if asked.topic is not None]
        if any(tier.topic_id(name) is None for name in names):
            with trio.move_on_after(LEARN_WAIT_S_MAX):
                await tier.learn_topic_ids(names)
        return [
            tier.partition(tier.topic_id(asked.topic or "") or b"", asked.partition) for asked in request.partitions
        ]

    def _belongs_to_tier(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        candidate: TopicIdPartition,
        frontier: Frontier,
        node_id: int,
    ) -> bool:
        committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        if asked.fetch_offset >= frontier.local_log_start_offset:
            # Aborts between tier and local log are judged at the frontier only (proxy.probe).
            prefers_tier = self._settings.read_prefer_tier and not committed
            if not prefers_tier or not self._tier.has_copied(candidate, asked.fetch_offset):
                return False
        if asked.fetch_offset < 0:
            return False
        if request.api_version < FOLLOWER_FETCH_VERSION_MIN and not self._tier.leads(node_id, candidate):
            return False
        return not (committed and self._tier.holds_aborts_after(candidate, asked.fetch_offset))

    async def _all_on_lineage(self, plan: FetchPlan) -> bool:
        """False (relay it all) if a client's last fetched epoch is not on the leader's lineage: the broker says where
        they part."""
        for part in plan.tier:
            if part.asked.last_fetched_epoch < 0:
                continue
            try:
                on_lineage = await self._tier.is_on_lineage(
                    part.partition,
                    part.frontier.leader_epoch,
                    last_fetched_epoch=part.asked.last_fetched_epoch,
                    offset=part.asked.fetch_offset,
                )
            except UpstreamError:
                on_lineage = False
            if not on_lineage:
                return False
        return True
