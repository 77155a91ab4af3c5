"""One blocking connection to a broker: connect, TLS, ApiVersions, sign in, then one request after another.

Rules:
- One thread. A request is sent, then its answer is read; the correlation id must be the request's.
- Whatever goes wrong closes the connection: bytes may be under way that belong to nobody. Nothing is sent twice here.
- `usable` is False once most of the SASL session's lifetime has passed (KIP-368): the owner opens another connection,
  we never re-authenticate on one in use.
- A frame is read into memory of its own size, at most `frame_bytes_max`.
"""

import itertools
import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING, Any, Self

from pipeline.brokers.errors import (
    BrokerAuthenticationError,
    BrokerConnectionError,
    BrokerError,
    BrokerProtocolError,
    BrokerRefusedError,
    BrokerTimeoutError,
    BrokerTlsError,
    BrokerUnsupportedError,
)
from pipeline.brokers.settings import ClientSettings
from protocol.client import sasl
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
from protocol.wire.errors import AuthenticationFailedError, PeerProtocolError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">ii")  # length, correlation id
_CORRELATION_ID_BYTES = 4


class BrokerConnection:
    """Ready for requests once it is constructed. A context manager.

    Raises:
        BrokerConnectionError: not reachable within the settings' time, or lost on the way.
        BrokerTlsError, BrokerAuthenticationError: reached, but not let in.
        BrokerUnsupportedError, BrokerProtocolError: no broker that we can talk with.
    """

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.broker_name = f"{host}:{port}"
        self._settings = settings
        self._versions: Mapping[int, tuple[int, int]] = {API_VERSIONS.key: (0, API_VERSIONS.version_max)}
        self._correlation_ids = itertools.count(1)
        self._session_ends_at_s = float("inf")
        self._socket: socket.socket | None = _connect(host, port, settings)
        try:
            self._negotiate_versions()
            if settings.sasl is not None:
                self._sign_in(settings.sasl)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def usable(self) -> bool:
        """Open, and its SASL session not near its end."""
        return self._socket is not None and time.monotonic() < self._session_ends_at_s

    def close(self) -> None:
        """Close at once. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def request(self, api: Api, values: Values, *, timeout_s: float | None = None, version_needed: int = 0) -> Any:
        """Send one request at the newest common version and wait for its answer.

        Args:
            timeout_s: default is the settings' request timeout.
            version_needed: the lowest version that can answer.

        Returns:
            kio's response dataclass of the negotiated version.

        Raises:
            BrokerUnsupportedError: the broker lacks the version; nothing was sent.
            BrokerConnectionError, BrokerTimeoutError, BrokerProtocolError: the connection is closed.
        """
        version, frame = self.request_frame(api, values, timeout_s=timeout_s, version_needed=version_needed)
        try:
            return decode_response(api, version, memoryview(frame)[_LENGTH.size :], self.broker_name)
        except UnsupportedVersionError as error:
            self.close()
            raise BrokerUnsupportedError(str(error)) from error
        except PeerProtocolError as error:
            self.close()
            raise BrokerProtocolError(str(error)) from error

    def request_frame(
        self, api: Api, values: Values, *, timeout_s: float | None = None, version_needed: int = 0
    ) -> tuple[int, bytearray]:
        """Like `request`; the version that was spoken and the answer's whole frame, length field included."""
        try:
            version = negotiate(api, self._versions, self.broker_name, version_needed)
        except UnsupportedVersionError as error:
            raise BrokerUnsupportedError(str(error)) from error
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        frame = encode_request(api, version, values, correlation_id, self._settings.client_id)
        try:
            return version, self._exchange(frame, correlation_id, time.monotonic() + limit_s)
        except TimeoutError as error:
            self.close()
            raise BrokerTimeoutError(f"{self.broker_name}: no answer to {api.name} within {limit_s:g} s") from error
        except OSError as error:
            self.close()
            raise BrokerConnectionError(f"{self.broker_name}: connection lost during {api.name}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _exchange(self, frame: bytes, correlation_id: int, deadline_s: float) -> bytearray:
        if self._socket is None:
            raise BrokerConnectionError(f"{self.broker_name}: the connection is closed")
        self._socket.settimeout(_time_left_s(deadline_s))
        self._socket.sendall(frame)
        head = self._receive(bytearray(_HEAD.size), 0, deadline_s)
        size_bytes, answered_id = _HEAD.unpack(head)
        limit = self._settings.frame_bytes_max
        if not _CORRELATION_ID_BYTES <= size_bytes <= limit:
            raise BrokerProtocolError(f"{self.broker_name}: a frame of {size_bytes} bytes, {limit} are accepted")
        if answered_id != correlation_id:
            raise BrokerProtocolError(
                f"{self.broker_name}: an answer to request {answered_id}, {correlation_id} was asked"
            )
        answer = bytearray(_LENGTH.size + size_bytes)
        answer[: len(head)] = head
        return self._receive(answer, len(head), deadline_s)

    def _receive(self, buffer: bytearray, filled_bytes: int, deadline_s: float) -> bytearray:
        """Fill the rest of the buffer."""
        assert self._socket is not None, "the connection is closed"
        with memoryview(buffer) as view:
            while filled_bytes < len(buffer):
                self._socket.settimeout(_time_left_s(deadline_s))
                count = self._socket.recv_into(view[filled_bytes:])
                if count == 0:
                    raise BrokerConnectionError(f"{self.broker_name}: the broker closed the connection")
                filled_bytes += count
        return buffer

    def _negotiate_versions(self) -> None:
        values = {"client_software_name": SOFTWARE_NAME, "client_software_version": software_version()}
        response = self.request(API_VERSIONS, values)
        code = int(response.error_code)
        if code != 0:
            raise BrokerRefusedError(f"{self.broker_name}: ApiVersions was refused with error code {code}", code)
        self._versions = {int(entry.api_key): (entry.min_version, entry.max_version) for entry in response.api_keys}

    def _sign_in(self, credentials: sasl.SaslCredentials) -> None:
        steps = sasl.sign_in(credentials)
        result: Any = None
        try:
            while True:
                step = steps.send(result)
                result = step.work() if isinstance(step, sasl.Compute) else self.request(step.api, step.values)
        except StopIteration as done:
            if done.value > 0:
                self._session_ends_at_s = time.monotonic() + done.value * sasl.SESSION_LIFETIME_SHARE
        except AuthenticationFailedError as error:
            raise BrokerAuthenticationError(f"{self.broker_name}: {error}") from error
        except PeerProtocolError as error:
            raise BrokerProtocolError(f"{self.broker_name}: {error}") from error
        except BrokerConnectionError as error:
            raise type(error)(f"{error} while signing in as {credentials.username!r}") from error


def _connect(host: str, port: int, settings: ClientSettings) -> socket.socket:
    try:
        plain = socket.create_connection((host, port), settings.connect_timeout_s)
    except OSError as error:
        raise BrokerConnectionError(f"cannot connect to {host}:{port}: {error}") from error
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.tls is None:
            return plain
        return settings.tls.wrap_socket(plain, server_hostname=host)
    except OSError as error:
        plain.close()
        raise _tls_error(f"TLS handshake with {host}:{port} failed: {error}", error) from error
    except BaseException:
        plain.close()
        raise


def _tls_error(message: str, error: OSError) -> BrokerError:
    """A handshake that was cut or took too long may succeed later; one that was refused will not."""
    passing = not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return BrokerConnectionError(message) if passing else BrokerTlsError(message)


def _time_left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
