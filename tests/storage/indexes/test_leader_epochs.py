"""The two small objects of a segment, leader epoch checkpoint and producer snapshot: content, and what is refused."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.indexes.leader_epochs import LeaderEpochs, encode_leader_epochs, parse_leader_epochs
from storage.indexes.producer_snapshot import ProducerState, encode_producer_snapshot, parse_producer_snapshot
from tests.support.cases import case


@st.composite
def lineages(draw: st.DrawFn) -> LeaderEpochs:
    epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=20)))
    starts = draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(epochs), max_size=len(epochs)))
    return tuple(zip(epochs, sorted(starts), strict=True))


@given(lineages())
def test_entries_and_text_are_each_others_inverse(epochs: LeaderEpochs) -> None:
    assert parse_leader_epochs(encode_leader_epochs(epochs)) == epochs


def test_a_brokers_checkpoint_is_read_and_written_and_a_cut_one_is_corrupt() -> None:
    assert parse_leader_epochs(b"0\n1\n0 4000\n") == ((0, 4000),)
    assert encode_leader_epochs([(0, 4000)]) == b"0\n1\n0 4000\n"
    shared = b"0\n3\n0 0\n1 0\n5 7\n"
    assert parse_leader_epochs(shared) == ((0, 0), (1, 0), (5, 7)), "epochs without records share a start offset"
    for cut in range(len(shared)):
        with case(cut), pytest.raises(CorruptObjectError):
            parse_leader_epochs(shared[:cut])


def test_malformed_checkpoints_are_corrupt() -> None:
    for text, message in [
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
    ]:
        with case(text, message), pytest.raises(CorruptObjectError) as caught:
            parse_leader_epochs(text, "x")
        assert message in str(caught.value)


# Snapshots that a broker wrote: of no producers, and of one with an open transaction from offset 6000.
BROKER_EMPTY = bytes.fromhex("0001 48674bc7 00000000")
BROKER_OPEN = bytes.fromhex(
    "0001 38d992b4 00000001"
    "0000000000000001 0000 000000c7 0000000000001837 000000c7 0000018bcfe58fd7 ffffffff 0000000000001770"
)
OPEN_STATE = ProducerState(
    producer_id=1,
    producer_epoch=0,
    last_sequence=199,
    last_offset=6199,
    offset_delta=199,
    last_timestamp_ms=1700000010199,
    coordinator_epoch=-1,
    current_transaction_first_offset=6000,
)
int16s, int32s, int64s = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
states = st.builds(ProducerState, int64s, int16s, int32s, int64s, int32s, int64s, int32s, int64s)


def with_checksum(version: int, checked: bytes) -> bytes:
    return struct.pack(">hI", version, crc32c(checked)) + checked


def test_a_brokers_snapshots_are_read_and_written() -> None:
    assert parse_producer_snapshot(BROKER_EMPTY) == ()
    assert encode_producer_snapshot([]) == BROKER_EMPTY
    assert parse_producer_snapshot(BROKER_OPEN) == (OPEN_STATE,)
    assert encode_producer_snapshot([OPEN_STATE]) == BROKER_OPEN


@given(st.lists(states, max_size=10))
def test_states_and_bytes_are_each_others_inverse(producers: list[ProducerState]) -> None:
    assert parse_producer_snapshot(encode_producer_snapshot(producers)) == tuple(producers)


def test_a_cut_or_damaged_snapshot_is_corrupt() -> None:
    for at in range(len(BROKER_OPEN)):
        with case("cut", at), pytest.raises(CorruptObjectError):
            parse_producer_snapshot(BROKER_OPEN[:at])
    for at in range(2, len(BROKER_OPEN)):
        damaged = bytearray(BROKER_OPEN)
        damaged[at] ^= 1
        with case("flipped", at), pytest.raises(CorruptObjectError, match="x: checksum at byte 2 does not match"):
            parse_producer_snapshot(bytes(damaged), "x")


def test_another_version_or_length_is_corrupt() -> None:
    for version, checked, told in (
        *[(version, bytes(4), f"x: version {version} at byte 0") for version in (0, 2, -1)],
        *[
            (1, struct.pack(">i", count), f"x: {count} entries at byte 6 do not fill 10 bytes")
            for count in (-1, 1, 2**31 - 1)
        ],
        (1, BROKER_OPEN[6:] + b"\x00", "do not fill 57 bytes"),
    ):
        with pytest.raises(CorruptObjectError, match=told):
            parse_producer_snapshot(with_checksum(version, checked), "x")
