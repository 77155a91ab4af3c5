"""Background tasks that fail: begun again, told and counted, and the end of nobody else."""

from collections.abc import Iterator, Sequence

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from metrics.process_meters import TaskMeter
from metrics.registry import Registry
from proxy.tasks import FAILURES_MAX, FAILURES_WINDOW_S, Tasks
from storage.errors import StorageConfigError

pytestmark = pytest.mark.autojump

FAULTS = (KeyError("gone"), UnicodeError("label empty"), AssertionError("never"))


class World:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.registry = Registry()
        self.told: Sequence[str] = ()
        self.runs = 0
        self.faults: list[BaseException] = []
        self.tasks = Tasks(nursery, TaskMeter(self.registry), self.tell)

    def tell(self, reasons: Sequence[str]) -> None:
        self.told = reasons

    async def run(self) -> None:
        """Fails as often as there are faults, and then goes on for ever."""
        self.runs += 1
        await trio.lowlevel.checkpoint()
        if self.faults:
            raise self.faults.pop(0)
        await trio.sleep_forever()

    def failures(self, task: str) -> float | None:
        return self.registry.sample_value("tidegate_task_failures_total", {"task": task})


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


@pytest.fixture(autouse=True)
def lines() -> Iterator[list[dict[str, object]]]:
    """Not shown: a trace on a terminal costs a second."""
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]  # its values are objects


async def test_what_fails_is_begun_again_with_a_back_off(world: World, lines: list[dict[str, object]]) -> None:
    world.faults = [*FAULTS]
    world.tasks.keep("work", world.run)
    assert world.failures("work") == 0
    began_s = trio.current_time()
    await trio.sleep(20)
    assert world.runs == 4
    assert world.failures("work") == 3
    assert not world.told
    assert [line["task"] for line in lines if line["event"] == "task_failed"] == ["work"] * 3
    assert all(line["exc_info"] for line in lines)
    assert trio.current_time() - began_s == 20


async def test_one_that_fails_again_and_again_is_told_until_it_runs(world: World) -> None:
    world.faults = [KeyError("gone")] * FAILURES_MAX
    world.tasks.keep("work", world.run)
    await trio.sleep(FAILURES_WINDOW_S / 2)
    assert world.told == ["work has failed 5 times within 60 s, the last time by KeyError('gone')"]
    await trio.sleep(FAILURES_WINDOW_S)
    assert not world.told


async def test_one_that_never_runs_is_told_for_ever(world: World) -> None:
    world.faults = [KeyError("gone")] * 1000
    world.tasks.keep("work", world.run)
    await trio.sleep(FAILURES_WINDOW_S)
    for _ in range(100):
        assert world.told
        await trio.sleep(7)


async def test_one_that_was_started_once_is_not_begun_again(world: World, lines: list[dict[str, object]]) -> None:
    world.faults = [*FAULTS]
    world.tasks.start_soon(world.run)
    await trio.sleep(20)
    assert (world.runs, world.failures("World.run")) == (1, 1)
    assert [line["event"] for line in lines] == ["task_failed"]


async def test_one_that_returns_has_ended(world: World) -> None:
    runs: list[None] = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        runs.append(None)

    world.tasks.keep("work", work)
    await trio.sleep(20)
    assert len(runs) == 1


async def test_a_group_is_split_and_keeps_its_cancellation(lines: list[dict[str, object]]) -> None:
    """A fault in the turn of a shutdown: it is reported, and the shutdown goes on."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)

        async def work() -> None:
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                try:
                    await trio.sleep_forever()
                finally:
                    raise KeyError("gone")

        world.tasks.keep("work", work)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert world.failures("work") == 1
    assert [line["event"] for line in lines] == ["task_failed"]


@pytest.mark.parametrize("error", [StorageConfigError("wrong"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("in_a_group", [False, True])
async def test_what_ends_the_process_still_does(error: BaseException, in_a_group: bool) -> None:
    raised = BaseExceptionGroup("", [error, KeyError("gone")]) if in_a_group else error

    async def application() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            world.faults = [raised]
            world.tasks.keep("work", world.run)

    with pytest.raises(BaseExceptionGroup) as caught:
        await application()
    assert caught.value.subgroup(type(error)) is not None
    assert caught.value.subgroup(KeyError) is None


async def test_failures_far_apart_are_none_to_tell(world: World, autojump_clock: MockClock) -> None:
    async def work() -> None:
        await trio.sleep(FAILURES_WINDOW_S / 3)
        raise KeyError("gone")

    world.tasks.keep("work", work)
    for _ in range(50):
        await trio.sleep(FAILURES_WINDOW_S / 4)
        assert not world.told
