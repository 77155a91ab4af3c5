"""Errors of the wire, split by whose fault it is, and Kafka's error codes."""

import enum


class ProtocolError(Exception):
    """Root of every error that `protocol` raises."""


class PeerProtocolError(ProtocolError):
    """The peer's bytes break the protocol: a bad length, a truncated field, a header that cannot be read.

    The connection that carried them is closed with one log line; nothing else is affected
    (docs/protocol.md#malformed-frames).
    """


class LocalProtocolError(ProtocolError):
    """We asked for something that cannot be put on the wire: our bug, not the peer's."""


class ErrorCode(enum.IntEnum):
    """The codes that Tidegate itself writes or acts on."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    NETWORK_EXCEPTION = 13
    COORDINATOR_NOT_AVAILABLE = 15
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    OFFSET_MOVED_TO_TIERED_STORAGE = 109


MOVED_CODES = frozenset({3, 5, 6, 9, 72, 74, 75, 100, 103})
"""To a client: the asked broker does not lead or does not know the topic (any more): leader, epoch or id have moved."""

PASSING_CODES = MOVED_CODES | {-1, 2, 7, 13, 14, 15, 19, 20, 56, 78, 89}
"""To a client: the same question may be answered later. Kafka's retriable codes that a Fetch, a Produce, a Metadata or
a ListOffsets can meet, and the unexpected server error."""
