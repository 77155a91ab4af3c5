"""`tidegate gc` over a fake broker and a tier in a folder: what an orphan is, and each reason to delete nothing."""

import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.errors import RemoteAccessDeniedError
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.formats.segment_files import partition_directory_name, segment_object_name
from storage.metadata.catalog import Catalog
from storage.metadata.snapshot import Snapshot, SnapshotFile, SnapshotOrigin
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from storage.object_store.files.store import FileSystemStore
from tests.support.command_world import METADATA_TOPIC_ID, CommandWorld
from tests.support.metadata_records import (
    COPY_FINISHED,
    DELETE_FINISHED,
    DELETE_STARTED,
    PARTITION,
    moved,
    named_partition,
    started,
)
from tidegate import exit_codes
from tidegate.commands import gc, metadata_records
from tidegate.commands.gc import GcOptions

Captured = pytest.CaptureFixture[str]

DAY_MS = 86_400_000
OLD_S = 1_600_000_000
KEPT = 5
"""Finished segments, of four objects each: one orphan beside them is 4.8 %."""
TEMPORARY = ".tidegate-0123456789abcdef.tmp"


class World(CommandWorld):
    """A tier of KEPT finished segments and what a test adds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        for number in range(KEPT):
            self.add(started(f"kept {number}", number * 10, number * 10 + 9), COPY_FINISHED)

    def add(self, segment: RemoteLogSegmentMetadata, *states: RemoteLogSegmentState) -> None:
        """A segment's objects, old ones, and its records."""
        self.copy(segment, log=bytes(segment.segment_size_bytes))
        for path in self.root.rglob("*"):
            os.utime(path, (OLD_S, OLD_S))
        self.publish(segment, *(moved(segment, state) for state in states))

    def put(self, name: str, *, partition: TopicIdPartition = PARTITION, at_s: float = OLD_S) -> str:
        """One object that no record names; its name."""
        key = f"{partition_directory_name(partition)}/{segment_object_name(started(name, 0, 9), 'log')}"
        return self.put_file(key, at_s)

    def put_file(self, key: str, at_s: float = OLD_S) -> str:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"nobody's")
        os.utime(path, (at_s, at_s))
        return str(path)

    def run(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        """Exit code and document; without one, an empty one."""
        given: dict[str, Any] = {"plan": None, "deletes": False, "i_own_this_tier": True}
        options = GcOptions(**{"older_than_ms": DAY_MS, "orphan_percent_max": 5, **given, **changes})
        out = io.StringIO()
        code = gc.run(self.config(), options, out, is_json=True)
        return code, json.loads(out.getvalue() or "{}")

    def planned(self, **changes: Any) -> Path:
        """A plan that names what is an orphan now."""
        plan = self.folder / "plan.json"
        code, document = self.run(plan=plan, **changes)
        assert (code, document["refusals"]) == (exit_codes.DONE, [])
        return plan

    def files(self) -> set[str]:
        return {str(path) for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def names(document: dict[str, Any]) -> list[str]:
    return [each["name"] for each in document["orphans"]]


def test_an_orphan_is_planned_and_deleted_by_the_plan_alone(world: World) -> None:
    orphan, before = world.put("orphan"), world.files()
    code, document = world.run()
    assert (code, names(document), document["refusals"]) == (exit_codes.DONE, [orphan], [])
    assert document["objects"]["referred"]["count"] == 4 * KEPT
    plan = world.planned()
    assert world.files() == before
    later = world.put("came after the plan")
    code, document = world.run(plan=plan, deletes=True, orphan_percent_max=100)
    assert (code, document["deleted_objects"], document["deleted_bytes"]) == (exit_codes.DONE, 1, len(b"nobody's"))
    assert world.files() == before - {orphan} | {later}


def test_what_may_be_somebodys_is_left_alone(world: World) -> None:
    """An id that any record names, in whatever state; what is young; what no record of this cluster speaks of."""
    world.add(started("under way", 100, 109))
    world.add(started("being deleted", 110, 119), COPY_FINISHED, DELETE_STARTED)
    forgotten = named_partition("orders", 1)
    world.add(started("of a partition that went", 0, 9, partition=forgotten), COPY_FINISHED)
    world.publish(RemotePartitionDeleteMetadata(forgotten, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED, 1, 1))
    world.put("young", at_s=time.time())
    world.put("foreign", partition=named_partition("of-another-cluster"))
    world.put_file("README.md")
    world.put_file(f"{partition_directory_name(PARTITION)}/notes.txt")
    code, document = world.run()
    assert (code, names(document), document["refusals"]) == (exit_codes.DONE, [], [])
    counts = {standing: found["count"] for standing, found in document["objects"].items()}
    assert counts == {"orphan": 0, "referred": 4 * (KEPT + 3), "young": 1, "foreign": 1, "strange": 2}


def test_what_was_deleted_and_is_still_there_is_an_orphan(world: World) -> None:
    world.add(started("deleted", 100, 109), COPY_FINISHED, DELETE_STARTED, DELETE_FINISHED)
    code, document = world.run(orphan_percent_max=50)
    assert (code, len(names(document))) == (exit_codes.DONE, 4)
    assert {Path(name).suffix for name in names(document)} >= {".log", ".index"}


def test_leftovers_of_a_crash_go_when_they_are_old(world: World) -> None:
    folder = partition_directory_name(PARTITION)
    old = world.put_file(f"{folder}/{TEMPORARY}")
    world.put_file(f"{folder}/{TEMPORARY.replace('0', '1')}", time.time())
    plan = world.planned()
    code, document = world.run(plan=plan, deletes=True)
    assert (code, document["aborted_uploads"]) == (exit_codes.DONE, 1)
    assert not Path(old).exists()
    assert sum(path.endswith(".tmp") for path in world.files()) == 1


def test_what_has_changed_since_the_plan_is_left_alone(world: World) -> None:
    def replaced(orphan: str) -> None:
        Path(orphan).write_bytes(b"other bytes")
        os.utime(orphan, (OLD_S, OLD_S))

    changes: list[Callable[[str], object]] = [
        replaced,
        lambda orphan: os.utime(orphan, (OLD_S + 10, OLD_S + 10)),
        lambda orphan: Path(orphan).unlink(),
        lambda orphan: world.publish(started("orphan", 0, 9)),
    ]
    for number, change in enumerate(changes):
        orphan = world.put("orphan")
        plan = world.planned()
        change(orphan)
        before = world.files()
        code, document = world.run(plan=plan, deletes=True)
        found = code, document["deleted_objects"], document["changed_since_plan"]
        assert found == (exit_codes.DONE, 0, 1), number
        assert world.files() == before, number


def test_an_upload_that_begins_while_it_looks_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record comes after the listing and before the deletion, and the object is as old as a clock may be wrong."""
    orphan = world.put("orphan")
    plan = world.planned()
    listing = gc._list

    def list_then_begin(*given: Any) -> None:
        listing(*given)
        world.publish(started("orphan", 0, 9))

    monkeypatch.setattr(gc, "_list", list_then_begin)
    code, document = world.run(plan=plan, deletes=True)
    assert (code, document["deleted_objects"], document["changed_since_plan"]) == (exit_codes.DONE, 0, 1)
    assert Path(orphan).exists()


def _move(world: World) -> None:
    (world.folder / "other").mkdir()
    world.root.rename(world.folder / "other" / ROOT_DIRECTORY_NAME)
    world.put("orphan")


def _snapshot(world: World, cluster_id: str, topic_id: bytes) -> None:
    """Leave what a `serve` of the same file leaves."""
    folder = world.folder / "snapshot"
    folder.mkdir()
    file = SnapshotFile(folder)
    file.draft(Snapshot(SnapshotOrigin(cluster_id, topic_id, 1, 100), (0,), 0, Catalog().contents()))
    file.keep_draft()
    world.lines = f"catalog.snapshot.path={folder}\n"


SPOILT: dict[str, Callable[[World], object]] = {
    "none of 5 finished segments has an object here": _move,
    "a record of the metadata topic cannot be decoded (0/10: ": lambda world: world.publish(b"\x09\x09\x09"),
    "9.1 % of the objects are orphans, more than 5 %": lambda world: world.put("another orphan"),
    "more segments than catalog.segments.max": lambda world: setattr(
        world, "lines", f"catalog.segments.max={KEPT - 1}\n"
    ),
    "is of cluster another, and these brokers are of fake": lambda world: _snapshot(
        world, "another", METADATA_TOPIC_ID
    ),
    "is of metadata topic": lambda world: _snapshot(world, "fake", b"another topic id"),
}


@pytest.mark.parametrize("why", SPOILT)
def test_a_listing_that_looks_wrong_deletes_nothing(world: World, why: str) -> None:
    world.put("orphan")
    plan = world.planned()
    SPOILT[why](world)
    before = world.files()
    code, document = world.run(plan=plan, deletes=True)
    assert code == exit_codes.FOUND_WRONG
    assert any(why in refusal for refusal in document["refusals"]), document["refusals"]
    assert document["deleted_objects"] == 0
    assert world.files() == before
    text = plan.read_text()
    assert world.run(plan=plan)[0] == exit_codes.FOUND_WRONG
    assert plan.read_text() == text, "a plan was written although it may not be carried out"


def test_a_tier_without_a_finished_segment_is_not_known_to_be_ours(world: World) -> None:
    orphan = world.put("orphan")
    plan = world.planned()
    world.publish(*(moved(started(f"kept {number}", 0, 9), DELETE_STARTED) for number in range(KEPT)))
    code, document = world.run(plan=plan, deletes=True)
    assert code == exit_codes.FOUND_WRONG
    assert "names no finished segment" in document["refusals"][0]
    assert Path(orphan).exists()


def test_a_plan_of_another_tier_is_refused(world: World) -> None:
    orphan = world.put("orphan")
    plan = world.planned()
    right = json.loads(plan.read_text())
    for member, value, why in (
        ("cluster_id", "another", "another cluster: another, now fake"),
        ("metadata_topic_id", "AAAAAAAAAAAAAAAAAAAAAA", "another metadata topic"),
        ("store", "another", "another store or prefix"),
    ):
        plan.write_text(json.dumps({**right, member: value}))
        code, document = world.run(plan=plan, deletes=True)
        assert code == exit_codes.FOUND_WRONG, member
        assert why in document["refusals"][0]
        assert Path(orphan).exists(), member


def test_a_topic_that_is_not_read_whole_deletes_nothing(
    world: World, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = world.put("orphan")
    plan = world.planned()

    def assert_refused(why: str) -> None:
        assert world.run(plan=plan, deletes=True) == (exit_codes.FOUND_WRONG, {})
        assert why in capsys.readouterr().err
        assert Path(orphan).exists()

    world.metadata.log_start_offset = 1
    assert_refused("__remote_log_metadata-0 begins at offset 1: the records before are lost")
    world.metadata.log_start_offset = 0
    monkeypatch.setattr(metadata_records, "SILENCE_S", 0.2)
    world.metadata.end_offset += 1  # the leader is gone after it has told where the topic ends
    assert_refused("gave none of the 1 records that are left")
    world.cluster.stop(1)
    assert_refused("cannot connect to a:1")


def test_records_that_nobody_takes_delete_nothing(
    world: World, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = world.put("orphan")
    plan = world.planned()

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("storage.checks.orphans.SeenSegments.take", fail)
    assert world.run(plan=plan, deletes=True)[0] == exit_codes.FOUND_WRONG
    assert "records could not be taken in: MemoryError('no room')" in capsys.readouterr().err
    assert Path(orphan).exists()


def test_a_deletion_takes_a_plan_and_an_owner(world: World, capsys: Captured) -> None:
    orphan = world.put("orphan")
    plan = world.planned()
    broken = world.folder / "broken.json"
    broken.write_text(plan.read_text()[:-10])
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "--plan PLAN.json"),
        ({"plan": plan, "i_own_this_tier": False}, "--i-own-this-tier"),
        ({"plan": broken}, "broken.json is no plan"),
        ({"plan": world.folder / "absent.json"}, "absent.json"),
    ]
    for changes, why in cases:
        assert world.run(deletes=True, **changes) == (exit_codes.USAGE, {})
        assert why in capsys.readouterr().err
    assert Path(orphan).exists()


def test_a_partition_of_which_much_would_go_needs_a_word(world: World) -> None:
    """Only the share of the whole tier counted: records that were lost for one partition of many let all of it go."""
    lost = named_partition("orders", 1)
    for number in range(40):
        world.add(started(f"other {number}", 0, 9, partition=named_partition("orders", 2)), COPY_FINISHED)
    for number in range(6):
        world.put(f"lost {number}", partition=lost)
    assert world.run()[0] == exit_codes.DONE, "an interrupted copy leaves as much"
    world.put("lost 6", partition=lost)
    code, document = world.run(plan=world.folder / "plan.json")
    assert code == exit_codes.FOUND_WRONG
    assert document["refusals"] == [
        "100.0 % of the objects of orders-1 are orphans, more than 5 %: if you know why, say --max-orphans 100"
    ]
    assert not (world.folder / "plan.json").exists()
    world.planned(orphan_percent_max=100)


def test_how_old_an_object_is_the_stores_clock_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of ours that is two years ahead everything was old: what is being copied, too."""
    two_years_s = 2 * 365 * 86_400
    orphan = world.put("orphan", at_s=time.time() - two_years_s - 3600)
    assert names(world.run()[1]) == [orphan]
    monkeypatch.setattr(LocalTieredStorage, "clock_offset_ms", lambda _: -two_years_s * 1000)
    code, document = world.run()
    assert (code, names(document), document["objects"]["young"]["count"]) == (exit_codes.DONE, [], 1)


def test_a_store_that_does_not_list_uploads_is_cleaned_of_objects(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def refuse(*_: object) -> None:
        raise RemoteAccessDeniedError("LIST of uploads: AccessDenied: it takes s3:ListBucketMultipartUploads")

    monkeypatch.setattr(FileSystemStore, "list_uploads", refuse)
    orphan = world.put("orphan")
    plan = world.planned()
    code, document = world.run(plan=plan, deletes=True)
    assert (code, document["deleted_objects"]) == (exit_codes.DONE, 1)
    assert "s3:ListBucketMultipartUploads" in document["uploads_unseen"]
    assert not Path(orphan).exists()
    options = GcOptions(older_than_ms=DAY_MS, orphan_percent_max=5, plan=None, deletes=False, i_own_this_tier=True)
    gc.run(world.config(), options, out := io.StringIO())
    assert "unfinished uploads could not be listed" in out.getvalue()


def test_what_cannot_be_deleted_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan, other = world.put("orphan"), world.put("other")
    plan = world.planned(orphan_percent_max=50)
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if str(path) == orphan:
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    code, document = world.run(plan=plan, deletes=True, orphan_percent_max=50)
    assert (code, document["deleted_objects"], list(document["failures"])) == (exit_codes.FOUND_WRONG, 1, [orphan])
    assert "Permission denied" in document["failures"][orphan]
    assert not Path(other).exists()
