"""Aborted tails: transactions that begin below a local log start and are aborted at or beyond it.

The tier's transaction indexes do not tell of them (storage.reading.aborted_transactions), the broker does: in the
list of aborted transactions of a READ_COMMITTED fetch at that very offset. It gives the list only with records.

Rule 1. A tail is known from an answer with records only, for the offset is below the last stable offset then: every
        transaction that began below it has ended, and its marker is in that broker's index.
Rule 2. With nothing in the local log (its start is the high watermark and the last stable offset) the tail is empty:
        were a marker to come yet, the last stable offset would be lower.
Rule 3. Any other answer leaves it unknown: an open transaction that begins right there hides the markers behind it.
Rule 4. For the same reason a tail does not change as the last stable offset rises; it is kept until that falls (the
        log was cut), another local log start or leader epoch shows, or the broker refuses a question.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.fetch.messages import PartitionAnswer
from storage.bounded_map import BoundedMap
from storage.model import TopicIdPartition

AbortedTail = Sequence[tuple[int, int]]
"""(Producer id, first offset)."""

TAILS_MAX = 20_000
"""Partitions times brokers that are remembered, least recently used first out: 500 bytes each."""

TAIL_ENTRIES_MAX = 1000
"""A longer tail is used and not kept: it takes as many producers with a transaction open at one offset."""


@dataclass(frozen=True, slots=True)
class _Known:
    local_log_start_offset: int
    leader_epoch: int
    last_stable_offset: int
    tail: AbortedTail


class AbortedTails:
    """Tails by (broker, partition), each at one local log start. Owned by the trio thread."""

    def __init__(self) -> None:
        self._tails: BoundedMap[tuple[int, TopicIdPartition], _Known] = BoundedMap(TAILS_MAX)

    def __len__(self) -> int:
        return len(self._tails)

    def get(
        self, node_id: int, partition: TopicIdPartition, local_log_start_offset: int, leader_epoch: int
    ) -> AbortedTail | None:
        """The tail at that offset, if it is known."""
        known = self._tails.use((node_id, partition))
        if known is None or (known.local_log_start_offset, known.leader_epoch) != (
            local_log_start_offset,
            leader_epoch,
        ):
            return None
        return known.tail

    def learn(
        self,
        node_id: int,
        partition: TopicIdPartition,
        local_log_start_offset: int,
        leader_epoch: int,
        answer: PartitionAnswer | None,
    ) -> AbortedTail | None:
        """Take the broker's answer to a READ_COMMITTED fetch at that offset; what it says, or None."""
        tail = None if answer is None else _tail_of(answer, local_log_start_offset)
        self.forget(node_id, partition)
        if answer is not None and tail is not None and len(tail) <= TAIL_ENTRIES_MAX:
            self._tails[node_id, partition] = _Known(
                local_log_start_offset, leader_epoch, answer.last_stable_offset, tail
            )
        return tail

    def saw(self, node_id: int, partition: TopicIdPartition, last_stable_offset: int) -> None:
        """An answer passed with the partition's last stable offset."""
        known = self._tails.get((node_id, partition))
        if known is not None and last_stable_offset < known.last_stable_offset:
            self.forget(node_id, partition)

    def forget(self, node_id: int, partition: TopicIdPartition) -> None:
        """Something said that it is out of date."""
        self._tails.pop((node_id, partition), None)


def _tail_of(answer: PartitionAnswer, local_log_start_offset: int) -> AbortedTail | None:
    if answer.error_code or answer.preferred_read_replica >= 0:
        return None
    if local_log_start_offset == answer.high_watermark == answer.last_stable_offset:
        return ()
    aborted = answer.aborted_transactions
    has_records = answer.records_bytes or answer.dropped_bytes
    if not has_records or aborted is None or answer.last_stable_offset <= local_log_start_offset:
        return None
    return tuple(entry for entry in aborted if entry[1] < local_log_start_offset)
