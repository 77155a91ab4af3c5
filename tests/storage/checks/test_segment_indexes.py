"""Indexes by themselves, and the leader epoch checkpoint against the metadata."""

from dataclasses import replace

import pytest

from storage.checks.finding import FindingKind
from storage.checks.segment_check import SegmentIndexes, leader_epochs_problem
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from tests.support.index_writer import encode_transaction_index
from tests.support.opened_bytes import OpenedBytes
from tests.support.segments import filled_segment, metadata_of, topic_partition

SEGMENT = filled_segment(100)
METADATA = replace(metadata_of(topic_partition(), SEGMENT), segment_leader_epochs={3: 100, 5: 150})
NAMES = {index_type: f"a.{index_type.value}" for index_type in IndexType}


def no_wait(seconds: float) -> None:
    """Nothing."""


def loaded(contents: dict[IndexType, bytes | Exception]) -> SegmentIndexes:
    def fetch(index_type: IndexType) -> bytes:
        content = contents[index_type]
        if isinstance(content, Exception):
            raise content
        return content

    indexes = SegmentIndexes(METADATA, NAMES)
    for index_type in contents:
        indexes.load(OpenedBytes(METADATA, lambda: b"", fetch), index_type, no_wait)
    return indexes


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CorruptObjectError("tag"), FindingKind.INDEX),
        (RemoteResourceNotFoundError("none"), FindingKind.INDEX_MISSING),
    ],
)
def test_an_index_that_cannot_be_read_is_found_with_its_object(error: Exception, kind: FindingKind) -> None:
    (finding,) = loaded({IndexType.OFFSET: error}).findings
    assert (finding.kind, finding.object_name) == (kind, "a.index")
    assert finding.detail.startswith("OFFSET")


def test_several_that_cannot_be_read_and_none_that_can_are_the_objects_fault() -> None:
    broken: dict[IndexType, bytes | Exception] = {
        IndexType.OFFSET: b"x",
        IndexType.TIMESTAMP: CorruptObjectError("tag"),
    }
    assert loaded(broken).none_readable
    assert not loaded({IndexType.OFFSET: b"x"}).none_readable
    assert not loaded({**broken, IndexType.LEADER_EPOCH: SEGMENT.leader_epoch_checkpoint}).none_readable
    assert loaded({**broken, IndexType.TRANSACTION: b""}).none_readable, "an empty one tells nothing"
    indexes = loaded(broken)
    indexes.forget("all of it")
    assert [finding.detail for finding in indexes.conclude()] == ["all of it"]


def test_the_walk_goes_on_by_an_offset_index_that_can_be_read() -> None:
    index = loaded({IndexType.OFFSET: SEGMENT.offset_index}).offset_index
    assert index is not None
    assert len(index)
    assert loaded({IndexType.OFFSET: SEGMENT.offset_index + b"x"}).offset_index is None


def test_entries_of_an_index_that_the_metadata_call_empty_are_found() -> None:
    index = encode_transaction_index([AbortedTransaction(1, 100, 101, 102)])
    assert METADATA.txn_index_empty
    (finding,) = loaded({IndexType.TRANSACTION: index}).findings
    assert "the metadata says that it is empty" in finding.detail


@pytest.mark.parametrize(
    "checkpoint",
    [((3, 100), (5, 150)), ((3, 40), (5, 150)), ((0, 0), (1, 20), (3, 90), (5, 150)), ((2, 100), (3, 100), (5, 150))],
)
def test_a_checkpoint_ends_with_the_segments_epochs(checkpoint: tuple[tuple[int, int], ...]) -> None:
    assert leader_epochs_problem(checkpoint, METADATA) is None


@pytest.mark.parametrize(
    ("checkpoint", "told"),
    [
        ((), "no epoch 3"),
        (((3, 100),), "no epoch 5"),
        (((3, 101), (5, 150)), "epoch 3 begins at offset 101"),
        (((3, 100), (5, 149)), "epoch 5 begins at offset 149"),
        (((3, 100), (5, 150), (6, 200)), "epoch 6 from offset 200"),
        (((3, 100), (5, 150), (6, 10_000)), "the segment ends at"),
        (((3, 100), (4, 120), (5, 150)), "epoch 4 from offset 120"),
    ],
)
def test_a_checkpoint_of_something_else_is_found(checkpoint: tuple[tuple[int, int], ...], told: str) -> None:
    assert told in str(leader_epochs_problem(checkpoint, METADATA))
