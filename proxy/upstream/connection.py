"""One own connection to a broker: requests pipelined on it, the trio shell of protocol.client.connection.

Rules:
- A request whose time limit passes closes the connection: the answer may still come, and a broker that
  hangs once hangs for those behind. A request that is cancelled from outside does not; its answer is dropped.
- Losing the connection fails every waiting request with UpstreamConnectionError; nothing is sent twice here.
- One reader task a connection, in the nursery it was opened with; it ends with the connection and never raises:
  whatever a broker sends ends this connection alone. An answer that belongs to nobody is dropped.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import structlog
import trio

from protocol.client.connection import LENGTH_BYTES, ConnectionState
from protocol.client.conversation import drive_async
from protocol.client.errors import (
    TransportError,
    UpstreamConnectionError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
)
from protocol.client.messages import Question
from protocol.client.sasl import Compute, Step
from protocol.client.settings import ClientSettings
from proxy.turns import move_on_after
from proxy.upstream.transport import Transport, open_transport
from proxy.upstream.waiters import Waiter, Waiters
from storage.tasks import TaskNursery

log = structlog.get_logger(__name__)


async def open_broker_connection(
    host: str, port: int, settings: ClientSettings, role: str, nursery: TaskNursery
) -> "BrokerConnection":
    """Connect, exchange ApiVersions and sign in; the reader task goes into `nursery`.

    Raises:
        UpstreamConnectionError: not reachable within the settings' time, or lost on the way.
        UpstreamAuthenticationError: reached, but not signed in.
    """
    with move_on_after(settings.connect_timeout_s):
        transport = await open_transport(host, port, tls=settings.tls)
        return await start_broker_connection(transport, f"{host}:{port}", settings, role, nursery)
    raise UpstreamConnectionError(
        f"no connection with {host}:{port} within {settings.connect_timeout_s:g} s: the host is down, a firewall drops "
        "packets, or what listens there says nothing"
    )


async def start_broker_connection(
    transport: Transport, broker_name: str, settings: ClientSettings, role: str, nursery: TaskNursery
) -> "BrokerConnection":
    """`open_broker_connection` over a transport that is connected already; it owns the transport."""
    connection = BrokerConnection(transport, broker_name, settings, role)
    nursery.start_soon(connection.read)
    try:
        await connection.open()
    except BaseException:
        connection.abort()
        raise
    return connection


class BrokerConnection:
    """A connection that is ready for requests once `start_broker_connection` has returned it."""

    def __init__(self, transport: Transport, broker_name: str, settings: ClientSettings, role: str) -> None:
        self.broker_name = broker_name
        self._state = ConnectionState(broker_name, settings, role)
        self._transport = transport
        self._settings = settings
        self._waiters = Waiters[bytearray]()
        self._slots = trio.Semaphore(settings.requests_in_flight_max)
        self._send_lock = trio.Lock()
        self._failure: UpstreamError | None = None
        self._reader_scope = trio.CancelScope()
        self._session_ends_at = float("inf")
        self._retired = False

    @property
    def usable(self) -> bool:
        """Open, and its SASL session not near its end."""
        return self._failure is None and not self._retired and trio.current_time() < self._session_ends_at

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Return what the broker offers: api key to (lowest, highest) version."""
        return self._state.versions

    async def request(self, question: Question[Any], timeout_s: float | None = None) -> Any:
        """Send one request at the newest common version and wait for its answer.

        Args:
            timeout_s: default is the settings' request timeout; passing it closes the connection.

        Returns:
            What `ConnectionState.decode` makes of it, unread by the question.

        Raises:
            UpstreamUnsupportedError: the broker lacks the version; nothing was sent.
            UpstreamTimeoutError, UpstreamConnectionError, UpstreamProtocolError: the connection is gone.
        """
        version = self._state.version_of(question)
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        with move_on_after(limit_s):
            frame = await self._exchange(question, version)
            try:
                return self._state.decode(question.api, version, frame)
            except UpstreamError as error:
                self._fail(error)
                raise
        self._fail(UpstreamTimeoutError(f"{self.broker_name}: no answer to {question.api.name} within {limit_s:g} s"))
        return self._raise_failure()

    async def open(self) -> None:
        """Exchange ApiVersions and sign in; called once, before anything else."""
        opened_at_s = trio.current_time()
        self._session_ends_at = opened_at_s + await drive_async(self._state.opening(), self._take_step)

    def abort(self) -> None:
        """Close at once; waiting requests fail. Nothing of ours needs a farewell."""
        self._fail(UpstreamConnectionError(f"{self.broker_name}: connection closed by us"))

    def retire(self) -> None:
        """Close as soon as no request waits; the pool gives it to nobody any more."""
        self._retired = True
        self._close_if_drained()

    async def read(self) -> None:
        """The reader task: deliver answers until the connection ends."""
        try:
            with self._reader_scope:
                while True:
                    self._deliver(await self._read_frame())
                    self._close_if_drained()
        except UpstreamError as error:
            self._fail(error)
        except Exception as error:  # a fault of ours, which what this broker sent has brought about
            log.error("upstream_reader_fault", broker=self.broker_name, exc_info=error)
            self._fail(UpstreamProtocolError(f"{self.broker_name}: an answer could not be taken: {error!r}"))
        finally:
            self.abort()

    async def _take_step(self, step: Step) -> Any:
        if isinstance(step, Compute):
            return await trio.to_thread.run_sync(step.work)  # PBKDF2 would stall the loop
        return await self.request(step)

    async def _exchange(self, question: Question[Any], version: int) -> bytearray:
        await self._slots.acquire()
        waiter: Waiter[bytearray] | None = None
        try:
            async with self._send_lock:
                if self._failure is not None:
                    self._raise_failure()
                correlation_id, frame = self._state.request(question, version)
                waiter = self._waiters.add(correlation_id)
                await self._send(frame)
        finally:
            if waiter is None:
                self._slots.release()  # otherwise the code that takes the waiter from the table does
        answer = await waiter.wait()
        if answer is None:
            self._raise_failure()
        return answer

    async def _send(self, frame: bytes) -> None:
        try:
            await self._transport.send_all(frame)
        except TransportError as error:
            self._fail(UpstreamConnectionError(f"{self.broker_name}: {error}"))
            self._raise_failure()
        except BaseException:
            self.abort()  # cut in the middle of a frame, perhaps
            raise

    async def _read_frame(self) -> bytearray:
        length_field = bytearray(LENGTH_BYTES)
        await self._fill(length_field, 0)
        frame = self._state.frame_buffer(length_field)
        await self._fill(frame, LENGTH_BYTES)
        return frame

    async def _fill(self, buffer: bytearray, filled_bytes: int) -> None:
        with memoryview(buffer) as view:
            while filled_bytes < len(buffer):
                try:
                    count = await self._transport.receive_into(view[filled_bytes:])
                except TransportError as error:
                    raise UpstreamConnectionError(f"{self.broker_name}: {error}") from error
                if count == 0:
                    raise UpstreamConnectionError(f"{self.broker_name}: {self._state.ended_words}")
                filled_bytes += count

    def _deliver(self, frame: bytearray) -> None:
        if self._waiters.hand_over(self._state.answered(frame), frame):
            self._slots.release()

    def _close_if_drained(self) -> None:
        if self._retired and not self._waiters:
            self.abort()

    def _fail(self, error: UpstreamError) -> None:
        """End the connection for this reason; the first reason stays."""
        if self._failure is None:
            self._failure = error
            log.debug(
                "upstream_connection_ended", broker=self.broker_name, client_id=self._state.client_id, why=str(error)
            )
        for _ in range(self._waiters.end()):
            self._slots.release()
        self._reader_scope.cancel()
        self._transport.abort()

    def _raise_failure(self) -> NoReturn:
        failure = self._failure
        assert failure is not None, "no failure to raise"
        # a fresh exception for each waiting task: one shared object would collect all their tracebacks
        raise type(failure)(*failure.args) from failure
