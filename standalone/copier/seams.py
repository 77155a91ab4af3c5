"""What a copier needs of others: upstream's partitions, and what a topic's retention is.

What runs the copier (`standalone.copying`) reaches upstream; tests have an upstream in memory.
"""

from dataclasses import dataclass
from typing import Protocol

from protocol.client.leaders import FetchedRecords
from storage.model import TopicIdPartition

KEEP = -1
"""A retention without a limit, as Kafka writes it."""


class OffsetBelowLogStartError(Exception):
    """Upstream has deleted the offset that was asked for; `log_start_offset` is where its log starts now."""

    def __init__(self, partition: TopicIdPartition, offset: int, log_start_offset: int) -> None:
        super().__init__(f"{partition}: offset {offset} is below upstream's log start {log_start_offset}")
        self.log_start_offset = log_start_offset


class TopicGoneError(Exception):
    """Upstream has no topic of this id any more; another one may have its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """Where upstream's log of a partition begins and ends; records up to the last stable offset are copied.

    `high_watermark`: behind the last record that there is; above the last stable offset while a transaction is open.
    """

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What the tier keeps of a topic: records not older than so many milliseconds, partitions not larger than so many
    bytes; KEEP: no limit."""

    retention_ms: int = KEEP
    retention_bytes: int = KEEP


class BrokerLog(Protocol):
    """Upstream's partitions, each asked of its leader.

    All raise RetriableRemoteStorageError for what may pass, TopicGoneError, and RemoteStorageError for the rest (a
    missing right, which the message names).
    """

    async def range(self, partition: TopicIdPartition) -> LogRange:
        """Return where the log begins and ends now."""
        ...

    async def fetch(self, partition: TopicIdPartition, offset: int, *, max_bytes: int) -> FetchedRecords:
        """Batches from `offset` on, READ_COMMITTED; never waits for records. At least one batch, if there is one; empty
        at the last stable offset. All transactions that touch them are decided.

        Raises:
            OffsetBelowLogStartError: retention, or DeleteRecords, was faster.
        """
        ...

    async def epoch_end(self, partition: TopicIdPartition, leader_epoch: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: the largest leader epoch of the leader's log up to this one, and where it ends;
        (-1, -1) if there is none."""
        ...
