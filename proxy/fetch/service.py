"""A connection's Fetch handling: decode, decide, exchange (ARCHITECTURE.md#one-request-end-to-end, docs/protocol.md#l1,
docs/protocol.md#l4).

What names no tier partition is relayed, also as part of a session; what does is exchanged, and a session is ours from
then on (`proxy.fetch.service`): its requests are made whole before they are planned.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import structlog
import trio

from metrics.meters import Direction, Meters, RelayMeter
from protocol.client.errors import UpstreamError
from protocol.fetch.messages import (
    NO_SESSION_ID,
    OPENING_EPOCH,
    SESSIONLESS_EPOCH,
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    PartitionAnswer,
    decode_request,
    last_mentions,
    patch_session,
)
from protocol.fetch.response import SESSION_HEAD_BYTES, patch_session_id, peek_session
from protocol.fetch.sessions import FetchSession, SessionSlots, SessionTable, next_epoch
from protocol.wire.errors import ErrorCode
from protocol.wire.framing import decode_request_header
from protocol.wire.identifiers import ApiKey, IsolationLevel
from proxy.connection.request_handlers import (
    BYTES_AT_ONCE,
    ITEMS_AT_ONCE,
    RELAY,
    Answer,
    ClientReads,
    Relay,
    UpstreamWire,
    each_slice,
    off_loop,
)
from proxy.fetch.assembly import (
    FETCH_BYTES_MAX,
    FetchAnswer,
    FetchPlan,
    Instead,
    TierPart,
    answer_frame,
    is_whole,
    pass_whole,
    plan_fetch,
    tier_parts,
)
from proxy.fetch.exchange import exchange
from proxy.fetch.fallback import COME_AGAIN, Fallback
from proxy.fetch.known import LEARN_WAIT_S_MAX, Authorities, Frontier, LogStartGeneration
from proxy.fetch.probe import OwnFetch, Prober, close_upstream_session, fetch_whole
from proxy.fetch.tier import Tier
from proxy.tier_owner import Edits
from proxy.turns import move_on_after
from storage.model import TopicIdPartition, Uuid

# The Fetch sessions of one client connection, between the client and upstream (docs/protocol.md#l4).
#
# What a session is says `protocol.fetch.sessions`; here its requests are relayed, or answers are made for it:
#
# - Relayed, unread ones among them: session id and epoch stand in fixed places and are patched there, both ways, where
#   upstream has others than the client. The head of each response tells whether upstream has opened, kept or refused
#   the session.
# - Ours: answers are cut to what has changed. When nothing of the session is in the tier, it is given back: the Fetch
#   for all of it opens a session upstream, and from then on the client's requests are relayed again.


class ClientSessions:
    """One for each client connection."""

    def __init__(self, slots: SessionSlots, meter: RelayMeter) -> None:
        self._table = SessionTable(slots)
        self._meter = meter

    def close(self) -> None:
        """The connection has ended, and its sessions with it."""
        self._table.clear()

    # Full Fetches: a session epoch of 0 or -1, or a version without sessions.

    def replaced_by(self, request: FetchRequest) -> int:
        """Close the session that a full Fetch names; its id upstream, which may be 0.

        An id that we do not know may be of an earlier connection: upstream knows.
        """
        closed = self._table.close(request.session_id)
        return request.session_id if closed is None else closed.upstream_id

    async def relay_full(self, frame: memoryview, request: FetchRequest, replaced_id: int, edits: Edits) -> Relay:
        """Relay a full Fetch; upstream opens the session if one is wanted and can be kept."""
        session = await self._begin(request) if request.session_epoch == OPENING_EPOCH else None
        if session is None:
            patch_session(frame, request, session_id=replaced_id, session_epoch=SESSIONLESS_EPOCH)
            return edits.relay(request)
        patch_session(frame, request, session_id=replaced_id, session_epoch=OPENING_EPOCH)
        opened = partial(self._on_opened, request.api_version, session)
        return Relay(SESSION_HEAD_BYTES, opened, edits.of_request(request, session.doubt))

    async def answer_full(self, request: FetchRequest, answer: FetchAnswer, wire: UpstreamWire) -> Answer:
        """Answer a full Fetch, with a session of ours if one is wanted and can be kept."""
        session = None
        if request.session_epoch == OPENING_EPOCH and not is_whole(answer):
            session = await self._begin(request)
        if session is None:
            return await answer_frame(request, answer, wire)
        await each_slice(answer.partitions, session.told_all)
        self._table.give_id(session)
        return await answer_frame(request, answer, wire, session.session_id)

    # Incremental ones.

    async def go_on(self, request: FetchRequest) -> FetchSession | ErrorCode:
        """The session of an incremental Fetch, with what that names and forgets noted; or what it is refused with.

        A session that is empty then is closed.
        """
        session = self._table.find(request)
        if not isinstance(session, FetchSession):
            return session
        noted = request
        if len(request.partitions) + len(request.forgotten) > ITEMS_AT_ONCE and not session.is_unread:
            await each_slice(request.partitions, lambda some: session.update(some, ()))
            await each_slice(request.forgotten, lambda some: session.update((), some))
            noted = replace(request, partitions=[], forgotten=())
        if self._table.note(session, noted, trio.current_time()):
            return session
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def relay_incremental(self, frame: memoryview, request: FetchRequest, session: FetchSession, edits: Edits) -> Relay:
        """Relay a Fetch of a relayed session."""
        patch_session(frame, request, session_id=session.upstream_id, session_epoch=session.upstream_epoch)
        session.upstream_epoch = next_epoch(session.upstream_epoch)
        continued = partial(self._on_continued, request.api_version, session)
        return Relay(SESSION_HEAD_BYTES, continued, edits.of_session(session))

    async def answer_changed(
        self, request: FetchRequest, session: FetchSession, answer: FetchAnswer, wire: UpstreamWire
    ) -> Answer:
        """Answer a Fetch of a session of ours. A throttled answer keeps the session, and tells nothing; one that closed
        the session tells all."""
        if not len(session):
            return await answer_frame(request, answer, wire)
        if not is_whole(answer):
            told = await each_slice(answer.partitions, session.changed)
            answer = replace(answer, partitions=told[0] if len(told) == 1 else list(chain.from_iterable(told)))
        return await answer_frame(request, answer, wire, session.session_id)

    async def give_back(
        self,
        request: FetchRequest,
        session: FetchSession,
        wire: UpstreamWire,
        bytes_max: int,
        put_off: Callable[[PartitionAnswer], None],
    ) -> FetchAnswer:
        """All of a session of ours, asked of upstream, which is to have the session from now on if it can."""
        wanted_epoch = OPENING_EPOCH if len(session) else SESSIONLESS_EPOCH
        response = await fetch_whole(wire, request, wanted_epoch, bytes_max)
        if is_whole(response):
            return pass_whole(response)
        for answer in response.partitions:
            if answer.dropped_bytes:
                put_off(answer)
        if response.session_id != NO_SESSION_ID:
            session.become_relayed(response.session_id)
        self._meter.on_relayed(
            Direction.UPSTREAM_TO_CLIENT, sum(answer.records_bytes for answer in response.partitions)
        )
        return FetchAnswer(response.partitions, response.throttle_time_ms, sections=(response.tags,))

    async def take_over(self, request: FetchRequest, session: FetchSession, wire: UpstreamWire) -> None:
        """A relayed session is ours from now on."""
        await close_upstream_session(wire, request, session.upstream_id)
        session.become_ours()

    async def _begin(self, request: FetchRequest) -> FetchSession | None:
        if len(request.partitions) <= ITEMS_AT_ONCE:
            session = FetchSession(request)
        else:
            session = FetchSession(replace(request, partitions=request.partitions[:ITEMS_AT_ONCE]))
            await each_slice(request.partitions[ITEMS_AT_ONCE:], lambda some: session.update(some, ()))
        return session if self._table.begin(session, trio.current_time()) else None

    def _on_opened(self, api_version: int, session: FetchSession, head: memoryview) -> None:
        error_code, upstream_id, position = peek_session(head, api_version)
        if error_code or upstream_id == NO_SESSION_ID:
            self._table.drop(session)
            return
        session.become_relayed(upstream_id)
        self._table.give_id(session, upstream_id)
        if session.session_id not in (upstream_id, NO_SESSION_ID):
            patch_session_id(head, position, session.session_id)

    def _on_continued(self, api_version: int, session: FetchSession, head: memoryview) -> None:
        error_code, upstream_id, position = peek_session(head, api_version)
        if error_code or upstream_id == NO_SESSION_ID:
            self._table.drop(session)
        if upstream_id not in (session.session_id, NO_SESSION_ID):
            patch_session_id(head, position, session.session_id)


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
        try:
            return await exchange(
                request,
                plan,
                tier=self._tier,
                fallback=self._fallback,
                prober=Prober(wire, node_id, self._tier, self._authorities, self._meters.relay),
                own_fetch=OwnFetch(wire, self._client.granted, edits.of_answers(request), self._put_off),
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
        self._client.close()
        self._sessions.close()
        self._tier.forget_reader(self._client.identity)

    def forget_authority(self) -> None:
        """The client may be somebody else from now on, or have other rights."""
        self._authorities.end_all()

    async def _plan(self, request: FetchRequest, node_id: int) -> FetchPlan | None:
        """Return how a request is split; None if nothing of it is the tier's, or it is the broker's to understand."""
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
            with move_on_after(LEARN_WAIT_S_MAX):
                await frontiers.refresh(node_id, unknown)
            # Another client's refused probe may have forgotten one meanwhile; ours will say if it is wrong.
            known = ((each, frontiers.get(node_id, each)) for each in candidates if each is not None)
            seen |= {candidate: frontier for candidate, frontier in known if frontier is not None}
        parts = tier_parts(
            request,
            candidates,
            seen.get,
            lambda asked, candidate, frontier: self._belongs_to_tier(request, asked, candidate, frontier, node_id),
        )
        planned_at_s = trio.current_time()
        for part in parts:
            self._meters.relay.on_frontier_used(planned_at_s - part.frontier.learned_at_s)
        judged = await self._judged(parts)
        left = [part for part in parts if judged.get(part, True)]
        instead = {part: judgement for part, judgement in judged.items() if isinstance(judgement, Instead)}
        return plan_fetch(request, left, instead) if left else None

    async def _candidates(self, request: FetchRequest) -> list[TopicIdPartition | None]:
        """For each partition, its identity if the tier has segments of it."""
        tier = self._tier
        if request.api_version >= TOPIC_ID_VERSION_MIN:
            return await _each(request.partitions, lambda asked: tier.partition(asked.topic_id or b"", asked.partition))
        names = [asked.topic for asked in request.partitions if asked.topic is not None]
        if any(tier.topic_id(name) is None for name in names):
            with move_on_after(LEARN_WAIT_S_MAX):
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
            # Aborts between tier and local log are known at the frontier only (proxy.fetch.known).
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
        if not judged:
            return judged
        with move_on_after(LEARN_WAIT_S_MAX):
            async with trio.open_nursery() as asking:
                for part in tuple(judged):
                    if self._tier.knows_lineage(part):
                        await self._judge(part, judged)
                    else:
                        asking.start_soon(self._judge, part, judged)
        return judged

    async def _judge(self, part: TierPart, judged: dict[TierPart, Instead | bool]) -> None:
        with suppress(UpstreamError):
            if judgement := await self._tier.judge(part):
                judged[part] = judgement


async def _each(
    partitions: Sequence[FetchPartition], find: Callable[[FetchPartition], TopicIdPartition | None]
) -> list[TopicIdPartition | None]:
    found = await each_slice(partitions, lambda some: [find(asked) for asked in some])
    return found[0] if len(found) == 1 else list(chain.from_iterable(found))
