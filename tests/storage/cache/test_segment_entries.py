"""Entries by segment: one load, limits, and nothing left of what was dropped."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.segment_entries import SegmentEntries
from storage.model import Uuid

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
Load = Callable[[], Awaitable[tuple[str, int]]]


def after(event: trio.Event, value: str = "value", size_bytes: int = 1) -> Load:
    async def load() -> tuple[str, int]:
        await event.wait()
        return value, size_bytes

    return load


def at_once(value: str, size_bytes: int = 1) -> Load:
    async def load() -> tuple[str, int]:
        await trio.lowlevel.checkpoint()
        return value, size_bytes

    return load


@pytest.fixture
def entries(nursery: trio.Nursery) -> SegmentEntries[str]:
    return SegmentEntries(nursery, bytes_max=10)


async def test_a_load_replaces_what_is_there(entries: SegmentEntries[str]) -> None:
    await entries.start(A, at_once("old", 3)).wait()
    await entries.start(A, at_once("new", 4)).wait()
    assert (entries.resident(A), entries.size_bytes) == ("new", 4)


async def test_nobody_waits_for_ever_when_the_application_ends() -> None:
    async with trio.open_nursery() as waiters, trio.open_nursery() as application:
        entries: SegmentEntries[str] = SegmentEntries(application, bytes_max=10)
        flight = entries.start(A, after(trio.Event()))

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await flight.wait()

        waiters.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        application.cancel_scope.cancel()
    with pytest.raises(RuntimeError):
        entries.start(B, at_once("late"))


async def test_changes_are_told(nursery: trio.Nursery) -> None:
    told: list[int] = []
    entries: SegmentEntries[str] = SegmentEntries(nursery, bytes_max=10, on_change=told.append)
    await entries.start(A, at_once("a")).wait()
    await entries.start(B, at_once("b")).wait()
    entries.drop(A)
    assert told == [1, 2, 1]


@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 15)), max_size=40))
def test_the_limits_hold_but_for_one_large_entry(sizes: list[tuple[int, int]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            entries: SegmentEntries[str] = SegmentEntries(nursery, bytes_max=10, entries_max=4)
            kept: dict[Uuid, int] = {}
            for name, size_bytes in sizes:
                segment_id = Uuid(bytes([name]) * 16)
                await entries.start(segment_id, at_once(str(name), size_bytes)).wait()
                kept[segment_id] = size_bytes
                assert entries.resident(segment_id) == str(name)
                kept = {key: size for key, size in kept.items() if entries.resident(key) is not None}
                assert (len(entries), entries.size_bytes) == (len(kept), sum(kept.values()))
                assert len(kept) == 1 or (len(kept) <= 4 and entries.size_bytes <= 10)

    trio.run(main)
