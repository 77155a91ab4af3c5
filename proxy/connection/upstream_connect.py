"""From an accepted client to its broker: the connection that is opened for it, and how long that is waited for.

Rule 1. While no broker at all answers, clients are held: the connection is tried again, with back-off, until
        `proxy.upstream.connect.timeout.ms`; nothing is read from them meanwhile, so the kernel's socket buffer bounds
        what they have sent.
Rule 2. Where one broker is out of reach and another answers, its client is closed at once: it learns from the others
        who leads now, which it would not look for while it is held.
Rule 3. A client that has gone is not waited for.
Rule 4. Bootstrap connections are spread over the servers, in another order each, those that failed recently last; the
        next is tried before one that does not answer is given up (proxy.upstream.first_address).
"""

import fcntl
import random
import select
import ssl
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import structlog
import trio

from metrics.meters import RelayMeter
from protocol.client.errors import UpstreamError, require_address
from proxy.connection.address_book import Target
from proxy.upstream.first_address import race
from proxy.upstream.transport import Transport, open_transport

CONNECT_S_MAX = 8.0
"""For one address: connection and TLS handshake. Below the 10 s after which librdkafka takes a broker that has not
answered its first request for one older than 0.10 (`api.version.request.timeout.ms`)."""
LAST_ATTEMPT_S_MIN = 0.5

BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 1.0

FAILED_AGE_S_MAX = 30.0
"""How long an address that failed, or was overtaken by one behind it, is tried last."""

OTHERS_AGE_S_MAX = 1.0
"""How long it is taken as said which brokers answer: one question serves all who wait."""

OTHERS_ANSWER_S_MAX = 1.0
OTHERS_ASKED_MAX = 8

Address = tuple[str, int]

_log = structlog.get_logger(__name__)


class UpstreamConnector:
    """Opens clients' upstream connections.

    Args:
        tls: how brokers are reached; None: plaintext.
        known_brokers: the brokers' addresses now, for the bootstrap listener when its own do not answer.
    """

    def __init__(
        self, tls: ssl.SSLContext | None, known_brokers: Callable[[], Iterable[Address]], meter: RelayMeter
    ) -> None:
        self._tls = tls
        self._known_brokers = known_brokers
        self._meter = meter
        self._failed_at_s: dict[Address, float] = {}
        self._waiting = 0
        self._asking = trio.Lock()
        self._asked_at_s = -float("inf")
        self._answering: frozenset[Address] = frozenset()

    async def open(
        self, target: Target, *, wait_s_max: float, has_left: Callable[[], bool]
    ) -> tuple[Transport, Address]:
        """A connection to the target's broker, and the address that it was made to.

        Args:
            wait_s_max: how long to go on while no broker answers; 0: one attempt.
            has_left: whether the client has gone.

        Raises:
            UpstreamError: no connection; the message names every address of the last attempt.
        """
        deadline_s = trio.current_time() + wait_s_max

        async def is_worth_waiting() -> bool:
            return trio.current_time() < deadline_s and not has_left() and not await self._another_answers(target)

        try:
            return await self._attempt(target)
        except UpstreamError as error:
            failure = error
            if not await is_worth_waiting():
                raise
        backoff_s = BACKOFF_S_MIN
        with self._counted(failure):
            while True:
                pause_s = backoff_s * random.uniform(0.5, 1)  # not all clients at once
                await trio.sleep_until(min(trio.current_time() + pause_s, deadline_s))
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
                left_s = max(LAST_ATTEMPT_S_MIN, deadline_s - trio.current_time())
                try:
                    return await self._attempt(target, min(CONNECT_S_MAX, left_s))
                except UpstreamError:
                    if not await is_worth_waiting():
                        raise

    async def _attempt(self, target: Target, limit_s: float = CONNECT_S_MAX) -> tuple[Transport, Address]:
        addresses = self._in_order(target)
        failures: dict[int, UpstreamError] = {}
        won = await race(
            [partial(self._connect, *address, limit_s) for address in addresses],
            failures,
            discard=lambda late: late.abort(),
        )
        first = len(addresses) if won is None else won[0]
        for number, address in enumerate(addresses):
            if number in failures or number < first:
                self._failed_at_s[address] = trio.current_time()
        if won is None:
            raise UpstreamError("; ".join(str(failures[number]) for number in sorted(failures)))
        self._failed_at_s.pop(addresses[first], None)
        return won[1], addresses[first]

    def _in_order(self, target: Target) -> Sequence[Address]:
        if target.node_id is not None:
            return target.addresses
        configured = list(target.addresses)
        # The brokers that the configuration names may all have moved or left since.
        known = [address for address in self._known_brokers() if address not in configured]
        random.shuffle(configured)
        random.shuffle(known)
        oldest_s = trio.current_time() - FAILED_AGE_S_MAX
        self._failed_at_s = {address: at_s for address, at_s in self._failed_at_s.items() if at_s > oldest_s}
        return sorted(configured + known, key=lambda address: self._failed_at_s.get(address, oldest_s))

    async def _connect(self, host: str, port: int, limit_s: float) -> Transport:
        try:
            with trio.fail_after(limit_s):
                return await open_transport(host, port, tls=self._tls)
        except trio.TooSlowError:
            raise UpstreamError(
                f"{host}:{port} does not answer within {limit_s:g} s: the host is down, or a firewall drops packets"
            ) from None

    async def _another_answers(self, target: Target) -> bool:
        if target.node_id is None:
            return False  # all that are known were tried
        async with self._asking:
            if trio.current_time() - self._asked_at_s > OTHERS_AGE_S_MAX:
                self._answering = await self._answering_brokers()
                self._asked_at_s = trio.current_time()
        return bool(self._answering.difference(target.addresses))

    async def _answering_brokers(self) -> frozenset[Address]:
        known = sorted(set(self._known_brokers()))
        answering: set[Address] = set()

        async def ask(address: Address) -> None:
            try:
                require_address(*address)
                stream = await trio.open_tcp_stream(*address)
            except (OSError, UpstreamError):
                return  # just what is being asked
            answering.add(address)
            await trio.aclose_forcefully(stream)

        with trio.move_on_after(OTHERS_ANSWER_S_MAX):
            async with trio.open_nursery() as nursery:
                for address in random.sample(known, min(len(known), OTHERS_ASKED_MAX)):
                    nursery.start_soon(ask, address)
        return frozenset(answering)

    @contextmanager
    def _counted(self, failure: UpstreamError) -> Iterator[None]:
        if not self._waiting:
            _log.info("clients_wait_for_upstream", reason=str(failure))
        self._waiting += 1
        self._meter.on_connect_waiting(self._waiting)
        try:
            yield
        finally:
            self._waiting -= 1
            self._meter.on_connect_waiting(self._waiting)


def has_left(sock: trio.socket.SocketType) -> bool:
    """Return whether a connection's peer has closed or broken it, whatever still lies unread before that."""
    descriptor = sock.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    # macOS has no POLLRDHUP, and says POLLHUP for the same.
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def has_gone(sock: trio.socket.SocketType) -> bool:
    """Return whether the peer has closed or broken the connection, and nothing that it said lies unread."""
    return has_left(sock) and (sock.fileno() < 0 or not any(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))))
