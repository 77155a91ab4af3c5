"""One blocking connection to a broker: connect, TLS, ApiVersions, sign in, then one request after another.

The blocking shell of protocol.client.connection. One thread. A request is sent, then its answer is read; whatever goes
wrong closes the connection, since bytes may be under way that belong to nobody. The owner opens another connection
once most of the SASL session's lifetime has passed (KIP-368).
"""

import socket
import ssl
import time
from typing import Any, Self

from protocol.client.connection import LENGTH_BYTES, ConnectionState
from protocol.client.conversation import drive
from protocol.client.errors import (
    UpstreamConnectionError,
    UpstreamError,
    UpstreamTimeoutError,
    UpstreamTlsError,
    require_address,
)
from protocol.client.messages import Question
from protocol.client.sasl import Compute, Step
from protocol.client.settings import ClientSettings

ROLE = "spark"


class BrokerConnection:
    """Ready for requests once it is constructed. A context manager.

    Raises:
        UpstreamConnectionError: not reachable within the settings' time, or lost on the way.
        UpstreamTlsError, UpstreamAuthenticationError: reached, but not let in.
        UpstreamUnsupportedError, UpstreamProtocolError: no broker that we can talk with.
    """

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self._state = ConnectionState(f"{host}:{port}", settings, ROLE)
        self._settings = settings
        self._socket: socket.socket | None = _connect(host, port, settings)
        try:
            opened_at_s = time.monotonic()
            self._session_ends_at_s = opened_at_s + drive(self._state.opening(), self._take_step)
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

    def request(self, question: Question[Any], timeout_s: float | None = None) -> Any:
        """Send one request at the newest common version and wait for its answer.

        Args:
            timeout_s: default is the settings' request timeout.

        Returns:
            What `ConnectionState.decode` makes of it, unread by the question.

        Raises:
            UpstreamUnsupportedError: the broker lacks the version; nothing was sent.
            UpstreamConnectionError, UpstreamTimeoutError, UpstreamProtocolError: the connection is closed.
        """
        version = self._state.version_of(question)
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        name, api_name = self._state.broker_name, question.api.name
        try:
            frame = self._exchange(self._state.request(question, version)[1], time.monotonic() + limit_s)
            self._state.answered(frame)
            return self._state.decode(question.api, version, frame)
        except TimeoutError as error:
            self.close()
            raise UpstreamTimeoutError(f"{name}: no answer to {api_name} within {limit_s:g} s") from error
        except OSError as error:
            self.close()
            raise UpstreamConnectionError(f"{name}: connection lost during {api_name}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _take_step(self, step: Step) -> Any:
        return step.work() if isinstance(step, Compute) else self.request(step)

    def _exchange(self, frame: bytes, deadline_s: float) -> bytearray:
        if self._socket is None:
            raise UpstreamConnectionError(f"{self._state.broker_name}: the connection is closed")
        self._socket.settimeout(_time_left_s(deadline_s))
        self._socket.sendall(frame)
        length_field = self._filled(self._socket, bytearray(LENGTH_BYTES), 0, deadline_s)
        return self._filled(self._socket, self._state.frame_buffer(length_field), LENGTH_BYTES, deadline_s)

    def _filled(self, sock: socket.socket, buffer: bytearray, filled_bytes: int, deadline_s: float) -> bytearray:
        with memoryview(buffer) as view:
            while filled_bytes < len(buffer):
                sock.settimeout(_time_left_s(deadline_s))
                count = sock.recv_into(view[filled_bytes:])
                if count == 0:
                    raise UpstreamConnectionError(f"{self._state.broker_name}: the broker closed the connection")
                filled_bytes += count
        return buffer


def _connect(host: str, port: int, settings: ClientSettings) -> socket.socket:
    require_address(host, port)
    try:
        plain = socket.create_connection((host, port), settings.connect_timeout_s)
    except OSError as error:
        raise UpstreamConnectionError(f"cannot connect to {host}:{port}: {error}") from error
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


def _tls_error(message: str, error: OSError) -> UpstreamError:
    """A handshake that was cut or took too long may succeed later; one that was refused will not."""
    passing = not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return UpstreamConnectionError(message) if passing else UpstreamTlsError(message)


def _time_left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
