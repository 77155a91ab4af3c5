"""The transaction index of a segment: the transactions that were aborted in it (docs/kafka-tier.md#indexes,
docs/kafka-tier.md#aborted-transactions).

An entry is 34 bytes, big-endian: int16 version (0), int64 producer id, int64 first offset, int64 last offset (that
of the abort marker), int64 last stable offset after the abort. Entries ascend by last offset. An entry stands in
the segment that holds the marker, which may come after the segment with the data. A segment without aborts has no such
object. Absence means just that where nothing says that there are bytes (LocalTieredStorage, plain objects); where a
manifest names them it is corruption.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from storage.errors import CorruptObjectError, IndexLostError, RemoteResourceNotFoundError
from storage.model import RemoteLogSegmentMetadata

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One aborted transaction; `last_offset` is its abort marker's offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """A read-only view of one transaction index.

    Raises:
        CorruptObjectError: not a whole number of entries, an unknown version, a transaction that ends before
            it begins, or last offsets that do not ascend.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray, name: str = "transaction index") -> None:
        if len(data) % _ENTRY.size:
            raise CorruptObjectError(f"{name}: {len(data)} bytes is not a multiple of {_ENTRY.size}")
        previous_last_offset = -1
        for entry_number, (version, _, first_offset, last_offset, last_stable_offset) in enumerate(
            _ENTRY.iter_unpack(data)
        ):
            at_byte = entry_number * _ENTRY.size
            if version != _VERSION:
                raise CorruptObjectError(f"{name}: version {version} at byte {at_byte}, only {_VERSION} is known")
            if not 0 <= first_offset <= last_offset or last_stable_offset < 0:
                raise CorruptObjectError(f"{name}: impossible offsets at byte {at_byte}")
            if last_offset <= previous_last_offset:
                raise CorruptObjectError(f"{name}: last offset does not ascend at byte {at_byte}")
            previous_last_offset = last_offset
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // _ENTRY.size

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return (AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(self._data))

    def collect_aborted(self, fetch_offset: int, upper_bound_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The aborted transactions that touch [fetch_offset, upper_bound_offset), and whether those are all.

        Not complete means: the next segment's index may hold more. An entry whose last stable offset has reached
        the upper bound completes it, because then every transaction begun below the bound has ended. Not one entry
        alone: a bit of it may be wrong. So the next one, if there is one, must say so too, and nobody is believed
        that everything has ended beyond his own marker.
        """
        aborted: list[AbortedTransaction] = []
        is_complete = False
        for transaction in self:
            if transaction.last_offset >= fetch_offset and transaction.first_offset < upper_bound_offset:
                aborted.append(transaction)
            said_before = is_complete
            is_complete = min(transaction.last_stable_offset, transaction.last_offset + 1) >= upper_bound_offset
            if is_complete and said_before:
                break
        return aborted, is_complete


def encode_transaction_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The index bytes; the transactions must ascend by last offset, as abort markers do in the log."""
    return b"".join(_ENTRY.pack(_VERSION, *astuple(transaction)) for transaction in transactions)


def segment_transaction_index(data: bytes | bytearray, segment: RemoteLogSegmentMetadata) -> TransactionIndex:
    """The index, checked to be this segment's.

    Raises:
        CorruptObjectError: besides, an offset lies outside the segment: the index is some other segment's.
    """
    name = _name_of(segment)
    index = TransactionIndex(data, name)
    for aborted in index:
        if not segment.start_offset <= aborted.last_offset <= segment.end_offset:
            raise CorruptObjectError(f"{name}: a marker at offset {aborted.last_offset} lies outside the segment")
        if aborted.last_stable_offset > segment.end_offset + 1:
            raise CorruptObjectError(f"{name}: {aborted.last_stable_offset} was not stable in the segment")
    return index


def absent_transaction_index(error: RemoteResourceNotFoundError, segment: RemoteLogSegmentMetadata) -> TransactionIndex:
    """Return what it means that there is no object: no aborts.

    Raises:
        CorruptObjectError: it was lost.
    """
    if isinstance(error, IndexLostError):
        raise CorruptObjectError(f"{_name_of(segment)}: {error}") from error
    return TransactionIndex(b"")


def _name_of(segment: RemoteLogSegmentMetadata) -> str:
    return f"transaction index of {segment.segment_id}"
