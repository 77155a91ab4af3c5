"""Offset indexes in memory: rebuilt when missing or wrong; time indexes: an empty one in place of one that is wrong.

What holds for all parts: `test_segment_parts`."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from metrics.get_meter import GetObject
from storage.cache import segment_parts
from storage.cache.segment_parts import FAILURE_AGE_S_MAX
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.model import IndexType
from storage.model import RemoteLogSegmentMetadata as Metadata
from storage.object_store.retries import ATTEMPTS_MAX, FRESH_MS
from tests.support.index_writer import encode_time_index
from tests.support.segments import FIRST_TIMESTAMP_MS, SyntheticSegment, filled_segment
from tests.support.tier import Tier, open_tier

SEGMENT = filled_segment(0, batch_count=60)
REBUILDS = ("tidegate_index_rebuilds_total", {"index": "offset"})
TIME_REBUILDS = ("tidegate_index_rebuilds_total", {"index": "time"})


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT])


@pytest.fixture
def metadata(tier: Tier) -> Metadata:
    return tier.logs[0][0]


def answers(index: OffsetIndex, segment: SyntheticSegment = SEGMENT) -> list[tuple[int, int]]:
    return [index.lookup(offset) for offset in range(segment.base_offset, segment.end_offset + 1)]


RIGHT = answers(OffsetIndex(SEGMENT.offset_index, 0))


async def test_a_corrupt_or_misleading_index_is_rebuilt(nursery: trio.Nursery) -> None:
    small = filled_segment(0, batch_count=20)
    for segment, content in (
        *((SEGMENT, content) for content in (b"x", b"\xff" * 8, SEGMENT.offset_index * 2)),
        (small, SEGMENT.offset_index),  # it leads out of its segment
    ):
        tier = open_tier(nursery, [segment])
        tier.store.replace(content, index_type=IndexType.OFFSET)
        index = await tier.indexes.get(tier.logs[0][0])
        assert answers(index, segment) == answers(OffsetIndex(segment.offset_index, 0), segment), content
        assert tier.sample(*REBUILDS) == 1


async def test_an_index_fetched_for_later_is_there_and_rebuilt_only_by_who_asks(tier: Tier, metadata: Metadata) -> None:
    tier.store.fail(RemoteResourceNotFoundError("gone"), index_type=IndexType.OFFSET)
    tier.indexes.fetch_soon(metadata)
    tier.indexes.fetch_soon(metadata)
    await tier.settled()
    assert (tier.store.index_fetches(), tier.store.log_fetches(), tier.sample(*REBUILDS)) == (1, [], 0)
    tier.indexes.fetch_soon(metadata)
    await tier.settled()
    assert tier.indexes.resident(metadata) is not None, "it is there after all"
    tier.indexes.fetch_soon(metadata)
    await tier.settled()
    assert tier.store.index_fetches() == 2


async def test_who_asks_while_an_index_is_fetched_for_later_has_it_rebuilt_once(tier: Tier, metadata: Metadata) -> None:
    tier.store.fail(RemoteResourceNotFoundError("gone"), index_type=IndexType.OFFSET, times=None)

    async def ask() -> None:
        assert answers(await tier.indexes.get(metadata)) == RIGHT

    async def rebuild() -> None:
        assert (await tier.indexes.rebuild(metadata, "it misled")).is_rebuilt

    tier.indexes.fetch_soon(metadata)
    async with trio.open_nursery() as askers:
        for task in (ask, ask, rebuild):
            askers.start_soon(task)
    assert tier.sample(*REBUILDS) == 1


async def test_an_empty_index_is_an_index_and_without_index_and_log_nothing_is_rebuilt(nursery: trio.Nursery) -> None:
    tiny = filled_segment(0, batch_count=1)
    assert tiny.offset_index == b""
    tier, lost = open_tier(nursery, [tiny]), open_tier(nursery, [SEGMENT])
    for _ in range(2):
        await tier.indexes.get(tier.logs[0][0])
    assert (tier.store.index_fetches(), tier.sample(*REBUILDS)) == (1, 0)
    lost.store.inner.delete_log_segment_data(lost.logs[0][0])
    with pytest.raises(RemoteResourceNotFoundError):
        await lost.indexes.get(lost.logs[0][0])
    assert lost.sample(*REBUILDS) == 0


async def test_a_rebuild_does_not_take_an_index_fetched_again_for_its_own(tier: Tier, metadata: Metadata) -> None:
    """One that misleads may have been evicted, and be on its way again, when a reader has it rebuilt."""
    misled = await tier.indexes.get(metadata)
    tier.indexes.drop_segment(metadata.segment_id.id)
    async with trio.open_nursery() as askers:
        askers.start_soon(tier.indexes.get, metadata)
        await trio.testing.wait_all_tasks_blocked()
        rebuilt = await tier.indexes.rebuild(metadata, "a test", instead_of=misled)
    assert rebuilt.is_rebuilt
    assert tier.sample(*REBUILDS) == 1
    assert await tier.indexes.rebuild(metadata, "a test", instead_of=misled) is rebuilt
    assert tier.sample(*REBUILDS) == 1
    assert await tier.indexes.rebuild(metadata, "a test", instead_of=rebuilt) is not rebuilt
    assert tier.sample(*REBUILDS) == 2


# --- trouble ---


async def test_an_index_absent_soon_after_finished_is_waited_for_before_it_is_rebuilt(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    for age_ms, attempts in [(FRESH_MS - 1, ATTEMPTS_MAX), (FRESH_MS, 1)]:
        tier = open_tier(nursery, [SEGMENT], now_ms=lambda age_ms=age_ms: FIRST_TIMESTAMP_MS + age_ms)
        absent = RemoteResourceNotFoundError("not yet")
        tier.store.fail(absent, index_type=IndexType.OFFSET, times=None)
        assert answers(await tier.indexes.get(tier.logs[0][0])) == RIGHT
        assert (tier.store.index_fetches(), tier.sample(*REBUILDS)) == (attempts, 1)
        assert tier.sample("tidegate_gets_total", {"outcome": "not_found"}) == attempts


async def test_the_gets_of_a_rebuild_are_counted(tier: Tier, metadata: Metadata) -> None:
    await tier.indexes.rebuild(metadata, "a test")
    assert [gets(tier, kind) for kind in GetObject] == [1, 0, 0]
    assert tier.sample("tidegate_get_bytes_total", {"outcome": "ok"}) == len(SEGMENT.log)
    tier.store.cut_log(metadata, 5000, times=1)
    with pytest.raises(CorruptObjectError, match="truncated"):
        await tier.indexes.rebuild(metadata, "a test")
    outcomes = {outcome: tier.sample("tidegate_gets_total", {"outcome": outcome}) for outcome in ("ok", "corrupt")}
    assert outcomes == {"ok": 1, "corrupt": 1}
    assert tier.sample("tidegate_get_bytes_total") == len(SEGMENT.log)


async def test_a_broken_log_rests_for_half_a_minute(autojump_clock: MockClock, tier: Tier, metadata: Metadata) -> None:
    tier.store.replace(b"x", index_type=IndexType.OFFSET)
    tier.store.cut_log(metadata, 5000, times=1)
    for _ in range(3):
        with pytest.raises(CorruptObjectError, match="truncated"):
            await tier.indexes.get(metadata)
        with pytest.raises(CorruptObjectError, match="truncated"):
            await tier.indexes.rebuild(metadata, "a test")
    assert len(tier.store.log_fetches()) == 1
    await trio.sleep(FAILURE_AGE_S_MAX)
    assert answers(await tier.indexes.get(metadata)) == RIGHT
    assert len(tier.store.log_fetches()) == 2


async def test_of_broken_logs_the_latest_are_remembered(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_parts, "FAILURES_MAX", 2)
    tier = open_tier(nursery, [filled_segment(base) for base in (0, 200, 400)])
    for metadata, _ in (*tier.logs, *tier.logs):
        tier.store.cut_log(metadata, 50)
    for metadata, _ in (*tier.logs, tier.logs[2], tier.logs[0]):
        with pytest.raises(CorruptObjectError):
            await tier.indexes.rebuild(metadata, "a test")
    fetches = [len(tier.store.log_fetches(metadata)) for metadata, _ in tier.logs]
    assert fetches == [2, 1, 1]


def gets(tier: Tier, kind: GetObject) -> float:
    return tier.sample("tidegate_gets_total", {"object": kind.value})


# --- time indexes ---


async def test_an_empty_time_index_stands_in_for_a_wrong_one(nursery: trio.Nursery) -> None:
    for content in (b"x", b"\xff" * 12, SEGMENT.time_index * 2, encode_time_index(0, [(5, 600)])):
        tier = open_tier(nursery, [SEGMENT])
        metadata, times = tier.logs[0][0], tier.storage.parts.time_indexes
        tier.store.replace(content, index_type=IndexType.TIMESTAMP)
        index = await times.get(metadata)
        assert (len(index), index.lookup(2**62)) == (0, (-1, 0)), content
        assert await times.get(metadata) is index
        assert (tier.sample(*TIME_REBUILDS), tier.store.log_fetches()) == (1, [])
