"""One own connection to a broker: requests pipelined on it, answers matched by order and correlation id.

Rules:
- A broker answers in the order of the requests, so the answers' queue is a plain FIFO; an answer whose correlation
  id is not the oldest one's breaks the connection.
- A request whose time limit passes closes the connection: the answer may still come, and a broker that
  hangs once hangs for those behind. A request that is cancelled from outside does not; its answer is dropped.
- Losing the connection fails every waiting request with UpstreamConnectionError; nothing is sent twice here.
- One reader task a connection, in the nursery it was opened with; it ends with the connection and never raises.
"""

import itertools
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

import structlog
import trio

from protocol.client.messages import (
    API_VERSIONS,
    SOFTWARE_NAME,
    Api,
    Values,
    decode_response,
    encode_request,
    negotiate,
    software_version,
)
from protocol.client.sasl import SESSION_LIFETIME_SHARE
from protocol.wire.errors import AuthenticationFailedError, PeerProtocolError, UnsupportedVersionError
from proxy.upstream.errors import (
    TransportError,
    UpstreamAuthenticationError,
    UpstreamConnectionError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefusedError,
    UpstreamTimeoutError,
    UpstreamUnsupportedError,
)
from proxy.upstream.sasl import sign_in
from proxy.upstream.settings import UpstreamSettings
from proxy.upstream.transport import Transport, open_transport

log = structlog.get_logger(__name__)

_LENGTH = struct.Struct(">i")
_CORRELATION_ID_BYTES = 4


async def open_broker_connection(
    host: str, port: int, settings: UpstreamSettings, role: str, nursery: trio.Nursery
) -> "BrokerConnection":
    """Connect, exchange ApiVersions and sign in; the reader task goes into `nursery`.

    Raises:
        UpstreamConnectionError: not reachable within the settings' time, or lost on the way.
        UpstreamAuthenticationError: reached, but not signed in.
    """
    with trio.move_on_after(settings.connect_timeout_s):
        transport = await open_transport(host, port, tls=settings.tls)
        return await start_broker_connection(transport, f"{host}:{port}", settings, role, nursery)
    raise UpstreamConnectionError(f"no connection with {host}:{port} within {settings.connect_timeout_s:g} s")


async def start_broker_connection(
    transport: Transport, broker_name: str, settings: UpstreamSettings, role: str, nursery: trio.Nursery
) -> "BrokerConnection":
    """`open_broker_connection` over a transport that is connected already; it owns the transport."""
    connection = BrokerConnection(transport, broker_name, settings, role)
    nursery.start_soon(connection.read)
    try:
        await connection.negotiate_versions()
        if settings.sasl is not None:
            await connection.authenticate()
    except BaseException:
        connection.abort()
        raise
    return connection


class BrokerConnection:
    """A connection that is ready for requests once `start_broker_connection` has returned it."""

    def __init__(self, transport: Transport, broker_name: str, settings: UpstreamSettings, role: str) -> None:
        self.broker_name = broker_name
        self._transport = transport
        self._settings = settings
        self._client_id = settings.client_id(role)
        self._versions: Mapping[int, tuple[int, int]] = {API_VERSIONS.key: (0, API_VERSIONS.version_max)}
        self._correlation_ids = itertools.count(1)
        self._waiting: deque[_Waiter] = deque()
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
        """What the broker offers: api key to (lowest, highest) version."""
        return self._versions

    async def request(
        self, api: Api, values: Values, *, timeout_s: float | None = None, version_needed: int = 0
    ) -> Any:
        """Send one request at the newest common version and wait for its answer.

        Args:
            timeout_s: default is the settings' request timeout; passing it closes the connection.
            version_needed: the lowest version that can answer.

        Returns:
            kio's response dataclass of the negotiated version.

        Raises:
            UpstreamUnsupportedError: the broker lacks the version; nothing was sent.
            UpstreamTimeoutError, UpstreamConnectionError, UpstreamProtocolError: the connection is gone.
        """
        try:
            version = negotiate(api, self._versions, self.broker_name, version_needed)
        except UnsupportedVersionError as error:
            raise UpstreamUnsupportedError(str(error)) from error
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        with trio.move_on_after(limit_s):
            frame = await self._exchange(api, version, values)
            try:
                return decode_response(api, version, frame, self.broker_name)
            except UnsupportedVersionError as error:
                raise UpstreamUnsupportedError(str(error)) from error
            except PeerProtocolError as error:
                self._fail(UpstreamProtocolError(str(error)))
                self._raise_failure()
        self._fail(UpstreamTimeoutError(f"{self.broker_name}: no answer to {api.name} within {limit_s:g} s"))
        return self._raise_failure()

    async def negotiate_versions(self) -> None:
        """Ask ApiVersions; called once, before anything else."""
        values = {"client_software_name": SOFTWARE_NAME, "client_software_version": software_version()}
        response = await self.request(API_VERSIONS, values)
        if response.error_code != 0:
            code = int(response.error_code)
            raise UpstreamRefusedError(f"{self.broker_name}: ApiVersions was refused with error code {code}", code)
        self._versions = {int(entry.api_key): (entry.min_version, entry.max_version) for entry in response.api_keys}

    async def authenticate(self) -> None:
        """Sign in with the settings' credentials; called once, after `negotiate_versions`."""
        credentials = self._settings.sasl
        assert credentials is not None, "no credentials to sign in with"
        try:
            lifetime_s = await sign_in(self.request, credentials)
        except AuthenticationFailedError as error:
            raise UpstreamAuthenticationError(f"{self.broker_name}: {error}") from error
        except PeerProtocolError as error:
            raise UpstreamProtocolError(f"{self.broker_name}: {error}") from error
        if lifetime_s > 0:
            self._session_ends_at = trio.current_time() + lifetime_s * SESSION_LIFETIME_SHARE

    async def aclose(self) -> None:
        """Close; waiting requests fail. Nothing of ours needs a farewell, so this is `abort` with a checkpoint."""
        self.abort()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        """Close at once; waiting requests fail."""
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
        finally:
            self.abort()

    async def _exchange(self, api: Api, version: int, values: Values) -> bytearray:
        await self._slots.acquire()
        waiter: _Waiter | None = None
        try:
            async with self._send_lock:
                if self._failure is not None:
                    self._raise_failure()
                correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
                frame = encode_request(api, version, values, correlation_id, self._client_id)
                waiter = _Waiter(correlation_id)
                self._waiting.append(waiter)
                await self._send(frame)
        finally:
            if waiter is None:
                self._slots.release()  # otherwise whoever takes the waiter from the queue does
        await waiter.answered.wait()
        if waiter.frame is None:
            self._raise_failure()
        return waiter.frame

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
        size = _LENGTH.unpack(await self._read_exactly(_LENGTH.size))[0]
        if not _CORRELATION_ID_BYTES <= size <= self._settings.frame_bytes_max:
            limit = self._settings.frame_bytes_max
            raise UpstreamProtocolError(f"{self.broker_name}: a frame of {size} bytes, {limit} are accepted")
        return await self._read_exactly(size)

    async def _read_exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        with memoryview(buffer) as view:
            received = 0
            while received < size:
                try:
                    count = await self._transport.receive_into(view[received:])
                except TransportError as error:
                    raise UpstreamConnectionError(f"{self.broker_name}: {error}") from error
                if count == 0:
                    raise UpstreamConnectionError(f"{self.broker_name}: the broker closed the connection")
                received += count
        return buffer

    def _deliver(self, frame: bytearray) -> None:
        correlation_id = _LENGTH.unpack_from(frame)[0]
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            raise UpstreamProtocolError(f"{self.broker_name}: an answer to request {correlation_id}, which is not next")
        waiter = self._waiting.popleft()
        waiter.frame = frame
        waiter.answered.set()
        self._slots.release()

    def _close_if_drained(self) -> None:
        if self._retired and not self._waiting:
            self.abort()

    def _fail(self, error: UpstreamError) -> None:
        """End the connection for this reason; the first reason stays."""
        if self._failure is None:
            self._failure = error
            log.debug("upstream connection ended", broker=self.broker_name, client_id=self._client_id, why=str(error))
        while self._waiting:
            self._waiting.popleft().answered.set()
            self._slots.release()
        self._reader_scope.cancel()
        self._transport.abort()

    def _raise_failure(self) -> NoReturn:
        failure = self._failure
        assert failure is not None, "no failure to raise"
        # a fresh exception for each waiting task: one shared object would collect all their tracebacks
        raise type(failure)(*failure.args) from failure


class _Waiter:
    """A request under way. `frame` stays None when the connection is lost."""

    __slots__ = ("answered", "correlation_id", "frame")

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id
        self.answered = trio.Event()
        self.frame: bytearray | None = None
