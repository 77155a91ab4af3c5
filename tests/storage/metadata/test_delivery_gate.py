"""The gate that records pass."""

import pytest
import trio
import trio.testing

from storage.metadata.topic_log import DeliveryGate

pytestmark = pytest.mark.autojump


async def test_nobody_passes_while_it_is_held() -> None:
    gate = DeliveryGate()
    passed: list[float] = []

    async def pass_through() -> None:
        await gate.passed()
        passed.append(trio.current_time() - began_s)

    began_s = trio.current_time()
    await pass_through()
    async with trio.open_nursery() as nursery, gate.held():
        nursery.start_soon(pass_through)
        await trio.sleep(1)
        async with gate.held():
            nursery.start_soon(pass_through)
            await trio.sleep(1)
        await trio.sleep(1)
        assert passed == [0]
    await pass_through()
    assert passed == [0, 3, 3, 3]


async def test_one_that_is_held_again_at_once_lets_nobody_through() -> None:
    gate = DeliveryGate()
    async with trio.open_nursery() as nursery:
        async with gate.held():
            nursery.start_soon(gate.passed)
            await trio.sleep(1)
        async with gate.held():
            await trio.sleep(1)
            assert nursery.child_tasks
    assert not nursery.child_tasks


async def test_whoever_waits_or_holds_can_be_cancelled() -> None:
    gate = DeliveryGate()
    async with gate.held():
        with trio.move_on_after(1) as waiting:
            await gate.passed()
    assert waiting.cancelled_caught
    with trio.move_on_after(1):
        async with gate.held():
            await trio.sleep_forever()
    await gate.passed()
