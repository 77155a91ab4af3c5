"""Errors of the pipeline's Kafka client, one tree. Each docstring says when it is raised and whether a retry may help.

Each message is one sentence that names broker, topic, partition and principal where they are known. `retriable` is
True where the same question may succeed later; BrokerClient asks it again by itself until its deadline, so callers of
it see retriable errors only as the cause of a BrokerDeadlineError.
"""


class BrokerError(Exception):
    """Root of every error that the Kafka client raises."""

    retriable = False


class BrokerConnectionError(BrokerError):
    """A broker could not be reached, or its connection was lost before the answer came."""

    retriable = True


class BrokerTimeoutError(BrokerConnectionError):
    """No answer within the request's time limit; the connection was closed."""


class BrokerTlsError(BrokerError):
    """The TLS handshake failed for a reason that stays: the certificate, the name in it, a port that speaks no TLS."""


class BrokerAuthenticationError(BrokerError):
    """Signing in failed. The message names principal and mechanism, never the password or token."""


class BrokerProtocolError(BrokerError):
    """A broker's bytes break the protocol: a frame beyond the limit, an unknown correlation id, a bad body."""


class BrokerUnsupportedError(BrokerError):
    """The broker has no version of an API that this question needs; the message names both."""


class BrokerRefusedError(BrokerError):
    """A broker answered with a Kafka error code."""

    def __init__(self, message: str, error_code: int, retriable: bool = False) -> None:
        super().__init__(message, error_code, retriable)
        self.message = message
        self.error_code = error_code
        self.retriable = retriable

    def __str__(self) -> str:
        return self.message


class TopicAuthorizationError(BrokerRefusedError):
    """Our principal lacks a right on the topic; the message names the right."""


class UnknownTopicError(BrokerRefusedError):
    """The cluster has no such topic or partition, or does not tell us of it."""


class OffsetOutOfRangeError(BrokerRefusedError):
    """A fetch asked for an offset below the log's start or beyond its end."""


class TopicReplacedError(BrokerError):
    """A topic that this client has fetched from was deleted and made anew: its offsets mean other records now."""


class BrokerDeadlineError(BrokerError):
    """Retriable errors until the deadline; the message and the cause are the last one."""


class MetadataTopicError(BrokerError):
    """The metadata topic cannot be followed (any more): truncated, made anew, grown, or unreadable."""
