"""How much is copied at once: a segment's turn comes when those before it have had their time."""

import pytest
import trio

from standalone.copier.limits import CopyRate

pytestmark = pytest.mark.autojump


async def test_who_no_longer_waits_leaves_its_time_to_others(nursery: trio.Nursery) -> None:
    rate, gone_at_s = CopyRate(100), list[float]()

    async def wait(size_bytes: int, given_up_after_s: float) -> None:
        with trio.move_on_after(given_up_after_s):
            await rate.wait(size_bytes)
            gone_at_s.append(trio.current_time())

    started_s = trio.current_time()
    async with trio.open_nursery() as waiting:
        await wait(100, 10)
        waiting.start_soon(wait, 500, 0.5)
    await wait(100, 10)
    assert [at_s - started_s for at_s in gone_at_s] == pytest.approx([0, 1])
