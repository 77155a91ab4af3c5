"""Copiers that are killed, paused beyond their session and replaced, over thousands of schedules in virtual time.

Each schedule is a world (tests/support/copy_world.py) with up to four copiers, one after another or side by side, while
upstream appends, deletes and elects. In some kinds more goes wrong around them (tests/support/copy_owner.py): brokers
know old metadata, the topic is made again, indexes, disks and clocks are lost. At the end one copier is left to tidy.
What must hold then:

- Every offset of upstream's log is in the tier, as upstream had it, but for what was counted as a gap, what lies below
  the committed log start, and what is not due yet.
- After an unclean election the tier may hold records of the branch that was lost, told apart as long as upstream still
  knows its epochs: what it deletes before a copier has asked nobody can tell apart any more.
- No segment is left half done, none holds another one, and a live segment has its objects. One that another copier had
  begun stays while its offsets are in no finished segment: they may have been deleted upstream, and its owner may be
  about to finish it.
- What was at any time in the tier, or on a disk that is there still, is in the tier, on a disk or at upstream, unless
  retention has released it.
  What a copier throws away in the moment in which upstream has it is another owner's to fetch, and may be its gap.
- Nothing is left of a topic that is gone.
- Nobody deletes an object of a segment that the metadata topic does not say is being deleted.
- Nothing else is in the store. A copier that was killed in the middle of an upload may have put objects of a segment
  that was given up meanwhile: nobody can know of those.
"""

import functools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from standalone.copier import staging_folder
from standalone.copier.intake import Intake
from standalone.copier.ledger import Ledger
from standalone.copier.partition_copier import PartitionCopier
from standalone.copier.seams import Retention
from storage.metadata.reading import partition_of
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition, Uuid
from tests.support.cases import case
from tests.support.copy_owner import Owner, repeatable, strike
from tests.support.copy_world import Batch, CopyWorld, held_segments, settings

SCHEDULES = 3
"""In `make test`; the folders all and long beside this file have more."""
FOUND = {"paused-failing": (279, 716), "killed-failing": (878,), "struck-elections": (939,)}
"""Seeds that failed among the thousands, by kind."""
_Held: TypeAlias = tuple[TopicIdPartition, int, int, bytes]
"""A batch: whose, base offset, leader epoch, bytes."""
SESSION_S = 3.0
"""After which the group takes a copier that stands still for gone."""


class _Gaps:
    """What copiers have counted as lost."""

    def __init__(self, patch: pytest.MonkeyPatch, logged: list[Any]) -> None:
        self._found: list[tuple[str, int, int, Path]] = []
        disks: dict[PartitionCopier, Path] = {}
        begin, note_gap = PartitionCopier.__init__, PartitionCopier.note_gap

        def begun(copier: PartitionCopier, partition: Any, generation: int, folder: Path, tools: Any) -> None:
            begin(copier, partition, generation, folder, tools)
            disks[copier] = folder.parent.parent

        def noted(copier: PartitionCopier, *gap: Any) -> None:
            before = len(logged)
            note_gap(copier, *gap)
            for each in logged[before:]:
                self._found.append((str(copier.partition), each["start_offset"], each["end_offset"], disks[copier]))

        patch.setattr(PartitionCopier, "__init__", begun)
        patch.setattr(PartitionCopier, "note_gap", noted)

    def holders(self, partition: TopicIdPartition, offset: int) -> set[Path]:
        """Return where those stage that have counted this offset."""
        return {folder for name, start, end, folder in self._found if name == str(partition) and start <= offset < end}


class _Seen:
    """Batches that were at any time in the tier, or on a disk that is not lost: they are somewhere at the end.

    What is on the disk of a copier that stands still, or is away, another one may have counted as a gap meanwhile, or
    taken for what a lost branch has in the tier.
    """

    def __init__(self, world: CopyWorld) -> None:
        self._world = world
        self._tier: set[_Held] = set()
        self._staged: dict[Path, set[_Held]] = {}
        self._read: set[Uuid] = set()

    def release_what_upstream_has(self, patch: pytest.MonkeyPatch) -> None:
        """A copier may throw away what upstream has in that moment."""
        begin, drop = Intake.__init__, Intake.drop
        whose: dict[Intake, tuple[TopicIdPartition, Path]] = {}

        def begun(intake: Intake, ledger: Ledger, folder: Path, *others: Any) -> None:
            begin(intake, ledger, folder, *others)
            whose[intake] = ledger.partition, folder.parent.parent

        async def dropped(intake: Intake, *, keeps_logs: bool) -> None:
            partition, folder = whose[intake]
            if not keeps_logs and folder in self._staged:
                upstream = self._world.upstreams[partition]
                has = {_held(partition, each) for each in upstream.batches}
                self._staged[folder] -= {each for each in has if each[1] >= upstream.log_start_offset}
            await drop(intake, keeps_logs=keeps_logs)

        patch.setattr(Intake, "__init__", begun)
        patch.setattr(Intake, "drop", dropped)

    def look(self, owners: list[Owner]) -> None:
        manager = self._world.manager()
        for partition in self._world.upstreams:
            for segment in self._world.finished(partition):
                if segment.segment_id.id not in self._read:
                    self._read.add(segment.segment_id.id)
                    log = manager.fetch_log_segment(segment, 0)
                    assert len(log) == segment.segment_size_bytes
                    self._tier |= {(partition, *batch) for batch in _batches(log)}
        for owner in owners:
            staged = self._on_disk(owner.hands.folder)
            is_lost = not owner.hands.folder.exists()
            self._staged[owner.hands.folder] = (
                staged if is_lost else staged | self._staged.get(owner.hands.folder, set())
            )

    def check(self, owners: list[Owner], gaps: _Gaps) -> None:
        world, manager, partition = self._world, self._world.manager(), self._world.partition
        log_start = world.committed.get(partition, 0)
        upstream = {_held(partition, each): each for each in world.upstream.batches}
        held = {each for each, batch in upstream.items() if batch.last_offset >= world.upstream.log_start_offset}
        for segment in world.finished(partition):
            held |= {(partition, *batch) for batch in _batches(manager.fetch_log_segment(segment, 0))}
        for owner in owners:
            held |= self._on_disk(owner.hands.folder)
        keeps_all = owners[-1].hands.retention == Retention()
        was = self._tier if keeps_all else self._tier & upstream.keys()
        covered = {each for segment in world.finished(partition) for each in _offsets(segment)}
        for folder, staged in self._staged.items():
            counted = {each for each in staged if each[1] in covered or gaps.holders(partition, each[1]) - {folder}}
            was |= (staged & upstream.keys()) - counted
        nowhere = sorted(each[1:3] for each in was - held if each[0] == partition and each[1] >= log_start)
        assert nowhere == [], f"{nowhere} was staged or in the tier, and is in no place"

    def _on_disk(self, folder: Path) -> set[_Held]:
        found: set[_Held] = set()
        for partition in self._world.upstreams:
            for path in staging_folder.partition_folder(folder, partition).glob("*.[lk]*"):
                found |= {(partition, *batch) for batch in _batches(path.read_bytes())}
        return found


async def _play(world: CopyWorld, seen: _Seen, *, kills: bool, elects: bool, strikes: bool) -> list[Owner]:
    """Owners one after another; all that upstream does meanwhile."""
    chance = world.chance
    retention = Retention(retention_bytes=chance.choice([-1, -1, 3000]))
    owners: list[Owner] = []

    def new_owner(folder: Path | None = None) -> Owner:
        # What others have superseded waits, and is gone at the end.
        owners.append(Owner(world, settings(world.folder, delete_grace_ms=chance.choice([0, 5000])), retention, folder))
        return owners[-1]

    async with trio.open_nursery() as nursery:
        for generation in range(1, chance.randrange(2, 5)):
            # One that was killed may begin again on its disk, with what it has staged.
            killed = owners[-1].hands if owners and owners[-1].hands.is_killed and chance.random() < 0.5 else None
            owner = new_owner(killed.folder if killed is not None else None)
            nursery.start_soon(owner.run, generation if chance.random() < 0.9 else 1)
            for _ in range(chance.randrange(2, 8)):
                _happen(world, elects=elects)
                if strikes and chance.random() < 0.5:
                    strike(world, owner)
                seen.look(owners)
                await trio.sleep(chance.uniform(0.02, 2.0))
            if kills and chance.random() < 0.6:
                owner.kill()
            elif chance.random() < 0.5:
                owner.hands.pause(chance.uniform(SESSION_S, 15.0))  # the next one comes meanwhile
            elif chance.random() < 0.5:
                owner.scope.cancel()
        await trio.sleep(chance.uniform(0, 10.0))
        world.failure_rate = 0.0
        world.brokers.heal()
        for owner in owners:
            owner.hands.pause_until_s = min(owner.hands.pause_until_s, trio.current_time() + 1)
            owner.scope.cancel()
        if strikes and chance.random() < 0.5:
            world.lose_index()
            world.upstream.delete_before(world.upstream.end_offset)
        seen.look(owners)
    with trio.move_on_after(40):
        await new_owner().run(99)
    return owners


def _happen(world: CopyWorld, *, elects: bool) -> None:
    chance, upstream = world.chance, world.upstream
    upstream.append(chance.choice([0, 1, 5, 15]))
    if elects and upstream.batches and chance.random() < 0.2:
        lost = chance.choice([chance.randrange(6), chance.randrange(len(upstream.batches) + 1)])
        keep = max(len(upstream.batches) - lost, 1) if chance.random() < 0.5 else None
        if keep is None or upstream.batches[keep - 1].last_offset >= upstream.log_start_offset:
            upstream.elect(keep=keep, epochs=chance.choice([1, 2]))
            upstream.append(1)
    if chance.random() < 0.15:
        upstream.delete_before(upstream.end_offset - chance.randrange(40))


def _check(world: CopyWorld, owners: list[Owner], gaps: _Gaps, *, kills: bool, elects: bool) -> None:
    manager, ledger = world.manager(), world.ledger(world.partition)
    live = ledger.finished()
    pending = [segment for segment in ledger.segments() if segment not in live]
    # Where the tier ends, but for the branches that were lost: what those have is other records.
    lineage = {batch.leader_epoch: batch.base_offset for batch in reversed(world.upstream.batches)}
    ledger.follow_lineage(sorted(lineage.items()))
    end_offset = ledger.end_offset()
    for segment in pending:
        assert segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED, f"{segment} was left half done"
        assert segment.end_offset > end_offset, f"{segment} is left"
    gone = [segment for each in world.gone for segment in world.ledger(each).segments()]
    assert not live or not gone, f"{gone} of a topic that is gone"
    objects = {segment_id for segment_id, _ in held_segments(world.store)}
    assert {segment.segment_id.id for segment in live} <= objects
    in_flight: set[Uuid] = {owner.hands.uploading for owner in owners if owner.hands.uploading} if kills else set()
    orphans = objects - {segment.segment_id.id for segment in [*live, *pending, *gone]} - in_flight
    assert not orphans, f"{len(orphans)} orphans"
    assert world.unsafe_deletions == []
    if not elects:
        for one in live:
            holding = [o for o in live if o.start_offset <= one.start_offset and one.end_offset <= o.end_offset]
            assert holding == [one], "a segment twice"
    log_start, begins = world.committed.get(world.partition, 0), _first_ever(world)
    held = {(world.partition, *batch) for segment in live for batch in _batches(manager.fetch_log_segment(segment, 0))}
    for batch in world.upstream.batches:
        offset = batch.base_offset
        if _held(world.partition, batch) in held:
            continue
        is_on_lost_branch = elects and any(segment.start_offset <= offset <= segment.end_offset for segment in live)
        if is_on_lost_branch and offset < world.upstream.log_start_offset:
            continue
        if offset >= begins and offset >= log_start:
            assert gaps.holders(world.partition, offset), f"offset {offset} is in no segment and no gap"
        elif offset < begins:
            assert offset < world.upstream.log_start_offset, f"offset {offset} was never copied"


def _first_ever(world: CopyWorld) -> int:
    """The first offset that was ever in the tier: what upstream deleted before it is no gap."""
    found = Ledger(world.partition)
    starts = [world.upstream.end_offset]
    for record in world.records(world.partition):
        if partition_of(record) == world.partition:
            found.note(record)
        starts += [segment.start_offset for segment in found.finished()]
    return min(starts)


def _offsets(segment: RemoteLogSegmentMetadata) -> range:
    return range(segment.start_offset, segment.end_offset + 1)


def _held(partition: TopicIdPartition, batch: Batch) -> _Held:
    return partition, batch.base_offset, batch.leader_epoch, batch.content


def _batches(log: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(base offset, leader epoch, bytes) of each whole batch."""
    position = 0
    while position + 12 < len(log):
        size = 12 + int.from_bytes(log[position + 8 : position + 12], "big")
        batch = log[position : position + size]
        if len(batch) == size:
            yield int.from_bytes(batch[:8], "big"), int.from_bytes(batch[12:16], "big"), batch
        position += size


def check_schedules(seeds: Iterable[int], folder: Path, *, failure_rate: float, strikes: bool, **kind: bool) -> None:
    for seed in seeds:
        with case("schedule", seed), repeatable(seed) as patch, capture_logs() as logged:
            world = CopyWorld(folder / str(seed), random.Random(seed))
            world.failure_rate = failure_rate
            world.brokers.knows_ids = not strikes or world.chance.random() < 0.8
            gaps, seen = _Gaps(patch, logged), _Seen(world)
            seen.release_what_upstream_has(patch)
            play = functools.partial(_play_and_check, world, gaps, seen, strikes=strikes, **kind)
            trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


async def _play_and_check(
    world: CopyWorld, gaps: _Gaps, seen: _Seen, *, strikes: bool, kills: bool, elects: bool
) -> None:
    owners = await _play(world, seen, kills=kills, elects=elects, strikes=strikes)
    _check(world, owners, gaps, kills=kills, elects=elects)
    seen.look(owners)
    seen.check(owners, gaps)


KINDS = [
    pytest.param({"kills": kills, "failure_rate": rate, "elects": elects, "strikes": strikes}, id=name)
    for kills, rate, elects, strikes, name in (
        (False, 0.0, False, False, "paused"),
        (False, 0.1, False, False, "paused-failing"),
        (True, 0.1, False, False, "killed-failing"),
        (True, 0.05, True, False, "elections"),
        (True, 0.05, False, True, "struck"),
        (True, 0.05, True, True, "struck-elections"),
    )
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_schedule_leaves_a_hole_an_orphan_or_a_segment_twice(
    tmp_path: Path, kind: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    check_schedules([*range(SCHEDULES), *FOUND.get(request.node.callspec.id, ())], tmp_path, **kind)
