"""DeleteRecords, retention, holds, restarts, failures in any order: nothing goes inside its wait, nothing stays beyond.

Each schedule is a world in virtual time (tests/support/copy_world.py), with or without what goes wrong around a copier
(tests/support/copy_owner.py). Where an object of a finished segment goes, one of these must have been so for long
enough: the log start was raised above it, retention asks for it, its topic is gone. Nobody may hold the partition, and
the clock of who deletes must be right. At the end nobody holds it, and all that was asked for is gone after the grace.
"""

import functools
import math
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from standalone.copier.seams import Retention
from standalone.copier.waits import WAVES, Noted
from storage.metadata.serde import MetadataRecord
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)
from tests.support.cases import case
from tests.support.copy_owner import Owner, repeatable, strike
from tests.support.copy_world import FIRST_MS, CopyWorld, Hands, held_segments, settings

SCHEDULES = 2
GRACE_MS = 200_000
LOOKS_S = 20.0
"""A copier's looks, its back-off and its reads of what is committed are at most this much later than what they see."""


class _Watched:
    """The world's store told what goes, and the model."""

    def __init__(self, world: CopyWorld) -> None:
        self.world = world
        self.retention = Retention(retention_ms=world.chance.choice([-1, 100_000]))
        self.raised: list[tuple[TopicIdPartition, float, int]] = []
        """When the log start was raised, and to what."""
        self.held_since_s: float | None = None
        self.early: list[str] = []
        self._clock_wrong: tuple[Hands, float] | None = None
        inner = world.note_deletion

        def noted(segment_id: Uuid, hands: Hands) -> None:
            inner(segment_id, hands)
            self.look(segment_id, hands)

        world.note_deletion = noted  # type: ignore[method-assign]  # to see what goes, and when

    def look(self, segment_id: Uuid, hands: Hands) -> None:
        world, now_s = self.world, trio.current_time()
        known = [each for partition in world.upstreams for each in world.ledger(partition).segments()]
        segment = next(each for each in known if each.segment_id.id == segment_id)
        partition = segment.topic_id_partition
        if not any(self._finishes(record, segment.segment_id) for record in world.records(partition)):
            return
        wait_s = GRACE_MS * (1 - 1 / WAVES) / 1000
        due = [at_s + wait_s for each, at_s, offset in self.raised if each == partition and offset > segment.end_offset]
        if partition in world.gone:
            due.append(world.gone[partition] + GRACE_MS / 1000)
        if self.retention != Retention():
            due.append(self.expires_s(segment))
        if now_s < min(due, default=math.inf) - 1:
            self.early.append(f"{segment_id.hex()} went at {now_s}, due at {due}")
        if self.held_since_s is not None and partition == world.partition and now_s - self.held_since_s > LOOKS_S:
            self.early.append(f"{segment_id.hex()} went at {now_s}, held since {self.held_since_s}")
        if self._clock_wrong is not None and hands is self._clock_wrong[0] and now_s - self._clock_wrong[1] > LOOKS_S:
            self.early.append(f"{segment_id.hex()} went at {now_s}, the clock is wrong since {self._clock_wrong[1]}")

    def expires_s(self, segment: RemoteLogSegmentMetadata) -> float:
        """When retention takes it."""
        return (segment.max_timestamp_ms + self.retention.retention_ms - FIRST_MS) / 1000

    @staticmethod
    def _finishes(record: MetadataRecord, segment_id: RemoteLogSegmentId) -> bool:
        if not isinstance(record, RemoteLogSegmentMetadataUpdate) or record.segment_id != segment_id:
            return False
        return record.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED

    def delete_records(self, offset: int) -> None:
        committed, partition = self.world.committed, self.world.partition
        self.world.upstream.delete_before(offset)
        committed[partition] = max(offset, committed.get(partition, 0))
        self.raised.append((partition, trio.current_time(), committed[partition]))

    def hold(self, is_held: bool) -> None:
        notes, partition = self.world.notes, self.world.partition
        notes[partition] = replace(notes.get(partition, Noted()), is_held=is_held)
        self.held_since_s = trio.current_time() if is_held else None

    def strike(self, owner: Owner) -> None:
        """The holder of a partition takes that back before its topic goes."""
        was_off_ms = owner.hands.clock_off_ms
        if self.held_since_s is None or was_off_ms:
            strike(self.world, owner)
        if owner.hands.clock_off_ms != was_off_ms:
            self._clock_wrong = (owner.hands, trio.current_time()) if owner.hands.clock_off_ms else None


async def _owner(owner: Owner, lives_s: float, generation: int, *, kills: bool) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run, generation)
        await trio.sleep(lives_s * (0.9 if kills else 1))
        if kills:
            owner.kill()
        owner.scope.cancel()


async def _play(world: CopyWorld, watched: _Watched, *, strikes: bool) -> float:
    """When the last owner began, in seconds."""
    chance, generation = world.chance, 0

    def new_owner() -> Owner:
        return Owner(world, settings(world.folder, delete_grace_ms=GRACE_MS, interval_ms=2000), watched.retention)

    for _ in range(chance.randrange(3, 8)):
        generation += 1
        world.upstream.append(chance.choice([5, 20]))
        world.failure_rate = chance.choice([0.0, 0.05])
        owner = new_owner()
        async with trio.open_nursery() as nursery:
            lives_s, kills = chance.uniform(20, 150), chance.random() < 0.3
            nursery.start_soon(functools.partial(_owner, owner, lives_s, generation, kills=kills))
            for _ in range(2 if strikes else 0):
                await trio.sleep(lives_s * chance.random() / 3)
                watched.strike(owner)
            await trio.sleep(lives_s * chance.random() / (3 if strikes else 1))
            if chance.random() < 0.6:
                watched.delete_records(chance.randrange(world.upstream.end_offset + 1))
            elif chance.random() < 0.5:
                watched.hold(watched.held_since_s is None)
    world.failure_rate = 0.0
    world.brokers.heal()
    watched.hold(False)
    world.upstream.append(1)
    began_s = trio.current_time()
    await _owner(new_owner(), GRACE_MS / 1000 + 2 * LOOKS_S, generation + 1, kills=False)
    return began_s


def check_schedules(seeds: Iterable[int], folder: Path, *, strikes: bool) -> None:
    async def main(seed: int) -> None:
        world = CopyWorld(folder / str(seed), random.Random(seed))
        watched = _Watched(world)
        began_s = await _play(world, watched, strikes=strikes)
        assert watched.early == []
        assert world.unsafe_deletions == []
        for segment in world.finished(world.partition):
            is_below = segment.end_offset < world.committed.get(world.partition, 0)
            is_old = watched.retention != Retention() and watched.expires_s(segment) < began_s
            assert not is_below, f"{segment} was asked to go and has stayed"
            assert not is_old, f"{segment} has stayed"
        gone = [segment for partition in world.gone for segment in world.ledger(partition).segments()]
        assert gone == [], "of a topic that is gone"
        objects = {segment_id for segment_id, _ in held_segments(world.store)}
        assert {each.segment_id.id for each in world.finished(world.partition)} <= objects

    for seed in seeds:
        with case("schedule", seed), repeatable(seed):
            trio.run(main, seed, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("strikes", [False, True])
def test_no_object_goes_inside_its_wait_and_none_stays_beyond_it(tmp_path: Path, strikes: bool) -> None:
    check_schedules(range(SCHEDULES), tmp_path, strikes=strikes)
