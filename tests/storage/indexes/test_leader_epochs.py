"""Leader epoch checkpoint: its text, and texts that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.indexes.leader_epochs import LeaderEpochs, parse_leader_epochs
from tests.support.index_writer import encode_leader_epochs


@st.composite
def lineages(draw: st.DrawFn) -> LeaderEpochs:
    epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=20)))
    starts = draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(epochs), max_size=len(epochs)))
    return tuple(zip(epochs, sorted(starts), strict=True))


@given(lineages())
def test_entries_and_text_are_each_others_inverse(epochs: LeaderEpochs) -> None:
    assert parse_leader_epochs(encode_leader_epochs(epochs)) == epochs


def test_a_brokers_checkpoint_is_read_and_written() -> None:
    assert parse_leader_epochs(b"0\n1\n0 4000\n") == ((0, 4000),)
    assert encode_leader_epochs([(0, 4000)]) == b"0\n1\n0 4000\n"


def test_epochs_without_records_share_a_start_offset() -> None:
    assert parse_leader_epochs(b"0\n3\n0 0\n1 0\n5 7\n") == ((0, 0), (1, 0), (5, 7))


@pytest.mark.parametrize("cut", range(len(b"0\n2\n0 0\n3 4000\n")))
def test_a_cut_checkpoint_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptObjectError):
        parse_leader_epochs(b"0\n2\n0 0\n3 4000\n"[:cut])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "x: line 1 is not version 0, or there is no line 2"),
        (b"\n", "x: line 1 is not version 0"),
        (b"1\n0\n", "x: line 1 is not version 0"),
        (b"0\n", "there is no line 2"),
        (b"0\n2\n0 0\n", "x: line 2 is not the number of entries, 1"),
        (b"0\n0\n0 0\n", "x: line 2 is not the number of entries, 1"),
        (b"0\n-1\n", "x: line 2 is not the number of entries"),
        (b"0\n99999999999999999999\n0 0\n", "x: line 2 is not the number of entries"),
        (b"0\none\n0 0\n", "x: line 2 is not the number of entries"),
        (b"0\n1\n0 0\n\n", "x: line 2 is not the number of entries"),
        (b"0\n1\n0 0", "x: the last line, at byte 7, does not end with a newline"),
        (b"0\n1\n0\n", "x: line 3 is not an epoch and a start offset"),
        (b"0\n1\n0 0 0\n", "x: line 3 is not"),
        (b"0\n1\n0  0\n", "x: line 3 is not"),
        (b"0\n1\n-1 0\n", "x: line 3 is not"),
        (b"0\n1\n2147483648 0\n", "x: line 3 is not"),
        (b"0\n1\n0 9223372036854775808\n", "x: line 3 is not"),
        (b"0\n1\n0 0\r\n", "x: line 3 is not"),
        (b"0\n2\n1 0\n1 5\n", "x: line 4 does not ascend"),
        (b"0\n2\n1 5\n2 4\n", "x: line 4 does not ascend"),
        (b"0\n1\n0 \xff\n", "x: not ASCII at byte 6"),
    ],
)
def test_malformed_checkpoints_are_corrupt(text: bytes, message: str) -> None:
    with pytest.raises(CorruptObjectError) as caught:
        parse_leader_epochs(text, "x")
    assert message in str(caught.value)


@given(st.one_of(st.binary(max_size=40), st.text("0123 \n", max_size=40).map(str.encode)))
def test_any_bytes_give_entries_or_a_corrupt_object(data: bytes) -> None:
    try:
        epochs = parse_leader_epochs(data)
    except CorruptObjectError:
        return
    assert parse_leader_epochs(encode_leader_epochs(epochs)) == epochs
