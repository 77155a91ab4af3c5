"""DeleteRecords, holds, restarts and failures in any order: nothing goes before its wait is over, and nothing stays.

Each schedule is a world in virtual time (tests/support/copy_world.py). Where an object of a finished segment goes, the
log start must have been raised above it long enough ago, and nobody may hold the partition. At the end nobody holds it,
and all that was asked for is gone after the grace.
"""

import functools
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from standalone.copier import partition_copier
from standalone.copier.waits import WAVES, Noted
from storage.backoff import Backoff
from storage.metadata.serde import MetadataRecord
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from tests.support.cases import case
from tests.support.copy_world import PARTITION, CopyWorld, held_segments, settings
from tests.support.memory_store import Killed
from tests.support.simulated_time import in_order

SCHEDULES = 4
GRACE_MS = 200_000
LOOKS_S = 20.0
"""A copier's looks, its back-off and its reads of what is committed are at most this much later than what they see."""


class _Watched:
    """The world's store told what goes, and the model."""

    def __init__(self, world: CopyWorld) -> None:
        self.world = world
        self.raised: list[tuple[float, int]] = []
        """When the log start was raised, and to what."""
        self.held_since_s: float | None = None
        self.early: list[str] = []
        inner = world.note_deletion

        def noted(segment_id: bytes) -> None:
            inner(segment_id)  # type: ignore[arg-type]  # an id of 16 bytes
            self.look(segment_id)

        world.note_deletion = noted  # type: ignore[method-assign]  # to see what goes, and when

    def look(self, segment_id: bytes) -> None:
        segment = next(each for each in self.world.ledger().segments() if each.segment_id.id == segment_id)
        if not any(self._finishes(record, segment.segment_id) for record in self.world.records()):
            return
        asked_s = min((at_s for at_s, offset in self.raised if offset > segment.end_offset), default=None)
        now_s = trio.current_time()
        if asked_s is None or now_s - asked_s < GRACE_MS * (1 - 1 / WAVES) / 1000 - 1:
            self.early.append(f"{segment_id.hex()} went at {now_s}, asked for at {asked_s}")
        if self.held_since_s is not None and now_s - self.held_since_s > LOOKS_S:
            self.early.append(f"{segment_id.hex()} went at {now_s}, held since {self.held_since_s}")

    @staticmethod
    def _finishes(record: MetadataRecord, segment_id: RemoteLogSegmentId) -> bool:
        if not isinstance(record, RemoteLogSegmentMetadataUpdate) or record.segment_id != segment_id:
            return False
        return record.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED

    def delete_records(self, offset: int) -> None:
        committed = self.world.committed
        self.world.upstream.delete_before(offset)
        committed[PARTITION] = max(offset, committed.get(PARTITION, 0))
        self.raised.append((trio.current_time(), committed[PARTITION]))

    def hold(self, is_held: bool) -> None:
        notes = self.world.notes
        notes[PARTITION] = replace(notes.get(PARTITION, Noted()), is_held=is_held)
        self.held_since_s = trio.current_time() if is_held else None


async def _owner(world: CopyWorld, lives_s: float, generation: int, *, kills: bool) -> None:
    hands = world.hands()
    copier = hands.copier(settings(world.folder, delete_grace_ms=GRACE_MS))
    try:
        with trio.move_on_after(lives_s) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(copier.run)
                await copier.assign([PARTITION], generation)
                if kills:
                    await trio.sleep(lives_s * 0.9)
                    hands.kill()
                    scope.cancel()
    except* Killed:
        pass


async def _play(world: CopyWorld, watched: _Watched) -> None:
    chance, generation = world.chance, 0
    for _ in range(chance.randrange(3, 8)):
        generation += 1
        world.upstream.append(chance.choice([5, 20]))
        world.failure_rate = chance.choice([0.0, 0.05])
        async with trio.open_nursery() as nursery:
            lives_s, kills = chance.uniform(20, 150), chance.random() < 0.3
            nursery.start_soon(functools.partial(_owner, world, lives_s, generation, kills=kills))
            await trio.sleep(lives_s * chance.random())
            if chance.random() < 0.6:
                watched.delete_records(chance.randrange(world.upstream.end_offset))
            elif chance.random() < 0.5:
                watched.hold(watched.held_since_s is None)
    world.failure_rate = 0.0
    watched.hold(False)
    await _owner(world, GRACE_MS / 1000 + 2 * LOOKS_S, generation + 1, kills=False)


def check_schedules(seeds: Iterable[int], folder: Path) -> None:
    async def main(seed: int) -> None:
        world = CopyWorld(folder / str(seed), random.Random(seed))
        watched = _Watched(world)
        await _play(world, watched)
        assert watched.early == []
        left = [each for each in world.finished() if each.end_offset < world.committed.get(PARTITION, 0)]
        assert left == [], "what was asked to go has stayed"
        objects = {segment_id for segment_id, _ in held_segments(world.store)}
        assert {each.segment_id.id for each in world.finished()} <= objects

    for seed in seeds:
        backoff = functools.partial(Backoff, source=random.Random(seed))
        with case("schedule", seed), pytest.MonkeyPatch.context() as patch, in_order(seed):
            patch.setattr(partition_copier, "Backoff", backoff)
            trio.run(main, seed, clock=trio.testing.MockClock(autojump_threshold=0))


def test_no_object_goes_inside_its_wait_and_none_stays_beyond_it(tmp_path: Path) -> None:
    check_schedules(range(SCHEDULES), tmp_path)
