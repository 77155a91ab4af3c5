"""The catalog's snapshot over a metadata topic in memory: restarts, bad snapshots, bad disks.

Threads and files are real; the clock moves when a test says so.
"""

import struct
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from metrics.meters import CatalogMeter, SnapshotOutcome
from storage.errors import RetriableRemoteStorageError
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.metadata.follower import CatalogFollower
from storage.metadata.snapshot import FORMAT_VERSION, SNAPSHOT_NAME, Snapshot, SnapshotFile
from storage.metadata.topic_log import TopicMetadataEventLog
from tests.support.cases import case
from tests.support.catalog_answers import answers
from tests.support.metadata_records import COPY_FINISHED, PARTITION, moved, started
from tests.support.metadata_topic import FakeMetadataTopic
from tests.support.waiting import settled, until
from tidegate.catalog import HOLD_S_MAX, LAST_WRITE_S_MAX, RANGES_RETRY_S, RANGES_S_MAX, CatalogSnapshots

if TYPE_CHECKING:
    from storage.metadata.serde import MetadataRecord

INTERVAL_S = 30.0
COUNT = 3
HOME = metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT)

pytestmark = pytest.mark.usefixtures("mock_clock")


@dataclass
class Counted:
    """What the meter was told."""

    loaded: list[SnapshotOutcome] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    failed: int = 0
    told: list[Sequence[str]] = field(default_factory=list)

    def on_snapshot_loaded(self, outcome: SnapshotOutcome) -> None:
        self.loaded.append(outcome)

    def on_snapshot_written(self, size_bytes: int, at_s: float) -> None:
        self.written.append(size_bytes)

    def on_snapshot_kept(self, size_bytes: int, at_s: float) -> None:
        self.kept.append(size_bytes)

    def on_snapshot_failed(self) -> None:
        self.failed += 1


@dataclass
class Process:
    """One life of a Tidegate, as far as its catalog goes."""

    log: TopicMetadataEventLog
    follower: CatalogFollower
    catalog: Catalog
    snapshots: CatalogSnapshots
    counted: Counted
    read_from: dict[int, int] = field(default_factory=dict)

    def is_live(self) -> bool:
        return all(map(self.follower.is_caught_up, range(self.log.partition_count())))


@dataclass
class Stage:
    """The metadata topic of a cluster, the folder of the snapshot, and the lives of a Tidegate before them."""

    topic: FakeMetadataTopic
    folder: Path
    cluster_id: str | None = "cluster-a"
    segments_max: int = 100

    def opened(self, found: Snapshot | None = None) -> Process:
        log, catalog, counted = TopicMetadataEventLog(self.topic), Catalog(self.segments_max), Counted()
        follower = CatalogFollower(log, catalog)
        snapshots = CatalogSnapshots(
            self.folder,
            interval_s=INTERVAL_S,
            catalog=catalog,
            event_log=log,
            follower=follower,
            cluster_id=lambda: self.cluster_id,
            meter=cast(CatalogMeter, counted),
            found=found,
            tell=counted.told.append,
        )
        return Process(log, follower, catalog, snapshots, counted)

    @asynccontextmanager
    async def process(self, *, is_live: bool = True, found: Snapshot | None = None) -> AsyncIterator[Process]:
        """Start as `start_catalog` does; leaving the block is a kill."""
        running = self.opened(found)
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as reading:
                reading.start_soon(running.snapshots.read)
                await nursery.start(running.log.run)
            running.read_from = dict(await running.snapshots.adopt())
            running.follower.follow(running.read_from)
            nursery.start_soon(running.snapshots.run)
            if is_live:
                await until(running.is_live)
            yield running
            nursery.cancel_scope.cancel()

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def publish(self, *names: str) -> None:
        """Segments of the names, one after another, copied."""
        for name in names:
            start_offset = 10 * len(self.topic.logs.get(HOME, []))
            segment = started(name, start_offset, start_offset + 9)
            records: tuple[MetadataRecord, ...] = (segment, moved(segment, COPY_FINISHED))
            self.topic.append(HOME, *map(encode, records))

    async def leave_snapshot(self, *names: str) -> None:
        self.publish(*names)
        async with self.process() as first:
            await first.snapshots.aclose()
            assert len(first.counted.written) == 1


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(FakeMetadataTopic(COUNT), tmp_path / "catalog")


async def test_a_restart_reads_only_what_is_new(stage: Stage) -> None:
    await stage.leave_snapshot("a", "b")
    stage.publish("c")
    # What is in the snapshot need not be in the topic any more.
    stage.topic.delete_records(HOME, 4)
    with capture_logs() as logs:
        async with stage.process() as second:
            assert second.counted.loaded == [SnapshotOutcome.USED]
            assert second.counted.kept == [(stage.folder / SNAPSHOT_NAME).stat().st_size]
            assert second.read_from[HOME] == 4
            assert second.catalog.segment_count == 3
            assert second.follower.position(HOME) == 6
    assert [entry["segments"] for entry in logs if entry["event"] == "catalog_snapshot_used"] == [2]


async def test_what_was_read_before_the_fork_is_followed_as_if_read_now(stage: Stage) -> None:
    """Also when the file has been set aside, or rewritten, since."""
    await stage.leave_snapshot("a", "b")
    found = SnapshotFile(stage.folder).read()
    stage.publish("c")
    (stage.folder / SNAPSHOT_NAME).unlink()
    async with stage.process(found=found) as second:
        assert second.counted.loaded == [SnapshotOutcome.USED]
        assert second.read_from[HOME] == 4
        assert second.catalog.segment_count == 3


async def test_one_is_written_each_interval_in_which_something_was_read(stage: Stage, mock_clock: MockClock) -> None:
    stage.publish("a")
    async with stage.process() as first:
        for name in ("b", "c"):
            for _ in range(2):
                mock_clock.jump(INTERVAL_S)
                await settled()
            assert len(first.counted.written) == (1 if name == "b" else 2)
            stage.publish(name)
            await until(lambda: first.follower.position(HOME) == len(stage.topic.logs[HOME]))
        assert len(first.counted.written) == 2
    # Killed: what came after the last one is read again.
    async with stage.process() as second:
        assert second.read_from[HOME] == 4
        assert answers(second.catalog) == answers(first.catalog)


async def test_nothing_is_written_before_all_is_read(stage: Stage) -> None:
    await stage.leave_snapshot("a")
    stage.publish("b")
    stage.topic.faults["fetch"] = [RetriableRemoteStorageError("no leader")] * 100
    async with stage.process(is_live=False) as second:
        await second.snapshots.aclose()
        assert (second.counted.written, second.counted.failed) == ([], 0)


async def test_nothing_is_written_of_a_topic_that_was_made_anew(stage: Stage, mock_clock: MockClock) -> None:
    stage.publish("a")
    async with stage.process() as first:
        stage.topic.topic_id = b"metadata-topic-2"
        await settled()
        mock_clock.jump(60)
        await until(lambda: first.log.failure() is not None)
        await settled()  # one whose interval was over may have begun before
        written = list(first.counted.written)
        stage.publish("b")
        await until(lambda: first.catalog.segment_count == 2)
        await first.snapshots.aclose()
        assert first.counted.written == written


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def write_version(path: Path, version: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8] + struct.pack("<I", version) + content[12:])


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


async def test_a_bad_file_is_set_aside_and_everything_read(stage: Stage) -> None:
    spoilers: list[tuple[Callable[[Path], None], SnapshotOutcome]] = [
        (cut_short, SnapshotOutcome.UNREADABLE),
        (make_folder, SnapshotOutcome.UNREADABLE),
        (partial(write_version, version=FORMAT_VERSION - 1), SnapshotOutcome.OLDER_FORMAT),
        (partial(write_version, version=FORMAT_VERSION + 1), SnapshotOutcome.UNREADABLE),
    ]
    for number, (spoil, outcome) in enumerate(spoilers):
        with case(number):
            spoiled = Stage(FakeMetadataTopic(COUNT), stage.folder / str(number) / "catalog")
            await spoiled.leave_snapshot("a", "b")
            spoil(spoiled.folder / SNAPSHOT_NAME)
            await check_set_aside(spoiled, outcome, segments=2)


async def test_a_foreign_one_is_set_aside(stage: Stage) -> None:
    foreign: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"cluster_id": "cluster-b"}),
        ({"topic_id": b"metadata-topic-2"}, {}),
        ({"partition_count": COUNT + 1}, {}),
        ({}, {"segments_max": 1}),
    ]
    for number, (topic, changed) in enumerate(foreign):
        with case(topic, changed):
            left = Stage(FakeMetadataTopic(COUNT), stage.folder / str(number) / "catalog")
            await left.leave_snapshot("a", "b")
            other = Stage(FakeMetadataTopic(**topic), left.folder, **changed)
            other.publish("x")
            await check_set_aside(other, SnapshotOutcome.FOREIGN, segments=1)


async def test_one_that_ends_where_records_are_lost_is_set_aside(stage: Stage) -> None:
    await stage.leave_snapshot("a")
    stage.publish("b", "c")
    stage.topic.delete_records(HOME, 4)
    await check_set_aside(stage, SnapshotOutcome.OUT_OF_RANGE, segments=1)


async def check_set_aside(stage: Stage, outcome: SnapshotOutcome, *, segments: int) -> None:
    """It is not used, said so once and gone; the next one is written and used."""
    async with replace(stage, folder=stage.folder.parent / "fresh").process() as reference:
        expected = answers(reference.catalog)
    with capture_logs() as logs:
        async with stage.process() as second:
            assert (second.counted.loaded, second.read_from) == ([outcome], {})
            assert second.catalog.segment_count == segments
            assert answers(second.catalog) == expected
            assert stage.files == [f"{SNAPSHOT_NAME}.bad"]
            await second.snapshots.aclose()
    said = [entry for entry in logs if entry["event"] == "catalog_snapshot_set_aside"]
    assert [(entry["outcome"], entry["log_level"]) for entry in said] == [(outcome.value, "warning")]
    async with stage.process() as third:
        assert third.counted.loaded == [SnapshotOutcome.USED]
        assert answers(third.catalog) == expected


@pytest.mark.parametrize(
    ("waits_s", "outcome"), [(RANGES_RETRY_S, SnapshotOutcome.USED), (RANGES_S_MAX, SnapshotOutcome.OUT_OF_RANGE)]
)
async def test_logs_that_do_not_say_where_they_end_are_asked_again_for_a_while(
    stage: Stage, mock_clock: MockClock, waits_s: float, outcome: SnapshotOutcome
) -> None:
    await stage.leave_snapshot("a")
    stage.topic.faults["offsets"] = [RetriableRemoteStorageError("no leader")]
    seen: list[Process] = []

    async def start() -> None:
        async with stage.process() as second:
            seen.append(second)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await until(lambda: not stage.topic.faults["offsets"])
        await settled()
        mock_clock.jump(waits_s)
        await until(lambda: bool(seen))
    assert seen[0].counted.loaded == [outcome]
    assert seen[0].catalog.segment_count == 1
    # Not used is not bad: it is there for the next start.
    assert stage.files == [SNAPSHOT_NAME]


class HeldDraft:
    """A disk that hangs until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.ended = threading.Event()
        original = SnapshotFile.draft

        def draft(file: SnapshotFile, *arguments: object) -> int:
            self.begun.set()
            assert self.let_go.wait(30)
            try:
                return original(file, *arguments)  # type: ignore[arg-type]  # handed on as they came
            finally:
                self.ended.set()

        monkeypatch.setattr(SnapshotFile, "draft", draft)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldDraft:
    return HeldDraft(monkeypatch)


async def test_records_wait_while_one_is_written_and_it_is_of_one_instant(stage: Stage, held: HeldDraft) -> None:
    stage.publish("a")
    async with stage.process() as first:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.snapshots.aclose)
            await until(held.begun.is_set)
            stage.publish("b")
            await trio.testing.wait_all_tasks_blocked()
            # Look-ups go on meanwhile, new records do not.
            assert answers(first.catalog)["segments"] == 1
            held.let_go.set()
        await until(lambda: first.catalog.segment_count == 2)
    async with stage.process() as second:
        assert second.read_from[HOME] == 2
        assert answers(second.catalog) == answers(first.catalog)


async def test_a_disk_that_hangs_is_given_up_and_not_asked_twice_at_a_time(
    stage: Stage, held: HeldDraft, mock_clock: MockClock
) -> None:
    stage.publish("a")
    async with stage.process() as first:
        mock_clock.jump(INTERVAL_S)
        await until(held.begun.is_set)
        stage.publish("b")
        mock_clock.jump(HOLD_S_MAX)
        await until(lambda: first.catalog.segment_count == 2)
        assert first.counted.failed == 1
        held.begun.clear()
        await first.snapshots.aclose()
        assert (first.counted.failed, held.begun.is_set()) == (2, False)
        held.let_go.set()
        # The thread that was given up sees that it is over, and leaves nothing behind.
        await settled()
        assert (held.ended.is_set(), stage.files) == (True, [])
        await first.snapshots.aclose()
        assert len(first.counted.written) == 1
    async with stage.process() as second:
        assert (second.counted.loaded, second.read_from[HOME]) == ([SnapshotOutcome.USED], 4)


async def test_shutdown_waits_for_no_disk_that_hangs(stage: Stage, held: HeldDraft, mock_clock: MockClock) -> None:
    stage.publish("a")
    async with stage.process() as first, trio.open_nursery() as nursery:
        nursery.start_soon(first.snapshots.aclose)
        await until(held.begun.is_set)
        mock_clock.jump(LAST_WRITE_S_MAX)
        await until(lambda: not nursery.child_tasks)
        assert first.counted.failed == 1
    held.let_go.set()


async def test_after_a_restart_nothing_is_written_until_something_is_new(stage: Stage) -> None:
    await stage.leave_snapshot("a")
    async with stage.process() as second:
        await second.snapshots.aclose()
        assert second.counted.written == []
        stage.publish("b")
        await until(lambda: second.catalog.segment_count == 2)
        await second.snapshots.aclose()
        assert len(second.counted.written) == 1


async def test_one_that_ends_beyond_the_log_is_set_aside(stage: Stage) -> None:
    await stage.leave_snapshot("a", "b")
    del stage.topic.logs[HOME][2:]
    await check_set_aside(stage, SnapshotOutcome.OUT_OF_RANGE, segments=1)


async def test_a_fault_of_ours_costs_the_snapshot_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_file: SnapshotFile, *_arguments: object) -> int:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(SnapshotFile, "draft", broken)
    stage.publish("a")
    async with stage.process() as first:
        await first.snapshots.aclose()
        assert first.counted.failed == 1
        assert first.counted.told == [["dictionary changed size during iteration"]]
