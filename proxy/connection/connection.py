"""One client connection and its one upstream connection, from accept to close.

Two loops. The request loop finds frames from the client, asks the router and relays, holds or exchanges them.
The response loop finds frames from upstream, matches each with the request it answers and relays, rewrites or
delivers it.

Rule 1. A broker answers one connection's requests in order, so the oldest expectation is the one answered; another
        correlation id means that we lost count, and ends the connection.
Rule 2. While an exchange runs, no further request is read: a broker too handles one request of a connection at a
        time. So whatever is relayed after an exchange is also answered after it, and only an exchange that asked
        upstream nothing can finish before an earlier response: it waits for its turn.
Rule 3. The client's transport has one writer at a time: the holder of the current turn.
Rule 4. When one side closes, so does the other, after the answer that is being sent, if the client takes it. A fault
        ends this connection with one log line, nothing else.
Rule 5. While a client signs in by raw tokens (SaslHandshake version 0), what it sends next is read when upstream has
        answered, and nothing of ours is sent.
Rule 6. Good probes end when a request that may change who may read passes, and again when its answer does: what
        was pipelined behind it is judged again, and so is what other connections asked meanwhile.
Rule 7. What is held for the client is charged to its account. When others wait for that memory, an answer that the
        client does not take gives up what can be read again (`proxy.connection.slow_answer`); for what cannot, the
        connection may end (`proxy.connection.accounts`). What is relayed is held back, nothing else.
Rule 8. Before a client has signed in, where upstream demands it, its frames are small, and nothing of ours is done for
        it: no decoding, no question, no read. `protocol.sign_in` says when it has, before it hears so itself.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog
import trio

from metrics.meters import CloseCause, Direction, RelayMeter, Route
from protocol import api_versions as api_18_api_versions
from protocol.client.errors import TransportError
from protocol.fetch import walker as api_01_fetch_walker
from protocol.fetch.messages import REQUEST_BYTES_MAX
from protocol.fetch.walker import FetchResponseWalker, RecordDropper
from protocol.sasl_handshake import decode_request, encode_refusal
from protocol.sign_in import AUTHENTICATE_HEAD_BYTES, HANDSHAKE_HEAD_BYTES, RAW_ANSWER_BYTES_MAX, RAW_HEAD_BYTES, SignIn
from protocol.sign_in_name import TOKEN_FRAME_BYTES_MAX, SignInName, token_in_frame
from protocol.wire.addresses import NodeAddress, find_nodes, rewrite
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES, SMALL_BUFFER_BYTES
from protocol.wire.group_id import GROUP_APIS, HEAD_BYTES
from protocol.wire.identifiers import ApiKey
from protocol.wire.produce import peek_acks
from protocol.wire.request_headers import (
    REQUEST_HEADER_PREFIX_BYTES,
    RequestPrefix,
    decode_request_header,
    peek_request_prefix,
)
from protocol.wire.response_sequence import ResponseSequencer, Turn
from proxy.connection.accounts import Accounts, Wait
from proxy.connection.audit import Audit
from proxy.connection.client_reads import ClientReads
from proxy.connection.frame_stream import CORRELATION_ID_BYTES, ConnectionEnd, FrameStream, end_of
from proxy.connection.names import ClientName, Groups
from proxy.connection.request_handlers import RELAY, Answer, PendingAnswer, Relay, RequestHandlers
from proxy.connection.router import RequestRoute, ResponseRoute, route_request, route_response
from proxy.connection.slow_answer import AnswerSending
from proxy.upstream.transport import Bytes, Transport

HELD_REQUEST_BYTES_MAX = REQUEST_BYTES_MAX + 1
"""For a request that is looked at: one that is larger is left unread but for its head, and may be as large as what is
relayed."""

OWN_CORRELATION_ID_FIRST = 0x7D000000
"""They distinguish ours from clients', which count from 0, in a packet capture; nothing else depends on it."""

LAST_ANSWER_STALL_S = 30.0
"""When the other side has ended, a client that takes nothing for so long gets no more of its last answer."""

FRAME_BYTES_MAX = 2**31 - 1
"""What a length field can say."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection (docs/protocol.md#l6), in bytes and requests.

    `unauthenticated_frame_bytes_max` is for frames before sign-in, where `demands_sign_in` says that upstream wants
    one, and always for what is part of a sign-in: SaslHandshake, raw tokens, and ApiVersions where we answer it.
    """

    request_frame_bytes_max: int
    response_held_bytes_max: int
    relay_rewrite_bytes_max: int
    inflight_requests_max: int
    unauthenticated_frame_bytes_max: int = 512 * 1024
    demands_sign_in: bool = False


class Advertiser(Protocol):
    """The listeners that stand for upstream's brokers."""

    async def advertise(self, nodes: Sequence[NodeAddress]) -> dict[int, tuple[str, int]]:
        """Return what clients get for these brokers, whose listeners are bound when this returns; clients do not hear
        of one that is left out."""
        ...


@dataclass(slots=True)
class _Expected:
    """A request that upstream has yet to answer. `correlation_id` is None for a raw SASL token, which has none."""

    correlation_id: int | None
    api_key: int
    api_version: int
    route: ResponseRoute
    relay: Relay = RELAY
    turn: Turn | None = None
    own: PendingAnswer | None = None


def _nothing() -> None:
    pass


class ClientConnection:
    """Runs until either side ends.

    Args:
        node_id: the broker at the other end, None if not known.
        on_signed_in: called once, when the client first counts as signed in: as `run` begins, where upstream demands
            no sign-in.
        on_sign_in_refused: is given why, in the broker's words, and whom it has refused.
        groups: what clients are called, and tell of their groups; None: nobody wants to know.
        audit: hears who reads what of the tier; None: nobody wants to know.
        certified_as: whom the client's certificate names.
        is_news: whether clients of this host have not ended by the same cause lately; the log says it once.
        turn_to_end: waits until the connection may be taken down, when either side has ended.
    """

    def __init__(
        self,
        client: Transport,
        upstream: Transport,
        *,
        node_id: int | None,
        limits: ConnectionLimits,
        addresses: Advertiser,
        handlers: Callable[[ClientReads], RequestHandlers],
        accounts: Accounts,
        meter: RelayMeter,
        on_signed_in: Callable[[], None] = _nothing,
        on_sign_in_refused: Callable[[str, Mapping[str, object]], None] = lambda _reason, _who: None,
        groups: Groups | None = None,
        audit: Audit | None = None,
        certified_as: SignInName | None = None,
        is_news: Callable[[CloseCause, str], bool] = lambda _cause, _host: True,
        turn_to_end: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self.asked = 0
        """Grows with each request of the client."""
        self.answered = 0
        """Grows with each part of an answer."""
        self._client = client
        self._upstream = upstream
        self.node_id = node_id
        self._limits = limits
        self._addresses = addresses
        self._account = accounts.open(self._give_way, client.peer_name)
        self._sign_in = SignIn(
            is_demanded=limits.demands_sign_in, learns_name=groups is not None, certified_as=certified_as
        )
        self._name = ClientName(groups, client.peer_name, self._sign_in)
        self._reads = ClientReads(self._account, self._name, None if audit is None else audit.client(self._name))
        self._handlers = handlers(self._reads)
        self._meter = meter
        self._sequencer = ResponseSequencer()
        self._expected: deque[_Expected] = deque()
        self._on_signed_in = on_signed_in
        self._on_sign_in_refused = on_sign_in_refused
        self._own_correlation_id = OWN_CORRELATION_ID_FIRST
        self._changed = trio.Event()
        self._answering: Wait | None = None
        """The wait for the client to take an answer of ours."""
        self._exchanging = False
        self._draining = False
        self._receiving, self._is_receiving = trio.CancelScope(), False
        self._scope = trio.CancelScope()
        self._end: ConnectionEnd | None = None
        self._is_news = is_news
        self._turn_to_end = turn_to_end
        self._own_bytes = 0
        """Bytes of the answers to requests of our own that this exchange got."""
        on_request_passed = partial(meter.on_relayed, Direction.CLIENT_TO_UPSTREAM)
        self._requests = FrameStream(client, upstream, CloseCause.CLIENT, on_request_passed, self._account)
        self._responses = FrameStream(upstream, client, CloseCause.UPSTREAM, self._on_answer_passed, self._account)

    @property
    def is_signed_in(self) -> bool:
        """The client has signed in, or upstream demands no sign-in."""
        return self._sign_in.is_signed_in

    @property
    def has_unanswered(self) -> bool:
        """Return whether a request that came whole, or is passed on, has no whole answer yet."""
        return self._exchanging or bool(self._expected) or self._sequencer.in_flight > 0

    @property
    def is_answering(self) -> bool:
        """Return whether an answer of ours is being sent: `answered` grows when it has gone."""
        return self._answering is not None

    async def run(self) -> CloseCause:
        """Serve the connection until it ends; both transports are closed then.

        Cancellation: both transports are aborted.
        """
        try:
            if self._sign_in.is_signed_in:
                self._on_signed_in()
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._response_loop, CloseCause.CLIENT)
                    await self._guard(self._request_loop, CloseCause.UPSTREAM)
            self._free()  # others may wait for it
            await self._client.aclose()
            await self._turn_to_end()  # all clients of a broker that went leave in the same moment too
        finally:
            self._client.abort()
            self._upstream.abort()
            self._handlers.close()
            self._free()
        return self._report()

    def _free(self) -> None:
        self._requests.close()
        self._responses.close()
        self._account.close()

    def drain(self) -> None:
        """Take no further request; end when those under way are answered."""
        self._draining = True
        if self._is_receiving:
            self._receiving.cancel()

    # The request side.

    async def _request_loop(self) -> None:
        with self._receiving:
            while await self._receive_requests():
                while not self._draining and await self._next_request():
                    pass
        while self._sequencer.in_flight:
            await self._wait_change()
        raise ConnectionEnd(CloseCause.DRAIN if self._draining else CloseCause.CLIENT)

    async def _receive_requests(self) -> bool:
        """More bytes from the client; False at its end or when draining. Only this wait is cut short by a drain."""
        if self._draining:
            return False
        self._is_receiving = True
        has_more = await self._requests.receive()
        self._is_receiving = False
        return has_more

    async def _next_request(self) -> bool:
        """Handle one request, or one raw token; False when more bytes are needed to do so."""
        if self._sign_in.is_raw:
            return await self._next_token()
        stream = self._requests
        if not self._sign_in.is_signed_in:
            self._next_small_size("a request before sign-in")
        size = stream.next_frame_size(
            frame_bytes_max=self._limits.request_frame_bytes_max, body_bytes_min=REQUEST_HEADER_PREFIX_BYTES
        )
        if size is None:
            return False
        while self._sequencer.in_flight >= self._limits.inflight_requests_max:
            await self._wait_change()
        if self._draining:
            return False
        self.asked += 1
        prefix = peek_request_prefix(stream.buffer.view, stream.buffer.start + LENGTH_BYTES)
        is_signed_in, exchanges = self._sign_in.is_signed_in, self._handlers.exchanges
        route = route_request(prefix.api_key, prefix.api_version, exchanges, is_signed_in=is_signed_in)
        if route is RequestRoute.RELAY:
            await self._relay(prefix, size)
        elif route is RequestRoute.UNKNOWN_API_VERSIONS:
            await self._refuse_api_versions(prefix, size)
        elif route is RequestRoute.PRODUCE:
            await self._relay(prefix, size, answered=await self._produce_is_answered(prefix, size))
        elif route is RequestRoute.SASL_AUTHENTICATE:
            offered = await self._offered(size, prefix.api_version)
            follow = partial(self._sign_in.on_authenticate_answer, prefix.api_version, offered=offered)
            await self._relay(prefix, size, relay=Relay(AUTHENTICATE_HEAD_BYTES, follow))
        else:
            await self._hold(route, prefix, size)
        return True

    async def _relay(self, prefix: RequestPrefix, size: int, *, answered: bool = True, relay: Relay = RELAY) -> None:
        api_key, api_version = prefix.api_key, prefix.api_version
        if api_key in GROUP_APIS and self._name.wants_group and self.is_signed_in:
            self._name.on_group_request(await self._requests.hold(min(size, HEAD_BYTES)))
        route = route_response(api_key, api_version)
        self._meter.on_request(api_key, Route.REWRITE if route in _ALWAYS_REWRITTEN else Route.RELAY)
        if answered:
            turn = self._sequencer.allocate()
            self._expected.append(_Expected(prefix.correlation_id, api_key, api_version, route, relay, turn))
        self._note_authority(route)
        await self._requests.pass_on(size)

    async def _next_token(self) -> bool:
        """Handle one raw token, or find that there are no more; False when more bytes are needed to do so."""
        sign_in = self._sign_in
        while sign_in.awaits_broker:
            await self._wait_change()
        if self._draining:
            return False
        if not sign_in.is_raw:
            return True
        size = self._next_small_size("a SASL token")
        if size is None:
            return False
        self.asked += 1
        offered = await self._offered(size)
        sign_in.on_raw_token()
        follow = partial(sign_in.on_raw_answer, offered=offered)
        relay, turn = Relay(RAW_HEAD_BYTES, follow), self._sequencer.allocate()
        route = ResponseRoute.AUTHENTICATION
        self._expected.append(_Expected(None, ApiKey.SASL_AUTHENTICATE, 0, route, relay, turn))
        self._note_authority(route)
        await self._requests.pass_on(size)
        return True

    async def _offered(self, size: int, api_version: int | None = None) -> SignInName | None:
        """As whom the client means to sign in by the SaslAuthenticate, or without a version the raw token, that begins
        at the buffer's start."""
        if not self._sign_in.wants_token or size > TOKEN_FRAME_BYTES_MAX:
            return self._sign_in.offered(None)
        frame = await self._requests.hold(size)
        return self._sign_in.offered(
            frame[LENGTH_BYTES:] if api_version is None else token_in_frame(frame, api_version)
        )

    def _next_small_size(self, what: str) -> int | None:
        """Return the size of the frame at the buffer's start, once it is known, if no larger than before sign-in."""
        size = self._requests.next_frame_size(frame_bytes_max=FRAME_BYTES_MAX, body_bytes_min=0)
        if size is not None:
            self._check_small(what, size)
        return size

    def _check_small(self, what: str, size: int) -> None:
        if size - LENGTH_BYTES > self._limits.unauthenticated_frame_bytes_max:
            detail = f"{what} of {size - LENGTH_BYTES} bytes exceeds expert.proxy.frame.unauthenticated.bytes.max"
            raise ConnectionEnd(CloseCause.LIMIT, detail)

    def _note_authority(self, route: ResponseRoute) -> None:
        if route is ResponseRoute.AUTHENTICATION:
            self._handlers.forget_authority()
        elif route is ResponseRoute.LOG_START_MOVES:
            self._handlers.on_log_start_moved()

    async def _refuse_api_versions(self, prefix: RequestPrefix, size: int) -> None:
        self._check_small("an ApiVersions request", size)
        self._meter.on_request(prefix.api_key, Route.EXCHANGE)
        await self._requests.hold(size)
        self._requests.buffer.consume(size)
        refusal = api_18_api_versions.encode_unsupported_version(prefix.correlation_id)
        await self._answer(self._sequencer.allocate(), [refusal])

    async def _produce_is_answered(self, prefix: RequestPrefix, size: int) -> bool:
        buffer = self._requests.buffer
        while True:
            at_hand = min(size, len(buffer))
            frame = buffer.view[buffer.start : buffer.start + at_hand]
            acks = peek_acks(frame, prefix.api_version, 0)
            if acks is not None:
                return acks != 0
            if at_hand == size:
                raise PeerProtocolError("a Produce request ends before its acks")
            await self._requests.receive_inside()

    async def _hold(self, route: RequestRoute, prefix: RequestPrefix, size: int) -> None:
        if route is RequestRoute.SASL_HANDSHAKE:
            self._check_small("a SaslHandshake request", size)
        frame = await self._requests.hold(min(size, HELD_REQUEST_BYTES_MAX))
        self._exchanging = True
        try:
            if route is RequestRoute.EXCHANGE:
                await self._exchange(await self._handlers.exchanges[prefix.api_key](frame, self), prefix, size)
            else:
                await self._sasl_handshake(frame, prefix, size)
        finally:
            self._exchanging = False

    async def _sasl_handshake(self, frame: memoryview, prefix: RequestPrefix, size: int) -> None:
        request = decode_request(frame)
        self._name.calls_itself(decode_request_header(frame).client_id)
        if self._sign_in.refuses(request):
            fields = {**self._name.fields(), "mechanism": request.mechanism, "version": prefix.api_version}
            _log.warning("sasl_handshake_refused", **fields)
            refusal = encode_refusal(prefix.correlation_id, prefix.api_version)
            await self._exchange([refusal], prefix, size)
            # As a broker does that does not know a mechanism.
            raise ConnectionEnd(CloseCause.CLIENT, "its SaslHandshake was refused")
        self._sign_in.on_handshake(request)
        follow = partial(self._sign_in.on_handshake_answer, request)
        await self._relay(prefix, size, relay=Relay(HANDSHAKE_HEAD_BYTES, follow))

    async def _exchange(self, outcome: Answer | Relay, prefix: RequestPrefix, size: int) -> None:
        if isinstance(outcome, Relay):
            await self._relay(prefix, size, relay=outcome)
            return
        try:
            self._meter.on_request(prefix.api_key, Route.EXCHANGE)
            await self._requests.discard(size)
            await self._answer(self._sequencer.allocate(), outcome)
        finally:
            self._handlers.on_answered()
            own_bytes, self._own_bytes = self._own_bytes, 0
            self._account.let_go(own_bytes)

    async def _answer(self, turn: Turn, buffers: Sequence[Bytes]) -> None:
        sending = AnswerSending(buffers, self._reads)
        made_bytes = max(0, sending.made_bytes - self._own_bytes - SMALL_BUFFER_BYTES)
        with self._account.waiting(sending) as wait:
            if made_bytes:
                await self._account.hold(made_bytes)
            while not turn.is_current:
                await self._wait_change()
            self._answering = wait
            try:
                await sending.send(self._client, wait)
                self._client.owe_turn()  # made without one, perhaps, and the client's next request may be here
            except TransportError as error:
                raise ConnectionEnd(CloseCause.CLIENT, str(error)) from error
            finally:
                self._answering = None
        self._account.let_go(made_bytes)
        self._complete(turn)

    # Requests of our own, for exchanges.

    def next_correlation_id(self) -> int:
        """An id for a request of our own."""
        self._own_correlation_id += 1
        if self._own_correlation_id >= 0x7FFFFFFF:
            self._own_correlation_id = OWN_CORRELATION_ID_FIRST
        return self._own_correlation_id

    async def ask(
        self, api_key: int, api_version: int, correlation_id: int, frame: bytes, held_bytes_max: int | None = None
    ) -> PendingAnswer:
        """Send a request of our own in its place in the stream."""
        pending = PendingAnswer(held_bytes_max)
        self._expected.append(_Expected(correlation_id, api_key, api_version, ResponseRoute.RELAY, own=pending))
        await self._upstream.send_all(frame)
        return pending

    async def advertise(self, nodes: Sequence[NodeAddress]) -> dict[int, tuple[str, int]]:
        """The listeners that stand for these brokers."""
        return await self._addresses.advertise(nodes)

    # The response side.

    async def _response_loop(self) -> None:
        stream = self._responses
        while await stream.receive():
            while (size := self._next_response_size()) is not None:
                await self._next_response(size)
        raise ConnectionEnd(CloseCause.UPSTREAM)

    def _next_response_size(self) -> int | None:
        if self._expected and self._expected[0].correlation_id is None:
            return self._responses.next_frame_size(frame_bytes_max=RAW_ANSWER_BYTES_MAX, body_bytes_min=0)
        # Upstream's frames are not bounded as a whole: they are streamed. What is held is bounded where it is.
        return self._responses.next_frame_size(frame_bytes_max=FRAME_BYTES_MAX, body_bytes_min=CORRELATION_ID_BYTES)

    def _whose_answer(self) -> _Expected:
        """Rule 1; a raw token's answer has nothing to be checked by."""
        if self._expected and self._expected[0].correlation_id is None:
            return self._expected.popleft()
        buffer = self._responses.buffer
        start = buffer.start + LENGTH_BYTES
        correlation_id = int.from_bytes(buffer.view[start : start + CORRELATION_ID_BYTES], "big", signed=True)
        if not self._expected or self._expected[0].correlation_id != correlation_id:
            raise PeerProtocolError(f"upstream answered {correlation_id}, whose turn it is not")
        return self._expected.popleft()

    async def _next_response(self, size: int) -> None:
        expected = self._whose_answer()
        if expected.own is not None:
            await self._deliver(size, expected, expected.own)
            self.answered += 1
            return
        assert expected.turn is not None
        assert expected.turn.is_current, "rule 2: what is relayed is answered in its turn"
        await self._pass_response(size, expected)
        if expected.route is ResponseRoute.FETCH:
            self._reads.takes()
        self._complete(expected.turn)
        self._note_authority(expected.route)

    async def _deliver(self, size: int, expected: _Expected, own: PendingAnswer) -> None:
        """Hand the answer over. A Fetch's that is more than may be held loses its records as they arrive."""
        held_bytes_max = self._limits.response_held_bytes_max
        if own.held_bytes_max is not None:
            held_bytes_max = min(held_bytes_max, own.held_bytes_max)
        is_held_whole = size <= held_bytes_max or expected.api_key != ApiKey.FETCH
        if is_held_whole:
            self._require_holdable(size, expected)
        self._own_bytes += await self._account.hold_answer(min(size, held_bytes_max))
        if is_held_whole:
            own.deliver(await self._responses.take(size))
            return
        dropper = RecordDropper(expected.api_version, held_bytes_max)
        await self._responses.drop_through(size, dropper)
        own.deliver(dropper.frame, dropper.dropped)

    async def _pass_response(self, size: int, expected: _Expected) -> None:
        was_signed_in = self._sign_in.is_signed_in
        if expected.relay.on_response_head is not None:
            expected.relay.on_response_head(await self._responses.hold(min(size, expected.relay.head_bytes)))
        if (refusal := self._sign_in.take_refusal()) is not None:
            self._on_sign_in_refused(refusal, self._name.fields(self._sign_in.last_offered))
        if not was_signed_in:
            # Before the client hears the answer: what it sends next is sent by somebody who has signed in.
            self._sign_in.on_answer(expected.api_key)
            if self._sign_in.is_signed_in:
                self._on_signed_in()
        if expected.route is ResponseRoute.FETCH and size > self._limits.relay_rewrite_bytes_max:
            walker = FetchResponseWalker(expected.api_version, editor=expected.relay.editor)
            await self._responses.pass_on_through(size, walker)
        elif expected.route is ResponseRoute.RELAY and expected.relay.editor is not None:
            walker = FetchResponseWalker(expected.api_version, rename=False, editor=expected.relay.editor)
            await self._responses.pass_on_through(size, walker)
        elif expected.route in _REWRITTEN:
            frame = await self._held_response(size, expected)
            copy_bytes = max(0, size - SMALL_BUFFER_BYTES)  # about
            with self._account.waiting():
                await self._account.hold(copy_bytes)
                rewritten = await self._rewritten(frame, expected)
                await self._client.send_all(rewritten)
            self._account.let_go(copy_bytes)
            self._meter.on_relayed(Direction.UPSTREAM_TO_CLIENT, len(rewritten))
            self._responses.buffer.consume(size)
        else:
            await self._responses.pass_on(size)

    async def _rewritten(self, frame: memoryview, expected: _Expected) -> bytes | memoryview:
        api_key, api_version = expected.api_key, expected.api_version
        if expected.route is ResponseRoute.API_VERSIONS:
            return api_18_api_versions.rewrite_frame(api_version, frame)
        if expected.route is ResponseRoute.FETCH:
            if expected.relay.editor is not None:
                api_01_fetch_walker.edit_partitions(frame, api_version, expected.relay.editor)
            nodes = api_01_fetch_walker.find_nodes(frame, api_version)
            if not nodes:
                return frame
            return api_01_fetch_walker.rewrite_endpoints(frame, api_version, await self._addresses.advertise(nodes))
        nodes = find_nodes(api_key, api_version, frame)
        return rewrite(api_key, api_version, frame, await self._addresses.advertise(nodes))

    async def _held_response(self, size: int, expected: _Expected) -> memoryview:
        self._require_holdable(size, expected)
        return await self._responses.hold(size)

    def _require_holdable(self, size: int, expected: _Expected) -> None:
        if size > self._limits.response_held_bytes_max:
            raise ConnectionEnd(
                CloseCause.LIMIT,
                f"a response of {size} bytes with api key {expected.api_key} exceeds "
                "expert.proxy.response.held.bytes.max",
            )

    def _on_answer_passed(self, size: int) -> None:
        self.answered += 1
        self._meter.on_relayed(Direction.UPSTREAM_TO_CLIENT, size)

    # Both.

    def _complete(self, turn: Turn) -> None:
        self.answered += 1
        turn.complete()
        self._changed.set()

    async def _wait_change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    async def _guard(self, loop: Callable[[], Awaitable[None]], destination: CloseCause) -> None:
        """Run a loop to its end, whatever it is, and end the other one too.

        Args:
            destination: where the loop sends to, so the side that broke when a send fails.
        """
        try:
            await loop()
        except* Exception as group:  # a cancellation beside it goes its own way
            self._end = self._end or end_of(group, destination)
        await self._turn_to_end()
        while self._answering is not None and trio.current_time() < self._answering.since_s + LAST_ANSWER_STALL_S:
            with trio.move_on_at(self._answering.since_s + LAST_ANSWER_STALL_S):
                await self._wait_change()
        self._scope.cancel()

    def _give_way(self, reason: str) -> None:
        """Others wait for the memory that is held for this client."""
        self._end = self._end or ConnectionEnd(CloseCause.LIMIT, reason)
        self._scope.cancel()

    def _report(self) -> CloseCause:
        end = self._end or ConnectionEnd(CloseCause.DRAIN)
        if end.cause is CloseCause.MALFORMED_FRAME:
            self._meter.on_malformed_frame()
        if end.cause is CloseCause.UPSTREAM and self._sign_in.is_raw and self._sign_in.awaits_broker:
            # Where tokens are bare there is no other way to say no.
            who = self._name.fields(self._sign_in.last_offered)
            self._on_sign_in_refused("the broker closed the connection at its token", who)
        fields = {**self._name.fields(), "cause": end.cause.value, "detail": end.detail}
        if end.fault is not None:
            _log.error("connection_closed", **fields, exc_info=end.fault)
        elif end.cause in _WORTH_A_WARNING and self._is_news(end.cause, self._client.peer_name.rpartition(":")[0]):
            _log.warning("connection_closed", **fields)
        else:
            _log.debug("connection_closed", **fields)
        return end.cause


_ALWAYS_REWRITTEN = frozenset({ResponseRoute.ADDRESSES, ResponseRoute.API_VERSIONS})
_REWRITTEN = _ALWAYS_REWRITTEN | {ResponseRoute.FETCH}
_WORTH_A_WARNING = frozenset({CloseCause.MALFORMED_FRAME, CloseCause.LIMIT, CloseCause.FAULT})
