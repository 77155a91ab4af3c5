"""A partition's producers, as a broker's log would know them: open transactions, and the producer snapshot.

Kafka rebuilds this from a log when it starts after a crash (ProducerStateManager, LogSegment.recover); these are its
rules (docs/kafka-tier.md#indexes):

- A batch of a producer id sets its epoch, last sequence, last offset and timestamp. A newer epoch forgets the batch.
- The first transactional batch opens a transaction, a marker ends it. A marker with nothing to end has no other effect
  than to set epoch, coordinator epoch and timestamp.
- The last stable offset after an abort is where the oldest other transaction begins, or behind the marker.
- A producer without an open transaction is forgotten once nothing was heard of it for a day.

A snapshot says one thing more than a broker's own. Only what is decided is copied, so for a transaction that is
open in what was copied the marker is in upstream's log already, and upstream lists it with its batches if it was
aborted. A snapshot has only those as open, so that its readers know how each has ended, also when upstream has deleted
the marker.
"""

from collections.abc import Iterable
from dataclasses import replace

from protocol.record_batches import BatchHeader
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.transaction_index import AbortedTransaction
from storage.log.transaction_marker import TransactionMarker

PRODUCER_EXPIRATION_MS = 86_400_000
"""Kafka's `producer.id.expiration.ms`."""

_NO_TRANSACTION = -1
_SEQUENCES = 1 << 31
"""Sequence numbers are int32 and begin again at 0."""


class ProducerStates:
    """One partition's producers. Not thread-safe.

    Args:
        states: of the snapshot at the offset from which batches will be taken.
    """

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        self._states = {state.producer_id: state for state in states}
        self._open = {
            state.producer_id: state.current_transaction_first_offset
            for state in self._states.values()
            if state.current_transaction_first_offset != _NO_TRANSACTION
        }
        self._aborted: dict[int, list[int]] | None = None

    @property
    def first_open_offset(self) -> int | None:
        """Return where the oldest open transaction begins."""
        return min(self._open.values(), default=None)

    def learn_aborted(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Note what upstream lists with the batches that come next, as (producer id, first offset): of all transactions
        that touch them, those that were aborted."""
        self._aborted = {}
        for producer_id, first_offset in aborted:
            self._aborted.setdefault(producer_id, []).append(first_offset)

    def undecided_aborted(self) -> list[tuple[int, int]]:
        """Those that upstream has listed, and whose markers have not come yet."""
        listed = self._aborted or {}
        return [(producer_id, first) for producer_id in sorted(listed) for first in sorted(listed[producer_id])]

    def take_data(self, header: BatchHeader) -> None:
        """A batch of records. One without a producer id changes nothing."""
        if header.producer_id < 0:
            return
        known = self._states.get(header.producer_id)
        first_offset = self._open.get(header.producer_id, _NO_TRANSACTION)
        if header.is_transactional and first_offset == _NO_TRANSACTION:
            first_offset = self._open[header.producer_id] = header.base_offset
        self._states[header.producer_id] = ProducerState(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            last_sequence=_last_sequence(header),
            last_offset=header.last_offset,
            offset_delta=header.last_offset_delta,
            last_timestamp_ms=header.max_timestamp,
            coordinator_epoch=-1 if known is None else known.coordinator_epoch,
            current_transaction_first_offset=first_offset,
        )

    def take_marker(self, header: BatchHeader, marker: TransactionMarker) -> AbortedTransaction | None:
        """A control batch that ends a transaction; what goes into the transaction index, if anything does."""
        first_offset = self._open.pop(header.producer_id, None)
        if self._aborted and (listed := self._aborted.pop(header.producer_id, None)):
            self._aborted[header.producer_id] = [each for each in listed if each > header.base_offset]
        known = self._states.get(header.producer_id)
        if known is None or known.producer_epoch != header.producer_epoch:
            known = ProducerState(header.producer_id, header.producer_epoch, -1, -1, 0, -1, -1, _NO_TRANSACTION)
        self._states[header.producer_id] = replace(
            known,
            last_timestamp_ms=header.max_timestamp,
            coordinator_epoch=marker.coordinator_epoch,
            current_transaction_first_offset=_NO_TRANSACTION,
        )
        if first_offset is None or not marker.is_abort:
            return None
        open_offset = self.first_open_offset
        return AbortedTransaction(
            producer_id=header.producer_id,
            first_offset=first_offset,
            last_offset=header.last_offset,
            last_stable_offset=header.last_offset + 1 if open_offset is None else open_offset,
        )

    def expire(self, now_ms: int) -> None:
        """Forget producers that were silent for PRODUCER_EXPIRATION_MS. `now_ms`: of the clock that records have."""
        self._states = {
            producer_id: state
            for producer_id, state in self._states.items()
            if producer_id in self._open or now_ms - state.last_timestamp_ms < PRODUCER_EXPIRATION_MS
        }

    def snapshot(self) -> tuple[ProducerState, ...]:
        """Every producer, by producer id. (A broker's are in the order of its hash map.) Without the transactions that
        are known to have been committed later."""
        return tuple(self._as_decided(self._states[producer_id]) for producer_id in sorted(self._states))

    def _as_decided(self, state: ProducerState) -> ProducerState:
        # Upstream may know of an earlier first offset than we do: of batches in a gap.
        first_offset = state.current_transaction_first_offset
        if self._aborted is None or any(each <= first_offset for each in self._aborted.get(state.producer_id, ())):
            return state
        return replace(state, current_transaction_first_offset=_NO_TRANSACTION)


def _last_sequence(header: BatchHeader) -> int:
    if header.base_sequence < 0:
        return -1
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
