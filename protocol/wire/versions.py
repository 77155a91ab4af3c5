"""Which versions of which API a client may use through Tidegate (docs/protocol.md#l7).

Rule 1. The upper end is the lower of upstream's and the newest that we know: in a newer one, an address or a
        length field may stand somewhere that we would not look.
Rule 2. The lower end is upstream's, save the few in OLDEST. Clients look for a version 0 as the sign of a feature:
        without Produce v0, which Kafka 4 announces and refuses, librdkafka takes a broker for one that cannot compress
        (KAFKA-18659), and without SaslHandshake v0 for one that cannot sign it in (before 2.11).
Rule 3. Versions are cut, never raised; an API key that the table does not know is left out, as is one of which
        nothing is left.

The table is Kafka 4.3's own list; a test compares it with generated schemas.
"""

from protocol.wire.identifiers import ApiKey

NEWEST: dict[int, int] = {
    ApiKey.PRODUCE: 13,
    ApiKey.FETCH: 18,
    ApiKey.LIST_OFFSETS: 11,
    ApiKey.METADATA: 13,
    8: 10,  # OffsetCommit
    9: 10,  # OffsetFetch
    ApiKey.FIND_COORDINATOR: 6,
    11: 9,  # JoinGroup
    12: 4,  # Heartbeat
    13: 5,  # LeaveGroup
    14: 5,  # SyncGroup
    15: 6,  # DescribeGroups
    16: 5,  # ListGroups
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.API_VERSIONS: 4,
    19: 7,  # CreateTopics
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2,
    22: 6,  # InitProducerId
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    24: 5,  # AddPartitionsToTxn
    25: 4,  # AddOffsetsToTxn
    26: 5,  # EndTxn
    27: 2,  # WriteTxnMarkers
    28: 5,  # TxnOffsetCommit
    29: 3,  # DescribeAcls: its hosts are clients'
    30: 3,  # CreateAcls
    31: 3,  # DeleteAcls: its hosts are clients'
    32: 4,  # DescribeConfigs
    33: 2,  # AlterConfigs
    34: 2,  # AlterReplicaLogDirs
    35: 5,  # DescribeLogDirs
    ApiKey.SASL_AUTHENTICATE: 2,
    37: 3,  # CreatePartitions
    38: 3,  # CreateDelegationToken
    39: 2,  # RenewDelegationToken
    40: 2,  # ExpireDelegationToken
    41: 3,  # DescribeDelegationToken
    42: 2,  # DeleteGroups
    43: 2,  # ElectLeaders
    44: 1,  # IncrementalAlterConfigs
    45: 1,  # AlterPartitionReassignments
    46: 0,  # ListPartitionReassignments
    47: 0,  # OffsetDelete
    48: 1,  # DescribeClientQuotas
    49: 1,  # AlterClientQuotas
    50: 0,  # DescribeUserScramCredentials
    51: 0,  # AlterUserScramCredentials
    52: 2,  # Vote: this and its like are spoken to controllers only, and pass as upstream says
    53: 1,  # BeginQuorumEpoch
    54: 1,  # EndQuorumEpoch
    ApiKey.DESCRIBE_QUORUM: 2,
    56: 3,  # AlterPartition
    57: 2,  # UpdateFeatures
    58: 0,  # Envelope
    59: 1,  # FetchSnapshot
    ApiKey.DESCRIBE_CLUSTER: 2,
    61: 0,  # DescribeProducers
    62: 4,  # BrokerRegistration
    63: 2,  # BrokerHeartbeat
    64: 0,  # UnregisterBroker
    65: 0,  # DescribeTransactions
    66: 2,  # ListTransactions
    67: 0,  # AllocateProducerIds
    68: 1,  # ConsumerGroupHeartbeat
    69: 1,  # ConsumerGroupDescribe
    70: 0,  # ControllerRegistration
    71: 0,  # GetTelemetrySubscriptions
    72: 0,  # PushTelemetry
    73: 0,  # AssignReplicasToDirs
    74: 1,  # ListConfigResources
    75: 0,  # DescribeTopicPartitions: node ids, no addresses
    76: 1,  # ShareGroupHeartbeat
    77: 1,  # ShareGroupDescribe
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
    80: 1,  # AddRaftVoter
    81: 0,  # RemoveRaftVoter
    82: 0,  # UpdateRaftVoter
    83: 0,  # InitializeShareGroupState
    84: 0,  # ReadShareGroupState
    85: 1,  # WriteShareGroupState
    86: 0,  # DeleteShareGroupState
    87: 1,  # ReadShareGroupStateSummary
    88: 0,  # StreamsGroupHeartbeat: its endpoints are the application's
    89: 0,  # StreamsGroupDescribe: likewise
    90: 1,  # DescribeShareGroupOffsets
    91: 0,  # AlterShareGroupOffsets
    92: 0,  # DeleteShareGroupOffsets
}
"""Newest version of each API that is decoded here or known to be safe to relay."""

OLDEST: dict[int, int] = {
    ApiKey.FETCH: 4,  # record batches v2 begin there
    ApiKey.SHARE_FETCH: 1,  # v0 was early access, of a shape of its own, with addresses in it
    ApiKey.SHARE_ACKNOWLEDGE: 1,
}
"""Oldest version that is announced, where that is above upstream's; all others begin at upstream's."""


def cut(api_key: int, upstream_min: int, upstream_max: int) -> tuple[int, int] | None:
    """The range of versions to announce, or None to leave the API out."""
    newest = NEWEST.get(api_key)
    if newest is None:
        return None
    low = max(upstream_min, OLDEST.get(api_key, upstream_min))
    high = min(upstream_max, newest)
    return (low, high) if low <= high else None


def is_known(api_key: int, api_version: int) -> bool:
    """Return whether a request of that version may pass at all, whatever upstream would say to it."""
    newest = NEWEST.get(api_key)
    return newest is not None and OLDEST.get(api_key, 0) <= api_version <= newest
