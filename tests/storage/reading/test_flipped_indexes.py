"""A bit of an index is wrong, and no format tells: it is refused, changes no answer, or is found against the log."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from storage.checks.index_audit import leader_epochs_problem
from storage.errors import CorruptObjectError
from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.producer_snapshot import ProducerState, encode_producer_snapshot, parse_producer_snapshot
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from tests.support.flipped_indexes import FlippedIndexes, Outcome
from tests.support.segments import (
    ProducerFields,
    SyntheticSegment,
    build_segment,
    control_batch,
    data_batch,
    metadata_of,
)
from tests.support.tier import PARTITION

EVERY = 31
"""So many flips are left out but for one; tests/storage/all does them all."""

EVENTS = "d7 d7 a7 n d8 d7 c8 d9 a7 d7 a9 | d8 a7 d7 n d7 a8 c7 d7 a7"
"""A record or a marker each, of segments: data, abort and commit of a producer, and what is of none."""


def small_segments() -> list[SyntheticSegment]:
    offset, opened, segments = 0, dict[int, int](), []
    for part in EVENTS.split("|"):
        batches, aborted = [], []
        for event in part.split():
            producer_id = int(event[1:] or -1)
            if event[0] in "dn":
                producer = ProducerFields(producer_id, 0, 0, event[0] == "d")
                batches.append(data_batch(offset, producer=producer))
                if event[0] == "d":
                    opened.setdefault(producer_id, offset)
            else:
                first = opened.pop(producer_id)
                batches.append(control_batch(offset, producer_id=producer_id, commit=event[0] == "c"))
                if event[0] == "a":
                    stable = min(opened.values(), default=offset + 1)
                    aborted.append(AbortedTransaction(producer_id, first, offset, stable))
            offset += 1
        states = [ProducerState(each, 0, 0, offset - 1, 0, 0, 0, first) for each, first in opened.items()]
        segments.append(build_segment(batches, aborted=aborted, producers=states, interval_bytes=0))
    return segments


async def test_no_flip_of_an_index_changes_an_answer(nursery: trio.Nursery) -> None:
    """Failed before: half of the flips of a transaction index changed what a consumer saw, without a word, and some of
    a time index what a look-up found. What is said about a transaction in another segment is found with that one."""
    segments = small_segments()
    flips = FlippedIndexes(nursery, [(metadata_of(PARTITION, each), each.objects()) for each in segments])
    for number, segment in enumerate(segments):
        for index_type in (IndexType.TRANSACTION, IndexType.TIMESTAMP, IndexType.OFFSET):
            bits = range(8 * len(segment.objects()[index_type.value]))
            counts = await flips.outcomes(number, index_type, bits[(number + 3) % EVERY :: EVERY])
            assert counts[Outcome.CHANGED] == 0, (number, index_type)
            assert counts[Outcome.FOUND] > 0, (number, index_type)
            assert counts[Outcome.LATER] == 0 or (number, index_type) == (1, IndexType.TRANSACTION)


def test_no_flip_of_the_other_indexes_is_believed() -> None:
    for segment in small_segments():
        states = [ProducerState(7, 0, 3, 9, 0, 0, 0, 5)]
        snapshot, epochs = encode_producer_snapshot(states), segment.leader_epoch_checkpoint
        for flipped in flips_of(snapshot):
            with pytest.raises(CorruptObjectError):
                parse_producer_snapshot(flipped)
        metadata = metadata_of(PARTITION, segment)
        assert leader_epochs_problem(parse_leader_epochs(epochs), metadata) is None
        for flipped in flips_of(epochs):
            with suppress(CorruptObjectError):
                problem = leader_epochs_problem(parse_leader_epochs(flipped), metadata)
                # A first epoch may have begun before the segment; nobody asks an answer of where.
                assert problem is not None or flipped[4] == epochs[4], flipped


def flips_of(content: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
