"""What time the brokers have: a store in a folder has no clock of its own.

KRaft's active controller tells its time with its own place in the quorum (KIP-836, Kafka 3.3 on), to whom has Describe
on the cluster. Where neither is so, it is not known.
"""

from typing import Any, Final

import structlog

from protocol.client.errors import UpstreamError, UpstreamProtocolError, UpstreamRefusedError
from protocol.client.leaders import code_name
from protocol.client.messages import Api, Question
from proxy.upstream.cluster import Cluster
from proxy.upstream.partition_questions import ask_any
from standalone.serving.broker_log import ROLE
from storage.object_store.clock import StoreClock

DESCRIBE_QUORUM: Final = Api(55, "describe_quorum", 1, 1)
"""From 1 on with times."""

_QUESTION: Final[Question[Any]] = Question(
    DESCRIBE_QUORUM, {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
)

_log = structlog.get_logger(__name__)


class ClusterClock:
    """Owned by the trio thread. `offset_ms`: see StoreClock."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = StoreClock()
        self.offset_ms = self._clock.offset_ms

    async def look(self) -> None:
        """Ask any broker; no answer leaves what was heard before."""
        try:
            self._clock.heard_time(await controller_time_s(self._cluster))
        except UpstreamError as error:
            _log.debug("cluster_clock_not_told", reason=str(error))


async def controller_time_s(cluster: Cluster) -> float:
    """Return what time the active controller has, by way of a broker.

    Raises:
        UpstreamError: no answer, a missing right, or a cluster that does not tell.
    """
    body = await ask_any(cluster, ROLE, _QUESTION)
    if body.error_code:
        said = f"DescribeQuorum says {code_name(body.error_code)}: ACL Describe on Cluster may be missing"
        raise UpstreamRefusedError(said, int(body.error_code))
    quorums = (each for topic in body.topics for each in topic.partitions)
    voters = (voter for each in quorums for voter in each.current_voters if voter.replica_id == each.leader_id)
    time_ms = max((int(voter.last_caught_up_timestamp) for voter in voters), default=0)
    if time_ms <= 0:
        raise UpstreamProtocolError("DescribeQuorum names no leader with its time")
    return time_ms / 1000
