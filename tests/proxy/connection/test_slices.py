"""Long work on the loop: who goes between its slices, whose turn it is, and what never waits."""

import trio

from protocol.wire.primitives import SLICE_ITEMS, Slices
from proxy.connection.request_handlers import each_slice, in_slices


def counting(slices: int, log: list[str], name: str = "work") -> Slices[str]:
    for number in range(slices):
        if number:
            yield
        log.append(name)
    return name


async def beside(log: list[str], times: int) -> None:
    for _ in range(times):
        log.append("other")
        await trio.lowlevel.checkpoint()


async def test_work_of_one_slice_does_not_wait() -> None:
    log: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()  # the first checkpoint would raise
        for slices in (0, 1):
            assert await in_slices(counting(slices, log)) == "work"
        assert await each_slice([1] * SLICE_ITEMS, len) == [SLICE_ITEMS]
    assert not scope.cancelled_caught


async def test_others_go_between_two_slices(nursery: trio.Nursery) -> None:
    log: list[str] = []
    nursery.start_soon(beside, log, 20)
    await in_slices(counting(5, log))
    runs = "".join(entry[0] for entry in log).split("o")
    assert "".join(runs) == "wwwww"
    assert max(map(len, runs)) <= 2, "in each look at what is ready both have one go, in any order"


async def test_one_work_is_under_way_at_a_time() -> None:
    """A hundred clients with large requests have one slice between two looks at the network, not a hundred."""
    log: list[str] = []
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(in_slices, counting(4, log, name))
    assert sorted(log[:3]) == ["a", "b", "c"], "the first slice of each is as much as a small request"
    rest = "".join(log[3:])
    assert len(rest) == 9
    assert all(rest[at] * 3 == rest[at : at + 3] for at in (0, 3, 6))
