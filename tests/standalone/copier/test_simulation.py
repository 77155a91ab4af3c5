"""Copiers that are killed, paused beyond their session and replaced, over thousands of schedules in virtual time.

Each schedule is a world (tests/support/copy_world.py) with up to four copiers, one after another or side by side, while
upstream appends, deletes and elects. At the end one copier is left to tidy. What must hold then:

- Every offset of upstream's log is in the tier, as upstream had it, but for what was counted as a gap, what lies below
  the committed log start, and what is not due yet.
- After an unclean election the tier may hold records of the branch that was lost, told apart as long as upstream still
  knows its epochs: what it deletes before a copier has asked nobody can tell apart any more.
- No segment is left half done, none holds another one, and a live segment has its objects. One that another copier had
  begun stays while its offsets are in no finished segment: they may have been deleted upstream, and its owner may be
  about to finish it.
- Nobody deletes an object of a segment that the metadata topic does not say is being deleted.
- Nothing else is in the store. A copier that was killed in the middle of an upload may have put objects of a segment
  that was given up meanwhile: nobody can know of those.
"""

import functools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from standalone.copier import partition_copier
from standalone.copier.ledger import Ledger
from standalone.copier.seams import Retention
from storage.backoff import Backoff
from storage.model import IndexType, RemoteLogSegmentMetadata, RemoteLogSegmentState, Uuid
from tests.support.cases import case
from tests.support.copy_world import PARTITION, CopyWorld, Hands, held_segments, settings
from tests.support.memory_store import Killed
from tests.support.simulated_time import in_order

SCHEDULES = 3
"""In `make test`; tests/copier/all and tests/copier/long have more."""
SESSION_S = 3.0
"""After which the group takes a copier that stands still for gone."""


class _Owner:
    """A copier that believes that it has the partition."""

    def __init__(self, world: CopyWorld, retention: Retention, folder: Path | None = None) -> None:
        self.hands: Hands = world.hands()
        self.hands.folder = folder or self.hands.folder
        self.hands.retention = retention
        # What others have superseded waits, and is gone at the end.
        self.copier = self.hands.copier(settings(world.folder, delete_grace_ms=world.chance.choice([0, 5000])))
        self.scope = trio.CancelScope()

    async def run(self, generation: int) -> None:
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.copier.run)
                    await self.copier.assign([PARTITION], generation)
        except* Killed:
            pass

    def kill(self) -> None:
        self.hands.kill()
        self.scope.cancel()


async def _play(world: CopyWorld, *, kills: bool, elects: bool) -> list[_Owner]:
    """Owners one after another; all that upstream does meanwhile."""
    chance = world.chance
    retention = Retention(retention_bytes=chance.choice([-1, -1, 3000]))
    owners: list[_Owner] = []
    async with trio.open_nursery() as nursery:
        for generation in range(1, chance.randrange(2, 5)):
            # One that was killed may begin again on its disk, with what it has staged.
            killed = owners[-1].hands if owners and owners[-1].hands.is_killed and chance.random() < 0.5 else None
            owner = _Owner(world, retention, killed.folder if killed is not None else None)
            owners.append(owner)
            nursery.start_soon(owner.run, generation if chance.random() < 0.9 else 1)
            for _ in range(chance.randrange(2, 8)):
                _happen(world, elects=elects)
                await trio.sleep(chance.uniform(0.02, 2.0))
            if kills and chance.random() < 0.6:
                owner.kill()
            elif chance.random() < 0.5:
                owner.hands.pause(chance.uniform(SESSION_S, 15.0))  # the next one comes meanwhile
            elif chance.random() < 0.5:
                owner.scope.cancel()
        await trio.sleep(chance.uniform(0, 10.0))
        world.failure_rate = 0.0
        for owner in owners:
            owner.hands.pause_until_s = min(owner.hands.pause_until_s, trio.current_time() + 1)
            owner.scope.cancel()
    last = _Owner(world, retention)
    owners.append(last)
    with trio.move_on_after(40):
        await last.run(99)
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


def _check(world: CopyWorld, owners: list[_Owner], gaps: list[tuple[int, int]], *, kills: bool, elects: bool) -> None:
    manager, ledger = world.manager(), world.ledger()
    live = ledger.finished()
    pending = [segment for segment in ledger.segments() if segment not in live]
    for segment in pending:
        assert segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED, f"{segment} was left half done"
        assert segment.end_offset > max(each.end_offset for each in live) if live else True, f"{segment} is left"
    objects = {segment_id for segment_id, _ in held_segments(world.store)}
    assert {segment.segment_id.id for segment in live} <= objects
    in_flight: set[Uuid] = {owner.hands.uploading for owner in owners if owner.hands.uploading} if kills else set()
    orphans = objects - {segment.segment_id.id for segment in [*live, *pending]} - in_flight
    assert not orphans, f"{len(orphans)} orphans"
    assert world.unsafe_deletions == []
    if not elects:
        for one in live:
            holding = [o for o in live if o.start_offset <= one.start_offset and one.end_offset <= o.end_offset]
            assert holding == [one], "a segment twice"
    log_start, begins = world.committed.get(PARTITION, 0), _first_ever(world)
    for offset in _missing(world, manager, live):
        is_on_lost_branch = elects and any(segment.start_offset <= offset <= segment.end_offset for segment in live)
        if is_on_lost_branch and offset < world.upstream.log_start_offset:
            continue
        if offset >= begins and offset >= log_start:
            assert any(begin <= offset < end for begin, end in gaps), f"offset {offset} is in no segment and no gap"
        elif offset < begins:
            assert offset < world.upstream.log_start_offset, f"offset {offset} was never copied"


def _first_ever(world: CopyWorld) -> int:
    """The first offset that was ever in the tier: what upstream deleted before it is no gap."""
    found = Ledger(PARTITION)
    starts = [world.upstream.end_offset]
    for record in world.records():
        found.note(record)
        starts += [segment.start_offset for segment in found.finished()]
    return min(starts)


def _missing(world: CopyWorld, manager: Any, live: list[RemoteLogSegmentMetadata]) -> list[int]:
    """Offsets of upstream's log that no segment holds as upstream has them, in its epoch."""
    held: set[tuple[int, int, bytes]] = set()
    for segment in live:
        log = manager.fetch_log_segment(segment, 0)
        assert len(log) == segment.segment_size_bytes
        position = 0
        while position < len(log):
            size = 12 + int.from_bytes(log[position + 8 : position + 12], "big")
            batch = log[position : position + size]
            base, epoch = int.from_bytes(batch[:8], "big"), int.from_bytes(batch[12:16], "big")
            held.add((base, epoch, batch))
            position += size
        assert manager.fetch_index(segment, IndexType.LEADER_EPOCH)
    return [
        batch.base_offset
        for batch in world.upstream.batches
        if (batch.base_offset, batch.leader_epoch, batch.content) not in held
    ]


def check_schedules(seeds: Iterable[int], folder: Path, *, kills: bool, failure_rate: float, elects: bool) -> None:
    async def main(seed: int) -> None:
        world = CopyWorld(folder / str(seed), random.Random(seed))
        world.failure_rate = failure_rate
        with capture_logs() as logged:
            owners = await _play(world, kills=kills, elects=elects)
        gaps = [(each["start_offset"], each["end_offset"]) for each in logged if each["event"] == "copy_gap"]
        _check(world, owners, gaps, kills=kills, elects=elects)

    for seed in seeds:
        backoff = functools.partial(Backoff, source=random.Random(seed))
        with case("schedule", seed), pytest.MonkeyPatch.context() as patch, in_order(seed):
            patch.setattr(partition_copier, "Backoff", backoff)
            trio.run(main, seed, clock=trio.testing.MockClock(autojump_threshold=0))


KINDS = [
    pytest.param({"kills": kills, "failure_rate": rate, "elects": elects}, id=name)
    for kills, rate, elects, name in (
        (False, 0.0, False, "paused"),
        (False, 0.1, False, "paused-failing"),
        (True, 0.1, False, "killed-failing"),
        (True, 0.05, True, "elections"),
    )
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_schedule_leaves_a_hole_an_orphan_or_a_segment_twice(tmp_path: Path, kind: dict[str, Any]) -> None:
    check_schedules(range(SCHEDULES), tmp_path, **kind)
