"""Transaction index: entries, and the aborted transactions of a fetched range."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex, encode_transaction_index
from tests.support.cases import case

# A broker's entry (docs/kafka-tier.md#indexes): producer 1, first 6000, marker 6820, LSO 6821.
BROKER_BYTES = bytes.fromhex("0000 0000000000000001 0000000000001770 0000000000001aa4 0000000000001aa5")
BROKER_ENTRY = AbortedTransaction(producer_id=1, first_offset=6000, last_offset=6820, last_stable_offset=6821)

# Three overlapping transactions: LSO stays behind while the one from 10 is open.
OVERLAPPING = [
    AbortedTransaction(7, first_offset=20, last_offset=40, last_stable_offset=10),
    AbortedTransaction(8, first_offset=10, last_offset=50, last_stable_offset=51),
    AbortedTransaction(7, first_offset=60, last_offset=80, last_stable_offset=81),
]


@st.composite
def transactions(draw: st.DrawFn) -> list[AbortedTransaction]:
    last_offsets = sorted(draw(st.sets(st.integers(0, 2**62), max_size=20)))
    return [
        AbortedTransaction(
            producer_id=draw(st.integers(0, 2**63 - 1)),
            first_offset=draw(st.integers(0, last_offset)),
            last_offset=last_offset,
            last_stable_offset=draw(st.integers(0, 2**63 - 1)),
        )
        for last_offset in last_offsets
    ]


def test_a_brokers_entry_is_read_and_written() -> None:
    assert list(TransactionIndex(BROKER_BYTES)) == [BROKER_ENTRY]
    assert encode_transaction_index([BROKER_ENTRY]) == BROKER_BYTES


@given(transactions())
def test_entries_and_bytes_are_each_others_inverse(entries: list[AbortedTransaction]) -> None:
    index = TransactionIndex(encode_transaction_index(entries))
    assert len(index) == len(entries)
    assert list(index) == entries


def test_aborted_transactions_of_a_range() -> None:
    for fetch_offset, upper_bound_offset, first_offsets, complete in [
        (0, 5, [], True),  # LSO 10 of the first entry is beyond the range
        (0, 10, [], True),
        (0, 11, [10], True),
        (0, 21, [20, 10], True),
        (40, 51, [20, 10], True),  # a marker inside the range counts
        (41, 51, [10], True),
        (51, 81, [60], True),
        (51, 82, [60], False),  # beyond the last entry: the next segment's index may hold more
        (81, 200, [], False),
        (0, 200, [20, 10, 60], False),
    ]:
        index = TransactionIndex(encode_transaction_index(OVERLAPPING))
        aborted, is_complete = index.collect_aborted(fetch_offset, upper_bound_offset)
        assert [transaction.first_offset for transaction in aborted] == first_offsets
        assert is_complete is complete


def test_a_cut_entry_is_corrupt() -> None:
    for cut in range(1, 34):
        with pytest.raises(CorruptObjectError, match=f"x: {cut} bytes is not a multiple of 34"):
            TransactionIndex(BROKER_BYTES[:cut], "x")


def test_impossible_entries_are_corrupt() -> None:
    for entry, message in [
        ((1, 1, 7000, 7001, 7002), "x: version 1 at byte 34, only 0 is known"),
        ((0, 1, 7001, 7000, 7002), "x: impossible offsets at byte 34"),
        ((0, 1, -1, 7000, 7002), "x: impossible offsets at byte 34"),
        ((0, 1, 7000, 7001, -1), "x: impossible offsets at byte 34"),
        ((0, 1, 6000, 6820, 6821), "x: last offset does not ascend at byte 34"),
    ]:
        with case(entry, message), pytest.raises(CorruptObjectError) as caught:
            TransactionIndex(BROKER_BYTES + struct.pack(">hqqqq", *entry), "x")
        assert str(caught.value) == message
