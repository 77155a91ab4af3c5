"""Errors of the wire, split by whose fault it is, and Kafka's error codes."""

import enum


class ProtocolError(Exception):
    """Root of every error that `protocol` raises."""


class PeerProtocolError(ProtocolError):
    """The peer's bytes break the protocol: a bad length, a truncated field, a header that cannot be read.

    The connection that carried them is closed with one log line; nothing else is affected (design §6).
    """


class LocalProtocolError(ProtocolError):
    """We asked for something that cannot be put on the wire: our bug, not the peer's."""


class ErrorCode(enum.IntEnum):
    """The codes that Tidegate itself writes or acts on (spec/kafka-remote.md §13.4)."""

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
