"""Kafka's api keys and isolation levels."""

import enum


class ApiKey(enum.IntEnum):
    """The APIs that Tidegate decodes, rewrites or watches; all others travel as plain numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    OFFSET_FOR_LEADER_EPOCH = 23
    SASL_AUTHENTICATE = 36
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


class IsolationLevel(enum.IntEnum):
    """Values of the isolation_level field of Fetch and ListOffsets."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1
