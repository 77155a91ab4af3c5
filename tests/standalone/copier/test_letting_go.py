"""What is staged is not thrown away: by a copier that ends, a store that is away, an upstream that deletes first."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from standalone.copier.seams import Retention
from standalone.copier.staging_folder import OWN_NAME, partition_folder
from storage.errors import RetriableRemoteStorageError
from tests.support.copy_world import PARTITION, CopyWorld
from tests.support.running_copier import only, ranges, running, until, value
from tests.support.segments import topic_partition

pytestmark = pytest.mark.autojump

FIVE = [topic_partition("orders", number) for number in range(5)]


@pytest.fixture
def world(tmp_path: Path) -> CopyWorld:
    return CopyWorld(tmp_path, random.Random(7), FIVE)


async def test_a_store_that_is_away_costs_no_records(world: CopyWorld) -> None:
    """Failed before: each try published three."""
    world.upstream.append(40)
    hands = world.hands()
    put = world.store.put
    world.store.put = _away  # type: ignore[method-assign]  # for a while
    async with running(hands) as copier:
        await until(lambda: only(copier).last_error is not None)
        await trio.sleep(300)
        assert (value(hands, "kafka_server_brokertopicmetrics_remotecopyerrors_total", topic="orders") or 0) > 5
        assert len(world.records()) == 1
        world.store.put = put  # type: ignore[method-assign]  # it is there again
        await until(lambda: world.ledger().end_offset() == 119)
        assert ranges(world)[0][0] == 0


def _away(key: str, source: Any) -> None:
    raise RetriableRemoteStorageError("away")


async def test_of_strangers_in_the_staging_folder_nothing_is_removed(world: CopyWorld) -> None:
    """Failed before: a folder that held the tier was emptied, tier and all."""
    hands = world.hands()
    own, folder = hands.folder / OWN_NAME, partition_folder(hands.folder, PARTITION)
    strangers = [
        hands.folder / "tier" / f"{0:020}.log",
        hands.folder / f"{0:020}.log",
        own / "orders-0" / f"{0:020}.log",
        own / folder.name.replace("orders", "others") / "notes.txt",
        own / f"{0:020}.log",
        folder / "notes.txt",
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")
    (own / folder.name.replace("orders", "linked")).symlink_to(hands.folder / "tier")
    world.upstream.append(20)
    with capture_logs() as logs:
        async with running(hands):
            await until(lambda: world.ledger().end_offset() == 59)
    assert all(path.read_bytes() == b"left" for path in strangers)
    assert [line["event"] for line in logs].count("staging_folder_not_ours") == 5


async def test_what_is_staged_is_copied_when_it_is_let_go(world: CopyWorld) -> None:
    """Failed before: it was thrown away, and where upstream had deleted it, was in no place."""
    world.upstream.append(5)
    async with running(world.hands(), segment_ms=100_000, segment_bytes=100_000) as copier:
        await until(lambda: only(copier).lag_bytes > 0)
        assert ranges(world) == []
        await copier.revoke([PARTITION])
        assert ranges(world) == [(0, 14)]


@pytest.mark.parametrize("is_staged", [True, False])
async def test_upstreams_retention_counts_by_age_and_by_size(world: CopyWorld, is_staged: bool) -> None:
    """Failed before: a topic with retention.bytes alone had no alert before its records were lost."""
    world.upstream.append(4)
    hands = world.hands()

    def share() -> float:
        return value(hands, "tidegate_copy_upstream_retention_share", topic="orders") or 0

    async with running(hands, segment_ms=10**9, segment_bytes=10**6) as copier:
        await until(lambda: only(copier).looks > 1)
        assert share() == 0
        copied_bytes = size_bytes = sum(len(batch.content) for batch in world.upstream.batches)
        if not is_staged:
            await copier.revoke([PARTITION])
            hands.is_disabled = True
            world.upstream.append(8)
            size_bytes = sum(len(batch.content) for batch in world.upstream.batches) - copied_bytes
            await copier.assign([PARTITION], 2)
            await until(lambda: copier.progress() and only(copier).looks > 0)
        hands.upstream_retention = Retention(retention_bytes=2 * size_bytes)
        await until(lambda: share() > 0)
        assert share() == pytest.approx(0.5, rel=0.05)
        hands.upstream_retention = Retention(retention_bytes=10**9, retention_ms=100_000)
        await until(lambda: only(copier).lag_ms > 60_000, within_s=120)
        assert share() == pytest.approx(only(copier).lag_ms / 100_000)


async def test_what_is_staged_goes_early_when_upstream_comes_near(world: CopyWorld) -> None:
    world.upstream.append(10)
    async with running(world.hands(), segment_ms=10**9, segment_bytes=10**6, lag_ms=10**9):
        await trio.sleep(5)
        world.upstream.delete_before(6)
        await until(lambda: ranges(world) == [(0, 29)])
        world.upstream.append(10)
        await trio.sleep(20)
        assert ranges(world) == [(0, 29)], "what is far from upstream's log start waits"


async def test_what_was_staged_and_not_copied_is_read_again_where_upstream_has_deleted_it(world: CopyWorld) -> None:
    world.upstream.append(20)
    hands = world.hands()
    put = world.store.put
    world.store.put = _away  # type: ignore[method-assign]  # when the process ends
    async with running(hands) as copier:
        await until(lambda: only(copier).last_error is not None)
    assert world.finished() == []
    world.store.put = put  # type: ignore[method-assign]  # it is there again
    for left in (hands.folder / OWN_NAME).rglob("*.log"):
        os.utime(left, (0, 0))  # it is the only copy, however long the copier was away
    world.upstream.delete_before(60)
    world.upstream.append(5)
    async with running(hands, generation=2):
        await until(lambda: world.ledger().end_offset() == 74)
    kept_end = max(end for _, end in ranges(world) if end < 60) + 1
    assert (ranges(world)[0][0], kept_end > 20) == (0, True)
    assert value(hands, "tidegate_copy_gap_records_total") == 60 - kept_end
    assert [*(hands.folder / OWN_NAME).rglob("*.*")] == []


async def test_a_copier_that_stood_still_keeps_what_upstream_has_deleted_meanwhile(world: CopyWorld) -> None:
    """Failed before: it was superseded, and threw away what it held for upstream to have still; when the partition was
    its own again, the records were a gap."""
    world.upstream.append(10)
    hands, others = world.hands(), world.hands()
    async with running(hands, segment_ms=100_000, segment_bytes=100_000) as copier:
        await until(lambda: only(copier).lag_bytes > 0)
        hands.pause(20)
        async with running(others, generation=2):
            await until(lambda: ranges(world))
            others.is_disabled = True
        assert ranges(world) == [(0, 11)]
        world.upstream.delete_before(30)
        world.upstream.append(1)
        with capture_logs() as logs:
            world.failure_rate = 1.0  # when it goes on, nobody answers
            await until(lambda: "copy_superseded" in [line["event"] for line in logs])
            world.failure_rate = 0.0
        await until(lambda: world.ledger().end_offset() == 32, within_s=200)
        assert [start for start, _ in ranges(world)] == [0, 12]
        assert not value(hands, "tidegate_copy_gap_records_total")
