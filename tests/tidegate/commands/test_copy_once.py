"""When `tidegate copy --once` ends, and what it says then: the group decides what it has, and may take it back."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from standalone.copier.progress import PartitionProgress
from standalone.copying import Copying
from tests.support.segments import topic_partition
from tidegate import exit_codes
from tidegate.commands import copy


@dataclass
class Group:
    """As much of `Copying` as the end of `--once` asks; tests change it while it runs."""

    wanted: set[tuple[str, int]]
    mine: set[tuple[str, int]]
    left: list[str] = field(default_factory=list)
    looked_at: set[tuple[str, int]] = field(default_factory=set)
    waiting: list[PartitionProgress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.joined = trio.Event()
        self.joined.set()
        self.topics = SimpleNamespace(refused={})

    def partitions(self) -> set[tuple[str, int]]:
        return self.wanted

    def assigned(self) -> list[Any]:
        return [topic_partition(topic, number) for topic, number in self.mine]

    def left_to_group(self) -> list[str]:
        return self.left

    def gone(self) -> list[PartitionProgress]:
        return self.waiting

    def progress(self) -> list[PartitionProgress]:
        return [PartitionProgress(topic=t, partition=n, looks=(t, n) in self.looked_at) for t, n in self.mine]


class Ending:
    """`--once` with such a group; `stopped` once it has asked for its end."""

    def __init__(self, group: Group, nursery: trio.Nursery) -> None:
        self.outcome = copy._Outcome()
        send, self._hear = trio.open_memory_channel[int](1)
        nursery.start_soon(copy._end_when_copied, cast(Copying, group), send, self.outcome)

    @property
    def is_over(self) -> bool:
        return self._hear.statistics().current_buffer_used > 0

    async def exit_code(self) -> int:
        await self._hear.receive()
        return self.outcome.exit_code


async def some_looks() -> None:
    await trio.sleep(20 * copy.ONCE_POLL_S)


async def test_a_group_that_counts_a_copier_that_died_is_waited_for(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Failed before: topics that are copied no more were left as they were, and nothing said so."""
    group = Group({("a", 0)}, {("a", 0)}, left=["b"], looked_at={("a", 0)})
    ending = Ending(group, nursery)
    await some_looks()
    assert not ending.is_over
    group.left, group.wanted, group.mine = [], {("a", 0), ("b", 0)}, {("a", 0), ("b", 0)}
    await some_looks()
    assert not ending.is_over, "of b nothing was looked at"
    group.looked_at.add(("b", 0))
    assert await ending.exit_code() == exit_codes.DONE


@pytest.mark.parametrize("left", [["b"], []], ids=["another copy.topics", "others' partitions"])
async def test_what_the_group_keeps_from_it_for_a_minute_is_said(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, left: list[str]
) -> None:
    group = Group({("a", 0), ("a", 1)}, {("a", 0)} if not left else {("a", 0), ("a", 1)}, left=left)
    group.looked_at = set(group.mine)
    ending, began_s = Ending(group, nursery), trio.current_time()
    assert await ending.exit_code() == exit_codes.FOUND_WRONG
    assert trio.current_time() - began_s == pytest.approx(copy.ONCE_ASSIGNED_S_MAX, abs=1)


async def test_it_ends_also_if_a_copier_that_came_has_taken_partitions_from_it(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Failed before: it waited for them until it was stopped."""
    group = Group({("a", 0), ("a", 1)}, {("a", 0), ("a", 1)}, looked_at={("a", 0)})
    ending = Ending(group, nursery)
    await some_looks()
    group.mine.remove(("a", 1))
    assert await ending.exit_code() == exit_codes.FOUND_WRONG


async def test_what_it_has_is_copied_to_its_end_however_long_that_takes(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    group = Group({("a", 0), ("a", 1)}, {("a", 0)})
    ending = Ending(group, nursery)
    await trio.sleep(10 * copy.ONCE_ASSIGNED_S_MAX)
    assert not ending.is_over
    group.looked_at.add(("a", 0))
    assert await ending.exit_code() == exit_codes.FOUND_WRONG


async def test_what_was_done_stays_done_after_the_partition_is_another_members(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    group = Group({("a", 0), ("a", 1)}, {("a", 0), ("a", 1)}, looked_at={("a", 0)})
    ending = Ending(group, nursery)
    await some_looks()
    group.mine.remove(("a", 0))
    group.looked_at.add(("a", 1))
    assert await ending.exit_code() == exit_codes.DONE
