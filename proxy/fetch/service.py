"""A connection's Fetch handling: decode, decide, exchange (ARCHITECTURE.md#one-request-end-to-end, docs/protocol.md#l1,
docs/protocol.md#l4).

What names no tier partition is relayed, also as part of a session; what does is exchanged, and a session is ours from
then on (`proxy.fetch.service`): its requests are made whole before they are planned.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

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
    PartitionAnswer,
    last_mentions,
)
from protocol.fetch.requests import decode_request
from protocol.fetch.sessions import FetchSession, SessionSlots
from protocol.wire.identifiers import ApiKey, IsolationLevel
from protocol.wire.request_headers import decode_request_header
from proxy.connection.client_reads import ClientReads
from proxy.connection.request_handlers import RELAY, Answer, Relay, UpstreamWire
from proxy.connection.slices import BYTES_AT_ONCE, ITEMS_AT_ONCE, each_slice, off_loop
from proxy.fetch.answer import FetchAnswer, answer_frame
from proxy.fetch.authorities import Authorities, LogStartGeneration
from proxy.fetch.exchange import Exchange
from proxy.fetch.fallback import COME_AGAIN, Fallback
from proxy.fetch.frontiers import LEARN_WAIT_S_MAX, Frontier
from proxy.fetch.own_fetch import OwnFetch
from proxy.fetch.plan import FETCH_BYTES_MAX, FetchPlan, Instead, TierPart, plan_fetch
from proxy.fetch.probe import Prober, Verdicts
from proxy.fetch.sent_fetch import close_upstream_session
from proxy.fetch.sessions import ClientSessions
from proxy.fetch.tier import Tier
from proxy.tier_owner import Edits
from proxy.turns import move_on_after
from storage.model import TopicIdPartition, Uuid
from storage.steps import Steps, finish

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
        self._sessions = ClientSessions(slots, meters.relay)
        self._has_said_unread = False

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request, and answer it if it is not to be relayed.

        An answer is followed by `on_answered`.
        """
        self._authorities.age_s_max = self._settings.authority_age_s_max
        header = decode_request_header(frame)
        request = await off_loop(len(frame) > BYTES_AT_ONCE, partial(decode_request, frame, header))
        if request.replica_id != CONSUMER_REPLICA_ID:
            return RELAY
        edits = self._tier.owner.edits(self._tier, wire.node_id)
        if wire.node_id is None:
            return edits.relay(request)
        if request.is_unread:
            self._note_unread(request, len(frame))
        if len(request.partitions) > 1:
            is_large = len(request.partitions) > ITEMS_AT_ONCE
            request.partitions = await off_loop(is_large, partial(last_mentions, request.partitions))
        if request.session_epoch in (OPENING_EPOCH, SESSIONLESS_EPOCH):
            return await self._full(frame, request, wire, wire.node_id, edits)
        return await self._incremental(frame, request, wire, wire.node_id, edits)

    def _put_off(self, answer: PartitionAnswer) -> None:
        """Its batch is more than may be held: what is beside it is answered."""
        self._meters.relay.on_batch_too_large()
        topic_id = answer.topic_id or self._tier.topic_id(answer.topic or "") or bytes(16)
        known = self._tier.partition(topic_id, answer.partition)
        topic = known.topic if known is not None else answer.topic or str(Uuid(topic_id))
        fields = {"topic": topic, "partition": answer.partition, "size_bytes": answer.dropped_bytes}
        _log.warning("batch_too_large", **fields, key="expert.proxy.response.held.bytes.max")
        answer.error_code, answer.aborted_transactions = COME_AGAIN, None

    def _note_unread(self, request: FetchRequest, size_bytes: int) -> None:
        self._meters.tier.on_request_unread(ApiKey.FETCH)
        if not self._has_said_unread:
            self._has_said_unread = True
            self._client.identity.calls_itself(request.client_id)
            _log.warning("fetch_left_unread", **self._client.identity.fields(), size_bytes=size_bytes)

    async def _full(
        self, frame: memoryview, request: FetchRequest, wire: UpstreamWire, node_id: int, edits: Edits
    ) -> Answer | Relay:
        replaced_id = self._sessions.replaced_by(request)
        plan = None if request.is_unread else await self._plan(request, node_id)
        if plan is None:
            return await self._sessions.relay_full(frame, request, replaced_id, edits)
        await close_upstream_session(wire, request, replaced_id)
        answer = await self._exchange(request, plan, wire, node_id, edits)
        return await self._sessions.answer_full(request, answer, wire)

    async def _incremental(
        self, frame: memoryview, request: FetchRequest, wire: UpstreamWire, node_id: int, edits: Edits
    ) -> Answer | Relay:
        session = await self._sessions.go_on(request)
        if not isinstance(session, FetchSession):
            return await answer_frame(request, FetchAnswer((), error_code=session), wire)
        if session.is_unread:
            return self._sessions.relay_incremental(frame, request, session, edits)
        if session.is_relayed:
            # Nothing here may cost work for each partition of the session, but after a surprise.
            named = session.asked() if session.is_doubted else session.still_named(request)
            session.is_doubted = False
            if not named or await self._plan(replace(request, partitions=named), node_id) is None:
                return self._sessions.relay_incremental(frame, request, session, edits)
            await self._sessions.take_over(request, session, wire)
        if len(session):
            request = replace(request, partitions=session.asked())
        plan = await self._plan(request, node_id)
        if plan is None:
            bytes_max = self._client.granted(min(request.max_bytes, FETCH_BYTES_MAX))
            answer = await self._sessions.give_back(request, session, wire, bytes_max, self._put_off)
            await each_slice(answer.partitions, edits.of_answers(request, session.doubt))
        else:
            answer = await self._exchange(request, plan, wire, node_id, edits)
        return await self._sessions.answer_changed(request, session, answer, wire)

    async def _exchange(
        self, request: FetchRequest, plan: FetchPlan, wire: UpstreamWire, node_id: int, edits: Edits
    ) -> FetchAnswer:
        self._client.identity.calls_itself(request.client_id)
        wait_s = min(max(request.max_wait_ms / 1000, self._settings.fetch_wait_s_max), TIER_WAIT_S_MAX)
        verdicts = Verdicts()
        try:
            under_way = Exchange(
                request,
                plan,
                self._tier,
                self._fallback,
                Prober(wire, node_id, self._tier, self._authorities, self._meters.relay),
                OwnFetch(wire, verdicts, self._client.granted, edits.of_answers(request), self._put_off),
                self._meters,
                self._client,
                wait_s,
                self._settings.linger_s,
                verdicts,
            )
            return await under_way.answer()
        except BaseException:
            self._client.release()
            raise

    def on_answered(self) -> None:
        """The answer was sent, or cannot be: what it holds of the tier's memory is free."""
        self._client.release()

    def close(self) -> None:
        """The client has gone."""
        self._client.close()
        self._sessions.close()
        self._tier.forget_reader(self._client.identity)

    def forget_authority(self) -> None:
        """The client may be somebody else from now on, or have other rights."""
        self._authorities.end_all()

    async def _plan(self, request: FetchRequest, node_id: int) -> FetchPlan | None:
        """Return how a request is split; None if nothing of it is the tier's, or it is the broker's to understand."""
        tier, frontiers, has_ids = self._tier, self._tier.frontiers, request.api_version >= TOPIC_ID_VERSION_MIN
        await self._learn_names(request)
        seen: list[tuple[int, FetchPartition, TopicIdPartition, Frontier | None]] = []
        unknown: list[TopicIdPartition] = []
        ageing: list[TopicIdPartition] = []
        now_s = trio.current_time()

        def look(some: Sequence[tuple[int, FetchPartition]]) -> None:
            for place, asked in some:
                topic_id = asked.topic_id if has_ids else tier.topic_id(asked.topic or "")
                candidate = tier.partition(topic_id or b"", asked.partition)
                if candidate is None:
                    continue
                frontier = frontiers.get(node_id, candidate)
                seen.append((place, asked, candidate, frontier))
                if frontier is None:
                    unknown.append(candidate)
                elif not frontiers.is_fresh(frontier, now_s):
                    # The local log start only rises: an offset above it is the broker's to answer either way.
                    below = asked.fetch_offset < frontier.local_log_start_offset
                    (unknown if below else ageing).append(candidate)

        await each_slice(list(enumerate(request.partitions)), look)
        if not seen or request.max_bytes < 0:
            return None
        if ageing:
            frontiers.refresh_soon(node_id, ageing)
        if unknown:
            with move_on_after(LEARN_WAIT_S_MAX):
                await frontiers.refresh(node_id, unknown)
            now_s = trio.current_time()
            # Another client's refused probe may have forgotten one meanwhile; ours will say if it is wrong.
            seen = [(place, asked, each, frontiers.get(node_id, each) or old) for place, asked, each, old in seen]
        parts = [
            TierPart(asked, candidate, frontier, place)
            for place, asked, candidate, frontier in seen
            if frontier is not None
            if self._belongs_to_tier(request, asked, candidate, frontier, node_id)
        ]
        for part in parts:
            self._meters.relay.on_frontier_used(now_s - part.frontier.learned_at_s)
        judged = await self._judged(parts)
        left = [part for part in parts if judged.get(part, True)]
        instead = {part: judgement for part, judgement in judged.items() if isinstance(judgement, Instead)}
        return plan_fetch(request, left, instead) if left else None

    async def _learn_names(self, request: FetchRequest) -> None:
        """Learn the ids of topics that it names without them, if they can be learned soon."""
        names = [asked.topic for asked in request.partitions if asked.topic is not None]
        if any(self._tier.topic_id(name) is None for name in names):
            with move_on_after(LEARN_WAIT_S_MAX):
                await self._tier.learn_topic_ids(names)

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
            # Aborts between tier and local log are known at the frontier only (proxy.fetch.aborted_tails).
            prefers_tier = self._settings.read_prefer_tier and not committed
            if not prefers_tier or not self._tier.has_copied(candidate, asked.fetch_offset):
                return False
        if asked.fetch_offset < 0:
            return False
        return request.api_version >= FOLLOWER_FETCH_VERSION_MIN or self._tier.leads(node_id, candidate)

    async def _judged(self, parts: Sequence[TierPart]) -> Mapping[TierPart, Instead | bool]:
        """Return of parts whose client names its last fetched epoch whether that is on the leader's lineage, or what
        they are answered with. False: the broker says whether and where the logs part; what it could not read is put
        off."""
        owner = self._tier.owner
        judged: dict[TierPart, Instead | bool] = {
            part: not owner.can_broker_read(part.asked.fetch_offset, part.frontier.local_log_start_offset)
            and Instead(COME_AGAIN)
            for part in parts
            if part.asked.last_fetched_epoch >= 0
        }
        begun = [(steps, next(steps, None)) for steps in [self._judge(part, judged) for part in judged]]
        if waiting := [each for each in begun if each[1] is not None]:
            with move_on_after(LEARN_WAIT_S_MAX):
                async with trio.open_nursery() as asking:
                    for steps, wait in waiting:
                        asking.start_soon(finish, steps, wait)
        return judged

    def _judge(self, part: TierPart, judged: dict[TierPart, Instead | bool]) -> Steps[None]:
        with suppress(UpstreamError):
            if judgement := (yield from self._tier.owner.judge(part, self._tier.lineages)):
                judged[part] = judgement
