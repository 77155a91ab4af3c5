"""The snapshot's file: whole or not used, and in the way of nobody. Its bytes: what was put is taken, in pieces, and no
length is believed."""

import io
import os
import struct
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.metadata import snapshot_stream
from storage.metadata.catalog import Catalog
from storage.metadata.snapshot import FORMAT_VERSION, Snapshot, SnapshotFile, SnapshotOrigin
from storage.metadata.snapshot_stream import (
    PIECE_BYTES,
    ForeignSnapshotError,
    OlderSnapshotError,
    SnapshotOutOfRangeError,
    SnapshotReader,
    SnapshotWriter,
    UnreadableSnapshotError,
)
from tests.support.catalog_answers import answers
from tests.support.for_each import for_each
from tests.support.metadata_records import apply_all, finish, named_partition, started

ORIGIN = SnapshotOrigin("cluster-é", b"metadata-topic-1", 3, 100)
VERSION_AT = 8


def filled(segments: int = 3, segments_max: int = 100) -> Catalog:
    catalog = Catalog(segments_max)
    finish(catalog, *(started(f"s{number}", 10 * number, 10 * number + 9) for number in range(segments)))
    return catalog


def snapshot_of(catalog: Catalog, origin: SnapshotOrigin = ORIGIN) -> Snapshot:
    return Snapshot(origin, (3, 0, 2**40), 1_700_000_000_000, catalog.contents())


@pytest.fixture
def file(tmp_path: Path) -> SnapshotFile:
    return SnapshotFile(tmp_path / "cache" / "catalog")


def keep(file: SnapshotFile, snapshot: Snapshot) -> int:
    size_bytes = file.draft(snapshot)
    file.keep_draft()
    return size_bytes


def test_what_was_kept_is_read(file: SnapshotFile) -> None:
    catalog = filled()
    assert file.read() is None
    assert keep(file, snapshot_of(catalog)) == file.path.stat().st_size
    found = file.read()

    assert found is not None
    assert (found.origin, found.next_offsets, found.written_at_ms) == (ORIGIN, (3, 0, 2**40), 1_700_000_000_000)
    other = Catalog(100)
    other.adopt(found.contents)
    assert answers(other) == answers(catalog)


def test_a_draft_that_fails_leaves_nothing(file: SnapshotFile) -> None:
    def stop() -> None:
        raise OSError("no space")

    keep(file, snapshot_of(filled(1)))
    with pytest.raises(OSError, match="no space"):
        file.draft(snapshot_of(filled(2)), stop)
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    with pytest.raises(FileNotFoundError):
        file.keep_draft()
    assert file.read() is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_cut_short_or_changed_anywhere_is_unreadable(file: SnapshotFile, data: st.DataObject) -> None:
    keep(file, snapshot_of(filled()))
    content = bytearray(file.path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        # The version is another matter: see below.
        position = data.draw(st.integers(0, len(content) - 1).filter(lambda at: not 8 <= at < 12))
        content[position] ^= data.draw(st.integers(1, 255))
    file.path.write_bytes(content)
    with pytest.raises(UnreadableSnapshotError):
        file.read()


def test_contents_that_only_a_fault_can_have_written_are_unreadable(file: SnapshotFile) -> None:
    keep(file, snapshot_of(filled()))
    content = file.path.read_bytes()[:-4].replace("cluster-é".encode(), b"cluster-\xff\xff")
    file.path.write_bytes(content + struct.pack("<I", crc32c(content)))
    with pytest.raises(UnreadableSnapshotError, match="no catalog"):
        file.read()


@for_each("version, error", [(FORMAT_VERSION - 1, OlderSnapshotError), (FORMAT_VERSION + 1, UnreadableSnapshotError)])
def test_another_format_is_named(file: SnapshotFile, version: int, error: type[Exception]) -> None:
    keep(file, snapshot_of(filled()))
    content = bytearray(file.path.read_bytes())
    content[VERSION_AT : VERSION_AT + 4] = struct.pack("<I", version)
    file.path.write_bytes(content)
    with pytest.raises(error, match=f"format {version}"):
        file.read()


def test_what_is_no_file_of_ours_is_not_read(file: SnapshotFile, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(file, snapshot_of(filled()))
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(UnreadableSnapshotError, match="user"):
        file.read()
    monkeypatch.undo()
    file.path.rename(file.path.with_name("elsewhere"))
    file.path.symlink_to("elsewhere")
    with pytest.raises(OSError, match=r"."):
        file.read()


def test_a_bad_one_is_set_aside_and_one_such_is_kept(file: SnapshotFile) -> None:
    for segments in (1, 2):
        size_bytes = keep(file, snapshot_of(filled(segments)))
        aside = file.set_aside()
        assert (aside.name, aside.stat().st_size) == ("catalog.snapshot.bad", size_bytes)
        assert [path.name for path in file.path.parent.iterdir()] == [aside.name]
    assert file.read() is None


@for_each(
    "now, reason",
    [
        (replace(ORIGIN, cluster_id="other"), "of cluster cluster-é, this is other"),
        (replace(ORIGIN, topic_id=bytes(16)), "this is AAAAAAAAAAAAAAAAAAAAAA"),
        (replace(ORIGIN, partition_count=4), "of 3 metadata partitions, now there are 4"),
        (replace(ORIGIN, segments_max=2), "catalog.segments.max"),
    ],
)
def test_a_foreign_one_says_what_is_foreign(now: SnapshotOrigin, reason: str) -> None:
    snapshot = snapshot_of(filled())
    snapshot.check_origin(ORIGIN)
    snapshot.check_origin(replace(ORIGIN, segments_max=3))
    snapshot.check_origin(replace(ORIGIN, segments_max=1000))
    with pytest.raises(ForeignSnapshotError, match=reason):
        snapshot.check_origin(now)


def test_partitions_that_were_left_out_need_the_topic_under_another_limit() -> None:
    full = filled(3, segments_max=3)
    apply_all(full, started("x", 0, 9, partition=named_partition("left out")))
    assert full.refused_partitions == 1
    snapshot = snapshot_of(full, replace(ORIGIN, segments_max=3))
    snapshot.check_origin(replace(ORIGIN, segments_max=3))
    with pytest.raises(ForeignSnapshotError, match="left out 1 partitions, now it is 100"):
        snapshot.check_origin(ORIGIN)


@for_each(
    "ranges, reason",
    [
        ({0: (4, 9), 1: (0, 0), 2: (0, 2**40)}, "partition 0, which begins at 4: the records between are lost"),
        ({0: (0, 3), 1: (0, 0), 2: (0, 2**40 - 1)}, "partition 2, which ends at 1099511627775"),
    ],
)
def test_a_log_that_does_not_go_on_from_it_is_named(ranges: dict[int, tuple[int, int]], reason: str) -> None:
    snapshot = snapshot_of(filled())
    snapshot.check_range({0: (3, 3), 1: (0, 0), 2: (2**40, 2**41)})
    with pytest.raises(SnapshotOutOfRangeError, match=reason):
        snapshot.check_range(ranges)


PAIR = struct.Struct("<iq")


def written(*, blob: bytes = b"", values: "array[int] | None" = None) -> bytes:
    file = io.BytesIO()
    writer = SnapshotWriter(file, lambda: None)
    writer.put_numbers(PAIR, 7, -1)
    writer.put_bytes(blob)
    writer.put_array(array("q") if values is None else values)
    assert writer.finish() == len(file.getvalue())
    return file.getvalue()


def reader_of(content: bytes) -> SnapshotReader:
    return SnapshotReader(io.BytesIO(content), len(content) - 4)


@given(st.binary(max_size=100), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_what_was_put_is_taken(blob: bytes, values: list[int]) -> None:
    reader = reader_of(written(blob=blob, values=array("q", values)))
    assert reader.take_numbers(PAIR) == (7, -1)
    assert reader.take_bytes() == blob
    assert reader.take_array("q") == array("q", values)
    reader.finish()


@for_each("size", [PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5])
def test_large_parts_go_in_pieces_and_come_back_whole(size: int) -> None:
    blob, values = bytes(range(251)) * (size // 251), array("i", range(size // 4))
    reader = reader_of(written(blob=blob, values=values))
    reader.take_numbers(PAIR)
    assert reader.take_buffer() == blob
    assert reader.take_array("i") == values
    reader.finish()


def test_numbers_are_little_endian_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(values=array("q", [1]))[-12:-4] == (1).to_bytes(8, "little")
    monkeypatch.setattr(snapshot_stream, "_IS_BIG_ENDIAN", sys.byteorder == "little")
    content = written(values=array("q", [1]))
    assert content[-12:-4] == (1).to_bytes(8, "big")
    reader = reader_of(content)
    reader.take_numbers(PAIR)
    reader.take_bytes()
    assert reader.take_array("q") == array("q", [1])


@for_each("take", ["take_bytes", "take_buffer"])
def test_a_length_beyond_the_file_is_refused_before_room_is_made(take: str) -> None:
    content = struct.pack("<Q", 2**62) + bytes(100)
    with pytest.raises(UnreadableSnapshotError, match="left"):
        getattr(reader_of(content), take)()
    with pytest.raises(UnreadableSnapshotError, match="left"):
        reader_of(content).take_array("q")


def test_nothing_may_be_left() -> None:
    with pytest.raises(UnreadableSnapshotError, match="too many"):
        reader_of(bytes(10)).finish()
