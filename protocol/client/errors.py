"""Errors of our own questions to brokers, one tree. Each docstring says when it is raised and whether a retry may help.

The retry verdict is an attribute: `retriable` is True where the same question may succeed later, perhaps on another
connection or another broker. Each message is one sentence that names broker, topic, partition and principal where they
are known. An error made again from its `args` is the same.
"""

import errno
import socket
from collections.abc import Iterator

_CONNECT_WORDS = {
    errno.ECONNREFUSED: "connection refused: nothing listens there, or a firewall says so",
    errno.ETIMEDOUT: "no answer: the host is down, or a firewall drops packets",
    errno.EHOSTUNREACH: "no route to that host",
    errno.ENETUNREACH: "no route to that network",
    errno.EMFILE: "this process has no open file left: raise the limit (LimitNOFILE=, ulimit -n)",
    errno.ENFILE: "this machine has no open file left",
    errno.EACCES: "a local firewall forbids it",
}


def connect_reason(error: OSError) -> str:
    """Why no connection was made, in words; of several addresses each reason once."""
    reasons = []
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            reasons.append("the host's name cannot be resolved: check it, and DNS")
        else:
            reasons.append(_CONNECT_WORDS.get(cause.errno or 0) or cause.strerror or str(cause))
    return "; ".join(dict.fromkeys(reasons))


def _causes(error: BaseException) -> Iterator[OSError]:
    """The system's own errors: trio wraps those of a host's several addresses."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    elif error.__cause__ is not None and not getattr(error, "errno", None):
        yield from _causes(error.__cause__)
    elif isinstance(error, OSError):
        yield error


PORT_MAX = 65535


class UpstreamError(Exception):
    """Root of every error that the client raises."""

    retriable = False


class TransportError(UpstreamError):
    """The byte stream below a connection broke (reset, closed by us, TLS failure), on either side of the proxy."""

    retriable = True


class UpstreamConnectionError(UpstreamError):
    """A broker could not be reached, or its connection was lost before the answer came; the message names it."""

    retriable = True


class UpstreamTimeoutError(UpstreamConnectionError):
    """No answer within the request's time limit; the connection was closed, its answers could not be distinguished."""


class UpstreamTlsError(UpstreamError):
    """The TLS handshake failed for a reason that stays: the certificate, the name in it, a port that speaks no TLS."""


def require_address(host: str, port: int) -> None:
    """Before a socket is opened to what a broker or a file names: sockets raise several errors for what is no address.

    Raises:
        UpstreamConnectionError: the host's name cannot be encoded for a look-up, or there is no such port.
    """
    reason = "there is no such port"
    try:
        if host and "\0" not in host and host.encode("idna") and 0 < port <= PORT_MAX:
            return
        reason = reason if host and "\0" not in host else "this is no host's name"
    except UnicodeError as error:
        reason = f"this is no host's name: {error}"
    raise UpstreamConnectionError(f"cannot connect to {host!r}, port {port}: {reason}")


class UpstreamProtocolError(UpstreamError):
    """A broker's bytes break the protocol: a frame beyond the limit, an unknown correlation id, a bad body, an answer
    to other questions than were asked."""


class UpstreamUnsupportedError(UpstreamError):
    """The broker has no version of an API that this question needs; the message names both."""


class UpstreamAuthenticationError(UpstreamError):
    """Signing in failed. The message names principal and mechanism, never the password or token."""


class UpstreamRefusedError(UpstreamError):
    """A broker answered with a Kafka error code."""

    def __init__(self, message: str, error_code: int, retriable: bool = False) -> None:
        super().__init__(message, error_code, retriable)
        self.message = message
        self.error_code = error_code
        self.retriable = retriable

    def __str__(self) -> str:
        return self.message


class TopicAuthorizationError(UpstreamRefusedError):
    """Our principal lacks a right on the topic; the message names the right."""


class GroupAuthorizationError(UpstreamRefusedError):
    """Our principal lacks a right on the group; the message names the right."""


class GroupInUseError(UpstreamRefusedError):
    """Offsets were to be kept for a group that has members, and only they may do that."""


class UnknownTopicError(UpstreamRefusedError):
    """The cluster has no such topic or partition, or does not tell us of it."""


class OffsetOutOfRangeError(UpstreamRefusedError):
    """A fetch asked for an offset below the log's start or beyond its end."""


class TopicReplacedError(UpstreamError):
    """A topic that this client has fetched from was deleted and created again: its offsets mean other records now."""


class UpstreamDeadlineError(UpstreamError):
    """Retriable errors until the deadline; the message and the cause are the last one."""
