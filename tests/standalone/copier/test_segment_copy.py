"""Owners of one partition that are killed, paused and replaced at any step, over thousands of schedules.

Each schedule is a world: one metadata log, one store, owners that take one step at a time in an order drawn from the
schedule's seed. What must hold is in `check_schedules`.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from standalone.copier.ledger import Ledger
from standalone.copier.segment_copy import DeleteObjects, Publish, SegmentCopy, Step, Steps, Upload
from standalone.copier.staging import StagedSegment
from storage.errors import RetriableRemoteStorageError
from storage.metadata.serde import MetadataRecord
from storage.model import CustomMetadata, LogSegmentData, RemoteLogSegmentMetadata, RemoteLogSegmentState, Uuid
from tests.support.cases import case
from tests.support.segments import topic_partition

PARTITION = topic_partition()
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
SCHEDULES = 40
"""In `make test`; the folders all and long beside this file have more."""
FOUND = (580,)
"""Seeds that failed among the thousands."""


@dataclass
class _World:
    """What owners share. Epoch 1 begins at `epoch_offset`."""

    chance: random.Random
    log_end_offset: int = 0
    epoch_offset: int = 0
    records: list[MetadataRecord] = field(default_factory=list)
    objects: set[Uuid] = field(default_factory=set)
    ids: int = 0
    failure_rate: float = 0.0

    def new_id(self) -> Uuid:
        self.ids += 1
        return Uuid(self.ids.to_bytes(16, "big"))

    def staged(self, start_offset: int, size: int) -> StagedSegment:
        end_offset = min(start_offset + size, self.log_end_offset) - 1
        epochs = {0: start_offset} if start_offset < self.epoch_offset else {1: start_offset}
        if start_offset < self.epoch_offset <= end_offset:
            epochs[1] = self.epoch_offset
        nothing = Path("/nonexistent")
        return StagedSegment(
            files=LogSegmentData(nothing, nothing, nothing, b""),
            start_offset=start_offset,
            end_offset=end_offset,
            max_timestamp_ms=0,
            size_bytes=1,
            segment_leader_epochs=epochs,
        )


class _Owner:
    """A copier that believes that it owns the partition."""

    def __init__(self, world: _World, generation: int, *, deletes_spares: bool = True) -> None:
        self._world = world
        self._deletes_spares = deletes_spares
        self._position = 0
        self.ledger = Ledger(PARTITION)
        self.read(len(world.records))
        self.ledger.claim(generation)
        self._copy = SegmentCopy(self.ledger, world.new_id, lambda: 0)
        self._steps = self._work()
        self.has_deleted = False
        self._outcome: CustomMetadata | RetriableRemoteStorageError | None = None

    def read(self, end: int) -> None:
        for record in self._world.records[self._position : end]:
            self.ledger.note(record)
        self._position = max(self._position, end)

    def step(self) -> bool:
        """One step of what it does; False once it has ended."""
        outcome, self._outcome = self._outcome, None
        try:
            if isinstance(outcome, RetriableRemoteStorageError):
                step = self._steps.throw(outcome)
            else:
                step = self._steps.send(outcome)
        except StopIteration:
            return False
        self._outcome = self._done(step)
        return True

    def _done(self, step: Step) -> CustomMetadata | RetriableRemoteStorageError | None:
        world = self._world
        fails = world.chance.random() < world.failure_rate
        if fails and world.chance.random() < 0.5:
            return RetriableRemoteStorageError("it was not done")
        match step:
            case Publish(record):
                world.records.append(record)
                if not fails:
                    self.read(len(world.records))
            case Upload(segment):
                world.objects.add(segment.segment_id.id)
                if not fails:
                    return CustomMetadata(segment.segment_id.id)
            case DeleteObjects(segment):
                world.objects.discard(segment.segment_id.id)
                self.has_deleted = True
        return RetriableRemoteStorageError("nobody knows whether it was done") if fails else None

    def _work(self) -> Steps[None]:
        """Do a copier's round: tidy, copy what there is, again; it ends when there is nothing left to do."""
        is_done = False
        while not is_done or self._copy.unfinished:
            try:
                yield from self._copy.tidy()
                for spare, _ in self._copy.spares():
                    if self._deletes_spares:
                        yield from self._copy.delete(spare)
                start_offset = self.ledger.end_offset() + 1
                if start_offset >= self._world.log_end_offset or self.ledger.is_superseded:
                    is_done = True
                    self._copy.stop_trying()
                    continue
                staged = self._world.staged(start_offset, self._world.chance.choice([1, 3, 10, 30]))
                yield from self._copy.copy(staged)
            except RetriableRemoteStorageError:
                continue


def _drive(world: _World, kills: bool) -> None:
    """Owners come one after another; older ones go on for a while, or for ever."""
    chance = world.chance
    owners: list[_Owner] = []
    for generation in range(1, chance.randrange(2, 7)):
        world.log_end_offset += chance.choice([0, 5, 50])
        deletes_spares = chance.random() < 0.5  # else they wait
        owners.append(_Owner(world, generation if chance.random() < 0.9 else 1, deletes_spares=deletes_spares))
        for _ in range(chance.randrange(1, 60)):
            index = chance.randrange(len(owners)) if chance.random() < 0.5 else -1
            if not owners[index].step():
                owners.pop(index)
                if not owners:
                    break
        if kills and owners and chance.random() < 0.7:
            owners.pop(-1)
        elif kills:
            owners = owners[-1:]
    while owners:
        index = chance.randrange(len(owners))
        if not owners[index].step():
            owners.pop(index)
    world.failure_rate = 0.0
    waiting = _at_last(_Owner(world, 98, deletes_spares=False))
    assert all(map(waiting.ledger.is_covered, waiting.ledger.finished())), "a spare segment hides records"
    _at_last(_Owner(world, 99))


def _at_last(owner: _Owner) -> _Owner:
    while owner.step():
        pass
    return owner


def _seen(world: _World) -> Iterator[RemoteLogSegmentMetadata]:
    reader = _Owner(world, 100).ledger
    for segment in reader.segments():
        assert segment.state is FINISHED, f"{segment.segment_id} was left {segment.state.name}"
        assert reader.is_covered(segment), f"{segment.segment_id} is not seen by lookups"
        yield segment


KINDS = list(product((False, True), (0.0, 0.1)))
"""Whether owners are killed or only paused, and how often a step fails."""


def check_schedules(seeds: Iterable[int], kills: bool, failure_rate: float) -> None:
    for seed in seeds:
        with case("schedule", seed):
            world = _World(random.Random(seed), failure_rate=failure_rate)
            world.epoch_offset = world.chance.choice([0, 17, 60])
            _drive(world, kills)
            offset = 0
            live = list(_seen(world))
            for segment in live:
                # Where two owners cut the log differently, the end of one segment may be in the next one as well.
                assert segment.start_offset <= offset <= segment.end_offset
                offset = segment.end_offset + 1
                assert segment.custom_metadata == CustomMetadata(segment.segment_id.id)
            assert offset == world.log_end_offset
            held = {segment.segment_id.id for segment in live}
            assert held <= world.objects, "objects of a live segment are gone"
            assert kills or held == world.objects, f"{len(world.objects - held)} orphans"


@pytest.mark.parametrize(("kills", "failure_rate"), KINDS)
def test_no_schedule_leaves_a_hole_an_orphan_or_a_segment_twice(kills: bool, failure_rate: float) -> None:
    check_schedules([*range(SCHEDULES), *FOUND], kills, failure_rate)


@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("is_whole", [False, True], ids=["begun", "whole"])
def test_what_was_uploaded_after_another_owner_had_deleted_it_goes(is_whole: bool, is_read: bool) -> None:
    """Even if nobody knows whether the record that finishes it came into the topic."""
    for seed in range(20):  # it did, or did not
        world = _World(random.Random(seed), log_end_offset=1)
        slow = _Owner(world, 1)
        slow.step()
        (begun,) = slow.ledger.segments()
        other = _Owner(world, 2)
        while other.ledger.find(begun.segment_id) is not None and other.step():
            if other.has_deleted and not is_whole:
                break
        slow.step()
        assert begun.segment_id.id in world.objects
        world.failure_rate = 1.0
        slow.step()
        world.failure_rate = 0.0
        if is_read:
            slow.read(len(world.records))
        _at_last(slow)
        assert begun.segment_id.id not in world.objects
