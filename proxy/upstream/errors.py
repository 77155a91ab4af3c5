"""Errors of `proxy.upstream`, one tree. Each docstring says when it is raised and whether a retry may help.

The retry verdict is a class attribute: `retriable` is True where the same question may succeed later,
perhaps on another connection or another broker.
"""


class UpstreamError(Exception):
    """Root of every error that `proxy.upstream` raises."""

    retriable = False


class TransportError(UpstreamError):
    """The byte stream below a connection broke (reset, closed by us, TLS failure), on either side of the proxy."""

    retriable = True


class UpstreamConnectionError(UpstreamError):
    """A broker could not be reached, or its connection was lost before the answer came; the message names it."""

    retriable = True


class UpstreamTimeoutError(UpstreamConnectionError):
    """No answer within the request's time limit; the connection was closed, its answers could not be told apart."""


class UpstreamProtocolError(UpstreamError):
    """A broker's bytes break the protocol: a frame beyond the limit, an unknown correlation id, a bad body."""


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
