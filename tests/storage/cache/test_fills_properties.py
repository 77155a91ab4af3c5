"""Whatever is wanted and whatever fails: each block once, no two GETs for one, within the budget."""

import contextlib
from collections import Counter
from dataclasses import dataclass

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.cache.flight import Flight
from storage.cache.memory import Block
from storage.errors import CorruptObjectError, RemoteAccessDeniedError, RemoteStorageError, RetriableRemoteStorageError
from storage.remote_storage_manager import SegmentStream
from tests.support.scripted_gets import MIB, FillWorld, Script, ScriptedSegment

BLOCKS = 40
GETS_MAX = 3


class WatchedSegment(ScriptedSegment):
    """Notes GETs of blocks that an open one has still to bring, and how many were open."""

    overlaps = 0
    open_max = 0

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        asked = range(self.grid.number_at(start_position), self.grid.number_at(end_position - 1) + 1)
        open_gets = self.open_gets
        self.overlaps += sum(bool(set(get.left) & set(asked)) for get in open_gets)
        self.open_max = max(self.open_max, len(open_gets) + 1)
        return super().open_stream(start_position, end_position)


@dataclass(frozen=True)
class Step:
    first: int
    count: int
    demanded: bool
    turns: int


STEPS = st.builds(Step, st.integers(0, BLOCKS - 1), st.integers(1, 30), st.booleans(), st.integers(0, 20))
ERRORS = st.sampled_from([RetriableRemoteStorageError("503"), CorruptObjectError("?"), RemoteAccessDeniedError("403")])
SCRIPTS = st.builds(
    Script, refusal=st.none() | ERRORS, fails=st.dictionaries(st.integers(0, BLOCKS - 1), ERRORS, max_size=2)
)


@settings(max_examples=40)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=8),
    scripts=st.lists(SCRIPTS, max_size=12),
    unit_blocks=st.integers(1, 3),
    budget_mib=st.integers(1, 12),
)
def test_each_block_lands_once_and_budgets_hold(
    steps: list[Step], scripts: list[Script], unit_blocks: int, budget_mib: int
) -> None:
    segment = WatchedSegment(BLOCKS, unit_blocks=unit_blocks)
    segment.script(*scripts)

    async def main() -> None:
        flights = dict[Flight[Block], int]()
        succeeded = Counter[int]()
        async with trio.open_nursery() as application:
            world = FillWorld(application, gets_max=GETS_MAX, budget_bytes=budget_mib * MIB)
            for step in steps:
                numbers = range(step.first, min(step.first + step.count, BLOCKS))
                flights.update(zip(world.want(segment, numbers, demanded=step.demanded), numbers, strict=True))
                for _ in range(step.turns):
                    await trio.lowlevel.checkpoint()
            for flight, number in flights.items():
                try:
                    block = await flight.wait()
                except RemoteStorageError:
                    continue
                assert bytes(block.data) == segment.block(number)
                succeeded[number] += 1
            # Blocks that nobody asked for may still be tried again, in virtual time.
            while len(world.fills) or world.budget.held:  # noqa: ASYNC110  # a GET sets no event when it has ended
                await trio.sleep(0.1)
        landed = Counter(world.numbers())
        assert all(landed[number] >= times for number, times in succeeded.items())
        assert unit_blocks > 1 or landed == succeeded
        brought = Counter[int]()
        for get in segment.gets:
            brought.update(get.numbers[: len(get.numbers) - len(get.left)])
        assert brought == landed, "nothing was transferred for nothing"
        check_limits(world)

    def check_limits(world: FillWorld) -> None:
        # Virtual time passes while threads work, so on a busy machine bodies are slow and GETs are split. The first
        # of the two is still open for what it gave away, and stops before it.
        assert segment.overlaps <= world.sample("get_splits_total")
        assert segment.open_max <= GETS_MAX
        assert (world.budget.held, world.fills.read_ahead_bytes) == (0, 0)
        # What is larger than the whole budget goes alone; here that is one GET.
        # Beside its blocks it holds a chunk as stored, decrypted, and as plaintext if it has several blocks.
        block_bytes = segment.grid.block_bytes
        decoding_bytes = 2 * unit_blocks * MIB + (unit_blocks > 1) * unit_blocks * block_bytes
        largest_bytes = max(len(get.numbers) * block_bytes + decoding_bytes for get in segment.gets)
        assert world.held_bytes_max <= max(budget_mib * MIB, largest_bytes)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@given(
    wants=st.lists(st.tuples(st.integers(0, 39), st.booleans()), min_size=1, max_size=30), cancel_at=st.integers(0, 60)
)
def test_whenever_the_application_ends_every_flight_does(wants: list[tuple[int, bool]], cancel_at: int) -> None:
    async def main() -> None:
        segment = ScriptedSegment(BLOCKS)
        flights = list[Flight[Block]]()
        ended = list[int]()
        async with trio.open_nursery() as application:
            world = FillWorld(application, gets_max=2, budget_bytes=3 * MIB)
            for number, demanded in wants:
                flights += world.want(segment, [number], demanded=demanded)
            for _ in range(cancel_at):
                await trio.lowlevel.checkpoint()
            application.cancel_scope.cancel()
        for number, flight in enumerate(flights):
            with contextlib.suppress(trio.ClosedResourceError):
                await flight.wait()
            ended.append(number)
        assert len(ended) == len(wants)
        assert (len(world.fills), world.budget.held) == (0, 0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
