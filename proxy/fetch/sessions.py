"""The Fetch sessions of one client connection, between the client and upstream (docs/protocol.md#l4).

What a session is says `protocol.fetch.sessions`; here its requests are relayed, or answers are made for it:

- Relayed, unread ones among them: session id and epoch stand in fixed places and are patched there, both ways, where
  upstream has others than the client. The head of each response tells whether upstream has opened, kept or refused
  the session.
- Ours: answers are cut to what has changed. When nothing of the session is in the tier, it is given back: the Fetch
  for all of it opens a session upstream, and from then on the client's requests are relayed again.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain

import trio

from metrics.meters import Direction, RelayMeter
from protocol.fetch.messages import NO_SESSION_ID, OPENING_EPOCH, SESSIONLESS_EPOCH, FetchRequest, PartitionAnswer
from protocol.fetch.requests import patch_session
from protocol.fetch.response import SESSION_HEAD_BYTES, patch_session_id, peek_session
from protocol.fetch.sessions import FetchSession, SessionSlots, SessionTable, next_epoch
from protocol.wire.errors import ErrorCode
from proxy.connection.request_handlers import Answer, Relay, UpstreamWire
from proxy.connection.slices import ITEMS_AT_ONCE, each_slice
from proxy.fetch.answer import FetchAnswer, answer_frame, is_whole, pass_whole
from proxy.fetch.sent_fetch import close_upstream_session, fetch_whole
from proxy.tier_owner import Edits


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
