"""Transactions that are open at upstream, which has deleted where they begin (mode standalone).

The last stable offset is then where the broker's log starts. READ_COMMITTED readers wait there, as they would without
Tidegate, and so does copying: what upstream deletes meanwhile is in no place. Only the producer, its timeout or an
operator ends that, so it is said whose transaction it is, by what the leader knows (DescribeProducers, KIP-664).
"""

from collections.abc import Callable, Sequence
from itertools import islice

import structlog
import trio

from protocol.client.errors import UpstreamError
from protocol.client.leaders import code_name
from protocol.client.offset_questions import OpenTransaction, producers_question
from proxy.fetch.frontiers import Frontiers
from proxy.upstream.cluster import Cluster
from proxy.upstream.partition_questions import ROLE, leader_id
from storage.model import TopicIdPartition
from storage.wall_clock import wall_clock_ms

LOOK_S = 5.0

PARTITIONS_MAX = 20
"""That are looked at, each with a question."""

_log = structlog.get_logger(__name__)


class HangingTransactions:
    """Owned by the trio thread.

    Args:
        held_back: which partitions are (`WeOwnIt.held_back`).
        tell: gets what there is, a sentence for each partition.
    """

    def __init__(
        self,
        held_back: set[TopicIdPartition],
        frontiers: Frontiers,
        cluster: Cluster,
        tell: Callable[[Sequence[str]], None],
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._now_ms = now_ms
        self._held_back = held_back
        self._frontiers = frontiers
        self._cluster = cluster
        self._tell = tell
        self._logged: set[TopicIdPartition] = set()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask about what is held back just now, and tell."""
        partitions = [*islice(self._held_back, PARTITIONS_MAX)]
        self._logged &= {*partitions}
        self._tell([said for partition in partitions if (said := await self._said(partition)) is not None])

    async def _said(self, partition: TopicIdPartition) -> str | None:
        try:
            opened = await self._oldest(partition)
        except UpstreamError as error:
            whose = f"whose it is is not known: {error}"
        else:
            if opened is None:
                self._held_back.discard(partition)
                return None
            silent_s = (self._now_ms() - opened.last_timestamp_ms) // 1000
            whose = f"producer {opened.producer_id} began it at offset {opened.first_offset} and wrote {silent_s} s ago"
        name = f"{partition.topic}-{partition.partition}"
        said = (
            f"{name}: a transaction is open, and upstream has deleted where it begins; {whose}. "
            "READ_COMMITTED readers and copying wait at upstream's log start until it ends (kafka-transactions.sh)"
        )
        if partition not in self._logged:
            self._logged.add(partition)
            _log.warning("transaction_hangs", partition=str(partition), reason=said)
        return said

    async def _oldest(self, partition: TopicIdPartition) -> OpenTransaction | None:
        """The first of the open transactions, if its beginning is deleted."""
        node_id = await leader_id(self._cluster, partition)
        question = producers_question(partition.topic, partition.partition)
        body = await self._cluster.ask(node_id, ROLE, question)
        error_code, opened = question.read(body, self._cluster.name_of(node_id))
        if error_code:
            raise UpstreamError(f"DescribeProducers failed with {code_name(error_code)}")
        frontier = self._frontiers.get(node_id, partition)
        log_start_offset = 0 if frontier is None else frontier.local_log_start_offset
        deleted = [each for each in opened if each.first_offset < log_start_offset]
        return min(deleted, key=lambda each: each.first_offset, default=None)
