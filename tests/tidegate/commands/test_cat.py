"""Which records `cat` gives: over transactions, branches that were cut, holes and damage."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.log.whole_records import WholeRecord
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.checked_tier import PARTITION, SEGMENTS, CheckedTier, local_tier
from tests.support.segments import build_segment, data_batch, publish
from tests.support.tier import catalog_of
from tidegate.commands.cat import CatOptions, Records, record_fields
from tidegate.commands.selection import Place

EVERYTHING = CatOptions(place=Place("orders", 0))


def records(
    manager: RemoteStorageManager,
    segments: Sequence[RemoteLogSegmentMetadata],
    options: CatOptions = EVERYTHING,
    note: Callable[[str], None] = print,
) -> Records:
    return Records(manager, catalog_of(segments), PARTITION, options, note)


def offsets(tier: CheckedTier, options: CatOptions = EVERYTHING) -> list[int]:
    return [each.offset for each in records(tier.manager, tier.metadatas, options)]


def transactional() -> tuple[list[int], list[int]]:
    """The second segment's offsets without its markers, and of these the committed ones: each third of the groups of
    six records and a marker, beginning with the first; the last marker ends a transaction of before."""
    start, end = SEGMENTS[1].base_offset, SEGMENTS[1].end_offset
    every = [offset for offset in range(start, end) if (offset - start) % 7 != 6]
    return every, [offset for offset in every if (offset - start) // 7 % 3 == 0]


def test_control_records_are_left_out_and_aborted_ones_if_it_is_wanted(tmp_path: Path) -> None:
    tier = local_tier(tmp_path)
    every, committed = transactional()
    around = [*range(SEGMENTS[0].end_offset + 1)], [*range(SEGMENTS[2].base_offset, SEGMENTS[2].end_offset + 1)]
    assert offsets(tier) == [*around[0], *every, *around[1]]
    found = records(tier.manager, tier.metadatas, replace(EVERYTHING, read_committed=True))
    assert [each.offset for each in found] == [*around[0], *committed, *around[1]]
    assert not found.has_open_end


def test_of_a_branch_that_was_cut_only_what_comes_before_the_cut_is_given(tmp_path: Path) -> None:
    """Epoch 0 went on to offset 9 on a broker that was lost; epoch 1 began at 6. Then a hole."""
    made = [
        build_segment([data_batch(0, record_count=10)], lineage=[(0, 0)]),
        build_segment([data_batch(6, record_count=6, leader_epoch=1)], lineage=[(0, 0), (1, 6)]),
        build_segment([data_batch(20, record_count=2, leader_epoch=1)], lineage=[(0, 0), (1, 6)]),
    ]
    segments = [publish(tmp_path, PARTITION, each) for each in made]
    manager = LocalTieredStorage({"dir": str(tmp_path)})
    notes: list[str] = []
    found = records(manager, segments, note=notes.append)
    assert [each.offset for each in found] == [*range(12), 20, 21]
    assert notes == ["offsets 12 to 19 are in no segment of the tier"]


def test_offsets_that_are_left_out_are_said(tmp_path: Path) -> None:
    """Failed before: what was missing at the beginning was not."""
    made = [build_segment([data_batch(first, record_count=10)]) for first in (20, 40)]
    segments = [publish(tmp_path, PARTITION, each) for each in made]
    manager = LocalTieredStorage({"dir": str(tmp_path)})
    old, new = (each.max_timestamp_ms for each in segments)
    for options, left_out in (
        (EVERYTHING, ["0 to 19", "30 to 39"]),
        (replace(EVERYTHING, from_offset=10, to_offset=35), ["10 to 19", "30 to 35"]),
        (replace(EVERYTHING, from_offset=32), ["32 to 39"]),
        (replace(EVERYTHING, from_offset=40), []),
        (replace(EVERYTHING, from_offset=20, to_offset=29), []),
        (replace(EVERYTHING, from_timestamp_ms=old), ["0 to 19", "30 to 39"]),
        (replace(EVERYTHING, from_timestamp_ms=max(old, new) + 1), []),
    ):
        notes: list[str] = []
        list(records(manager, segments, options, notes.append))
        assert notes == [f"offsets {each} are in no segment of the tier" for each in left_out], options


def test_dead_segments_are_given_whole_and_by_themselves(tmp_path: Path) -> None:
    """Epoch 2 was elected without 6 to 13, of which epochs 0 and 1 had two branches; of the first segment half is left.
    Failed before: nothing gave these records."""
    made = [
        build_segment([data_batch(0, record_count=10)], lineage=[(0, 0)]),
        build_segment([data_batch(10, record_count=4)], lineage=[(0, 0)]),
        build_segment([data_batch(8, record_count=3, leader_epoch=1)], lineage=[(1, 8)]),
        build_segment([data_batch(6, record_count=9, leader_epoch=2)], lineage=[(2, 6)]),
    ]
    segments = [publish(tmp_path, PARTITION, each) for each in made]
    manager = LocalTieredStorage({"dir": str(tmp_path)})
    notes: list[str] = []
    dead = replace(EVERYTHING, dead=True)
    assert [each.offset for each in records(manager, segments, dead, notes.append)] == [8, 9, 10, 10, 11, 12, 13]
    assert [note.partition(", leader ")[2] for note in notes] == [
        "epochs 1, offsets 8 to 10:",
        "epochs 0, offsets 10 to 13:",
    ]
    some = replace(dead, from_offset=10, to_offset=12)
    assert [each.offset for each in records(manager, segments, some)] == [10, 10, 11, 12]
    assert [each.offset for each in records(manager, segments)] == [*range(15)]
    assert list(records(manager, segments[:2], dead)) == []


def test_a_corrupt_batch_is_left_out_and_said(tmp_path: Path) -> None:
    tier = local_tier(tmp_path)
    path = tier.path(tier.metadatas[0], "log")
    log = bytearray(path.read_bytes())
    log[SEGMENTS[0].batch_positions[1] + 70] ^= 1
    path.write_bytes(log)
    notes: list[str] = []
    found = records(tier.manager, tier.metadatas, replace(EVERYTHING, to_offset=20), notes.append)
    first, second = (int.from_bytes(SEGMENTS[0].batches[number][:8]) for number in (1, 2))
    assert [each.offset for each in found] == [*range(first), *range(second, 21)]
    assert found.corrupt_batches == 1
    assert "its CRC is wrong; `tidegate verify` tells all" in notes[0]


def test_fields_are_text_where_they_can_be() -> None:
    record = WholeRecord(3, -1, b"\xff", None, (("h", b"\xfe"), ("h", None), ("h", "é".encode())))
    assert record_fields(PARTITION, record) == {
        "topic": "orders",
        "partition": 0,
        "offset": 3,
        "timestamp_ms": -1,
        "timestamp": None,
        "key": "/w==",
        "key_encoding": "base64",
        "value": None,
        "headers": [
            {"key": "h", "value": "/g==", "value_encoding": "base64"},
            {"key": "h", "value": None},
            {"key": "h", "value": "é"},
        ],
    }
