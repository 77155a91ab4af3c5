"""A connection's Fetch handling: decode, decide, exchange (ARCHITECTURE.md#one-request-end-to-end, docs/protocol.md#l1,
docs/protocol.md#l4).

What names no tier partition is relayed, also as part of a session; what does is exchanged, and a session is ours from
then on (`proxy.fetch.sessions`): its requests are made whole before they are planned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import structlog
import trio

from metrics.meters import Meters
from protocol.client.errors import UpstreamError
from protocol.fetch.messages import (
    OPENING_EPOCH,
    SESSIONLESS_EPOCH,
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    last_mentions_in_slices,
)
from protocol.fetch.request import decode_request_in_slices
from protocol.fetch.sessions import FetchSession, SessionSlots
from protocol.wire.headers import decode_request_header
from protocol.wire.identifiers import ApiKey, IsolationLevel
from proxy.connection.client_reads import ClientReads
from proxy.connection.request_handlers import RELAY, Answer, Relay
from proxy.connection.slices import each_slice, in_slices
from proxy.connection.upstream_wire import UpstreamWire
from proxy.fetch.answer import FetchAnswer, answer_frame
from proxy.fetch.authority import Authorities, LogStartGeneration
from proxy.fetch.exchange import exchange
from proxy.fetch.fallback import Fallback
from proxy.fetch.frontier import LEARN_WAIT_S_MAX, Frontier
from proxy.fetch.own_fetch import LocalEnds, OwnFetch, close_upstream_session
from proxy.fetch.plan import FETCH_BYTES_MAX, FetchPlan, TierPart, leave_to_broker, plan_fetch
from proxy.fetch.probe import Prober
from proxy.fetch.sessions import ClientSessions
from proxy.fetch.tier import Tier
from storage.model import TopicIdPartition

CONSUMER_REPLICA_ID = -1

TIER_WAIT_S_MAX = 5.0
"""A tier read never holds a request longer, whatever the client allows (docs/protocol.md#l3)."""

FOLLOWER_FETCH_VERSION_MIN = 11
"""Below, only the leader may be asked (KIP-392)."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class FetchSettings:
    """Times in seconds. `read_prefer_tier`: offsets in both places come from the tier too.

    One for all connections; a reload changes it, and their next requests go by that.
    """

    authority_age_s_max: float
    fetch_wait_s_max: float
    linger_s: float
    read_prefer_tier: bool


class FetchService:
    """One for each client connection."""

    def __init__(
        self,
        *,
        tier: Tier,
        client: ClientReads,
        fallback: Fallback,
        settings: FetchSettings,
        generation: LogStartGeneration,
        slots: SessionSlots,
        meters: Meters,
    ) -> None:
        self._tier = tier
        self._fallback = fallback
        self._settings = settings
        self._meters = meters
        self._authorities = Authorities(settings.authority_age_s_max, generation)
        self._client = client
        self._local_ends = LocalEnds()
        self._sessions = ClientSessions(slots, meters.relay)
        self._has_said_unread = False

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request, and answer it if it is not to be relayed.

        An answer is followed by `on_answered`.
        """
        self._authorities.age_s_max = self._settings.authority_age_s_max
        request = await in_slices(decode_request_in_slices(frame, decode_request_header(frame)))
        if request.replica_id != CONSUMER_REPLICA_ID or wire.node_id is None:
            return RELAY
        if request.is_unread:
            self._note_unread(request, len(frame))
        if len(request.partitions) > 1:
            request.partitions = await in_slices(last_mentions_in_slices(request.partitions))
        if request.session_epoch in (OPENING_EPOCH, SESSIONLESS_EPOCH):
            return await self._full(frame, request, wire, wire.node_id)
        return await self._incremental(frame, request, wire, wire.node_id)

    def _note_unread(self, request: FetchRequest, size_bytes: int) -> None:
        self._meters.tier.on_request_unread(ApiKey.FETCH)
        if not self._has_said_unread:
            self._has_said_unread = True
            _log.warning("fetch_left_unread", client_id=request.client_id, size_bytes=size_bytes)

    async def _full(self, frame: memoryview, request: FetchRequest, wire: UpstreamWire, node_id: int) -> Answer | Relay:
        replaced_id = self._sessions.replaced_by(request)
        plan = None if request.is_unread else await self._plan(request, node_id)
        if plan is None:
            return await self._sessions.relay_full(frame, request, replaced_id)
        await close_upstream_session(wire, request, replaced_id)
        answer = await self._exchange(request, plan, wire, node_id)
        return await self._sessions.answer_full(request, answer, wire)

    async def _incremental(
        self, frame: memoryview, request: FetchRequest, wire: UpstreamWire, node_id: int
    ) -> Answer | Relay:
        session = await self._sessions.go_on(request)
        if not isinstance(session, FetchSession):
            return await answer_frame(request, FetchAnswer((), error_code=session), wire)
        if session.is_unread:
            return self._sessions.relay_incremental(frame, request, session)
        if session.is_relayed:
            # Nothing here may cost work for each partition of the session.
            named = session.still_named(request)
            if not named or await self._plan(replace(request, partitions=named), node_id) is None:
                return self._sessions.relay_incremental(frame, request, session)
            await self._sessions.take_over(request, session, wire)
        if len(session):
            request = replace(request, partitions=session.asked())
        plan = await self._plan(request, node_id)
        if plan is None:
            bytes_max = self._client.granted(min(request.max_bytes, FETCH_BYTES_MAX))
            answer = await self._sessions.give_back(request, session, wire, bytes_max)
        else:
            answer = await self._exchange(request, plan, wire, node_id)
        return await self._sessions.answer_changed(request, session, answer, wire)

    async def _exchange(self, request: FetchRequest, plan: FetchPlan, wire: UpstreamWire, node_id: int) -> FetchAnswer:
        wait_s = min(max(request.max_wait_ms / 1000, self._settings.fetch_wait_s_max), TIER_WAIT_S_MAX)
        try:
            return await exchange(
                request,
                plan,
                tier=self._tier,
                fallback=self._fallback,
                prober=Prober(wire, node_id, self._tier, self._authorities, self._meters.relay),
                own_fetch=OwnFetch(wire, self._local_ends, self._client.granted),
                meters=self._meters,
                client=self._client,
                deadline_s=trio.current_time() + wait_s,
                linger_s=self._settings.linger_s,
            )
        except BaseException:
            self._client.release()
            raise

    def on_answered(self) -> None:
        """The answer was sent, or cannot be: what it holds of the tier's memory is free."""
        self._client.release()

    def close(self) -> None:
        """The client has gone."""
        self._client.release()
        self._sessions.close()
        self._tier.forget_reader(self._client.identity)

    def forget_authority(self) -> None:
        """The client may be somebody else from now on, or have other rights."""
        self._authorities.end_all()

    async def _plan(self, request: FetchRequest, node_id: int) -> FetchPlan | None:
        """How a request is split; None if nothing of it is the tier's, or it is the broker's to understand."""
        candidates = await self._candidates(request)
        if not any(candidates) or request.max_bytes < 0:
            return None
        frontiers = self._tier.frontiers
        seen: dict[TopicIdPartition, Frontier] = {}
        unknown: list[TopicIdPartition] = []
        ageing: list[TopicIdPartition] = []
        now_s = trio.current_time()

        def look(some: Sequence[tuple[FetchPartition, TopicIdPartition | None]]) -> None:
            for asked, candidate in some:
                if candidate is None:
                    continue
                frontier = frontiers.get(node_id, candidate)
                if frontier is None:
                    unknown.append(candidate)
                    continue
                seen[candidate] = frontier
                if not frontiers.is_fresh(frontier, now_s):
                    # The local log start only rises: an offset above it is the broker's to answer either way.
                    below = asked.fetch_offset < frontier.local_log_start_offset
                    (unknown if below else ageing).append(candidate)

        await each_slice(list(zip(request.partitions, candidates, strict=True)), look)
        if ageing:
            frontiers.refresh_soon(node_id, ageing)
        if unknown:
            with trio.move_on_after(LEARN_WAIT_S_MAX):
                await frontiers.refresh(node_id, unknown)
            # Another client's refused probe may have forgotten one meanwhile; ours will say if it is wrong.
            known = ((each, frontiers.get(node_id, each)) for each in candidates if each is not None)
            seen |= {candidate: frontier for candidate, frontier in known if frontier is not None}
        plan = plan_fetch(
            request,
            candidates,
            seen.get,
            lambda asked, candidate, frontier: self._belongs_to_tier(request, asked, candidate, frontier, node_id),
            lambda asked, frontier: self._local_ends.has_records(asked, frontier, request.isolation_level),
        )
        planned_at_s = trio.current_time()
        for part in plan.tier:
            self._meters.relay.on_frontier_used(planned_at_s - part.frontier.learned_at_s)
        plan = leave_to_broker(request, plan, await self._off_lineage(plan.tier))
        return plan if plan.tier else None

    async def _candidates(self, request: FetchRequest) -> list[TopicIdPartition | None]:
        """For each partition, its identity if the tier has segments of it."""
        tier = self._tier
        if request.api_version >= TOPIC_ID_VERSION_MIN:
            return await _each(request.partitions, lambda asked: tier.partition(asked.topic_id or b"", asked.partition))
        names = [asked.topic for asked in request.partitions if asked.topic is not None]
        if any(tier.topic_id(name) is None for name in names):
            with trio.move_on_after(LEARN_WAIT_S_MAX):
                await tier.learn_topic_ids(names)
        return await _each(
            request.partitions, lambda asked: tier.partition(tier.topic_id(asked.topic or "") or b"", asked.partition)
        )

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
            # Aborts between tier and local log are told at the frontier only (proxy.fetch.aborted_tails).
            prefers_tier = self._settings.read_prefer_tier and not committed
            if not prefers_tier or not self._tier.has_copied(candidate, asked.fetch_offset):
                return False
        if asked.fetch_offset < 0:
            return False
        return request.api_version >= FOLLOWER_FETCH_VERSION_MIN or self._tier.leads(node_id, candidate)

    async def _off_lineage(self, parts: Sequence[TierPart]) -> set[TierPart]:
        """Parts whose client's last fetched epoch is not known to be on the leader's lineage: the broker says whether
        and where they part."""
        left = {part for part in parts if part.asked.last_fetched_epoch >= 0}
        if not left:
            return left
        with trio.move_on_after(LEARN_WAIT_S_MAX):
            async with trio.open_nursery() as asking:
                for part in tuple(left):
                    if self._tier.knows_lineage(part.partition, part.frontier.leader_epoch):
                        await self._leave_if_on_lineage(part, left)
                    else:
                        asking.start_soon(self._leave_if_on_lineage, part, left)
        return left

    async def _leave_if_on_lineage(self, part: TierPart, left: set[TierPart]) -> None:
        """Take the part out of those whose lineage has yet to be seen."""
        try:
            on_lineage = await self._tier.is_on_lineage(
                part.partition,
                part.frontier.leader_epoch,
                last_fetched_epoch=part.asked.last_fetched_epoch,
                offset=part.asked.fetch_offset,
            )
        except UpstreamError:
            return
        if on_lineage:
            left.discard(part)


async def _each(
    partitions: Sequence[FetchPartition], find: Callable[[FetchPartition], TopicIdPartition | None]
) -> list[TopicIdPartition | None]:
    found = await each_slice(partitions, lambda some: [find(asked) for asked in some])
    return found[0] if len(found) == 1 else list(chain.from_iterable(found))
