"""Waiting for the end of the metadata topic, by many reads at once, with records applied in another thread."""

from collections.abc import Callable, Mapping
from typing import cast

import pytest
import trio
import trio.testing

from proxy.catalog_tail import InMemoryCatalogTail, TopicCatalogTail
from storage.errors import RetriableRemoteStorageError
from storage.metadata.manager import TopicBasedRemoteLogMetadataManager
from storage.metadata.partitioner import metadata_partition
from tests.support.segments import topic_partition

PARTITION = topic_partition("orders", 0)
COUNT = 5
NUMBER = metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT)


class ScriptedManager:
    """How far each metadata partition was applied."""

    def __init__(self) -> None:
        self.positions = dict.fromkeys(range(COUNT), 0)
        self.ready = False
        self._listeners: list[Callable[[int, int], None]] = []

    def position(self, number: int) -> int:
        return self.positions[number]

    def is_ready(self, _partition: object) -> bool:
        return self.ready

    def on_progress(self, listener: Callable[[int, int], None]) -> None:
        self._listeners.append(listener)

    def apply(self, number: int, position: int) -> None:
        """From any thread."""
        self.positions[number] = position
        for listener in self._listeners:
            listener(number, position)


def tail_of(manager: ScriptedManager, ends: Mapping[int, int]) -> TopicCatalogTail:
    async def high_watermarks() -> Mapping[int, int]:
        await trio.lowlevel.checkpoint()
        return ends

    return TopicCatalogTail(cast(TopicBasedRemoteLogMetadataManager, manager), lambda: COUNT, high_watermarks)


async def test_what_is_applied_already_is_not_waited_for() -> None:
    manager = ScriptedManager()
    manager.positions[NUMBER] = 7
    await tail_of(manager, {NUMBER: 7}).catch_up(PARTITION)
    await tail_of(manager, {}).catch_up(PARTITION)


async def test_every_read_that_waits_is_woken() -> None:
    # Failed before: each waiter took the others' event away, and only the last one was ever woken.
    manager = ScriptedManager()
    tail = tail_of(manager, {NUMBER: 10})
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(tail.catch_up, PARTITION)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(manager.apply, NUMBER, 10)


async def test_progress_short_of_the_end_or_elsewhere_is_waited_through() -> None:
    manager = ScriptedManager()
    tail = tail_of(manager, {NUMBER: 10})
    done = trio.Event()

    async def wait() -> None:
        await tail.catch_up(PARTITION)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for number, position in ((NUMBER, 9), ((NUMBER + 1) % COUNT, 99)):
            await trio.testing.wait_all_tasks_blocked()
            manager.apply(number, position)
            await trio.testing.wait_all_tasks_blocked()
            assert not done.is_set()
        manager.apply(NUMBER, 11)


async def test_a_topic_that_does_not_say_where_it_ends_is_the_readers_error() -> None:
    async def fail() -> Mapping[int, int]:
        await trio.lowlevel.checkpoint()
        raise RetriableRemoteStorageError("no leader")

    tail = TopicCatalogTail(cast(TopicBasedRemoteLogMetadataManager, ScriptedManager()), lambda: COUNT, fail)
    with pytest.raises(RetriableRemoteStorageError):
        await tail.catch_up(PARTITION)


async def test_readiness_is_the_managers() -> None:
    manager = ScriptedManager()
    tail = tail_of(manager, {})
    assert not tail.is_ready(PARTITION)
    manager.ready = True
    assert tail.is_ready(PARTITION)


async def test_a_catalog_without_a_log_is_always_there() -> None:
    tail = InMemoryCatalogTail()
    assert tail.is_ready(PARTITION)
    await tail.catch_up(PARTITION)
