"""One copier from end to end over a world in memory: limits, lags, gaps, poison, divergence, letting go."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from protocol.client.leaders import FetchedRecords
from standalone.copier.seams import Retention
from standalone.copier.staging_folder import OWN_NAME
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.model import IndexType
from tests.support.copy_world import METADATA_PARTITIONS, PARTITION, CopyWorld
from tests.support.metadata_records import started
from tests.support.running_copier import only, ranges, running, until, value
from tests.support.segments import ProducerFields, control_batch, data_batch, topic_partition

pytestmark = pytest.mark.autojump

FIVE = [topic_partition("orders", number) for number in range(5)]


@pytest.fixture
def world(tmp_path: Path) -> CopyWorld:
    return CopyWorld(tmp_path, random.Random(7), FIVE)


async def test_all_is_copied_in_segments_and_the_quiet_end_by_its_age(world: CopyWorld) -> None:
    world.upstream.append(20)
    hands = world.hands()
    async with running(hands) as copier:
        await until(lambda: world.ledger().end_offset() == 59)
        await trio.sleep(2)
        progress = only(copier)
    assert ranges(world)[0][0] == 0
    assert all(after[0] == before[1] + 1 for before, after in zip(ranges(world), ranges(world)[1:], strict=False))
    assert (progress.copied_offset, progress.last_stable_offset, progress.lag_bytes) == (59, 60, 0)
    assert (progress.lag_ms, progress.last_error) == (0, None)
    size = sum(segment.segment_size_bytes for segment in world.finished())
    assert progress.copied_bytes == size == sum(len(batch.content) for batch in world.upstream.batches)
    assert value(hands, "kafka_server_brokertopicmetrics_remotecopybytes_total", topic="orders") == size
    assert value(hands, "tidegate_copy_age_seconds", topic="orders") == 0
    assert all(segment.broker_id == 1 for segment in world.finished())


async def test_what_another_has_left_is_gone_after_the_first_look(world: CopyWorld) -> None:
    """A half-done segment stays until others have its offsets, and `copy --once` looks once."""
    world.upstream.append(8)
    left = started("left", 0, 8, partition=PARTITION)
    world.log.publish(metadata_partition(PARTITION.topic_id, PARTITION.partition, METADATA_PARTITIONS), encode(left))
    assert world.ledger().segments() == [left]
    async with running(world.hands(), segment_bytes=1500, generation=2) as copier:
        await until(lambda: copier.progress() and only(copier).looks > 0)
        assert only(copier).looks == 1
        assert left.segment_id not in [segment.segment_id for segment in world.ledger().segments()]
        assert world.finished()[0].start_offset == 0


async def test_it_goes_on_where_the_tier_ends_with_lineage_and_open_producers(world: CopyWorld) -> None:
    upstream = world.upstream
    upstream.aborted = ((5, 0),)
    producer = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    upstream.append_raw(data_batch(0, record_count=20, producer=producer, first_timestamp_ms=world.now_ms()), 0, 19)
    async with running(world.hands(), segment_bytes=1500):
        await until(lambda: world.ledger().end_offset() == 19)
    upstream.elect(epochs=3)
    marker = control_batch(20, producer_id=5, leader_epoch=3, timestamp_ms=world.now_ms())
    upstream.append_raw(marker, 20, 20)
    async with running(world.hands(), segment_bytes=1500, generation=2):
        await until(lambda: world.ledger().end_offset() == 20)
    last = world.finished()[-1]
    assert (dict(last.segment_leader_epochs), last.txn_index_empty, last.broker_id) == ({3: 20}, False, 2)
    manager = world.manager()
    assert manager.fetch_index(last, IndexType.LEADER_EPOCH) == b"0\n2\n0 0\n3 20\n"
    snapshot = parse_producer_snapshot(manager.fetch_index(last, IndexType.PRODUCER_SNAPSHOT))
    assert [(state.producer_id, state.current_transaction_first_offset) for state in snapshot] == [(5, -1)]
    assert len(manager.fetch_index(last, IndexType.TRANSACTION)) == 34


async def test_only_what_is_stable_is_copied(world: CopyWorld) -> None:
    world.upstream.append(20)
    world.upstream.last_stable_offset = 30
    async with running(world.hands()):
        await until(lambda: world.ledger().end_offset() == 29)
        await trio.sleep(20)
        assert world.ledger().end_offset() == 29


async def test_a_new_topic_begins_at_upstreams_log_start_without_a_gap(world: CopyWorld) -> None:
    world.upstream.append(10)
    world.upstream.delete_before(15)
    hands = world.hands()
    async with running(hands):
        await until(lambda: world.ledger().end_offset() == 29)
    assert ranges(world)[0][0] == 15
    assert value(hands, "tidegate_copy_gaps_total") == 0


async def test_what_upstream_deleted_first_is_a_gap_that_is_counted_once(world: CopyWorld) -> None:
    world.upstream.append(10)
    async with running(world.hands()):
        await until(lambda: world.ledger().end_offset() == 29)
    world.upstream.append(20)
    world.upstream.delete_before(60)
    hands = world.hands()
    async with running(hands):
        await until(lambda: world.ledger().end_offset() == 89)
    assert (29 in {end for _, end in ranges(world)}, 60 in {start for start, _ in ranges(world)}) == (True, True)
    assert value(hands, "tidegate_copy_gaps_total") == 1
    assert value(hands, "tidegate_copy_gap_records_total") == 30


async def test_no_segment_spans_a_gap(world: CopyWorld) -> None:
    world.upstream.append(2)
    async with running(world.hands(), segment_ms=60_000):
        await trio.sleep(5)  # staged
        world.upstream.append(10)
        world.upstream.delete_before(30)
        await until(lambda: (0, 5) in ranges(world))
        await until(lambda: world.ledger().end_offset() >= 30, within_s=120)
    assert ranges(world)[1][0] == 30


async def test_after_an_unclean_election_it_goes_on_where_both_logs_part(world: CopyWorld) -> None:
    world.upstream.append(20)
    async with running(world.hands(), segment_bytes=5000):
        await until(lambda: world.ledger().end_offset() == 59)
        world.upstream.elect(keep=15, epochs=2)
        world.upstream.append(20)
        await until(lambda: any(segment.end_offset == 104 for segment in world.finished()))
    newer = world.finished()[-1]
    lineage = world.manager().fetch_index(newer, IndexType.LEADER_EPOCH)
    assert lineage == b"0\n2\n0 0\n2 45\n"
    assert any(
        segment.start_offset == 45 and dict(segment.segment_leader_epochs) == {2: 45} for segment in world.finished()
    )


async def test_a_lost_checkpoint_hides_no_truncation(world: CopyWorld) -> None:
    """Failed before: the newest segment counted alone, and what upstream wrote before it was never copied."""
    world.upstream.append(20)
    world.upstream.elect()
    world.upstream.append(20)
    async with running(world.hands()):
        await until(lambda: world.ledger().end_offset() == 119)
    del world.store.objects[max(key for key in world.store.objects if key.endswith(".leader_epoch_checkpoint"))]
    world.upstream.elect(keep=20)
    world.upstream.append(10)
    async with running(world.hands(), generation=2):
        await until(lambda: any(2 in each.segment_leader_epochs for each in world.finished()))
    assert min(each.start_offset for each in world.finished() if 2 in each.segment_leader_epochs) == 60


async def test_a_segment_waits_until_its_newest_record_is_old_enough(world: CopyWorld) -> None:
    world.upstream.append(20)
    begun_ms = world.now_ms()
    async with running(world.hands(), lag_ms=30_000) as copier:
        await until(lambda: only(copier).waits_for.startswith("copy.lag"))
        await until(lambda: bool(world.finished()))
        assert world.now_ms() - begun_ms >= 30_000


async def test_a_segment_waits_until_there_is_so_much_behind_it(world: CopyWorld) -> None:
    world.upstream.append(8)
    size = sum(len(batch.content) for batch in world.upstream.batches)
    async with running(world.hands(), lag_bytes=size) as copier:
        await until(lambda: only(copier).waits_for.startswith("copy.lag"))
        await trio.sleep(30)
        assert world.finished() == []
        world.upstream.append(8)
        await until(lambda: bool(world.finished()))


async def test_bytes_per_second_hold_for_all_partitions_together(world: CopyWorld) -> None:
    for upstream in world.upstreams.values():
        upstream.append(30)
    total = sum(len(batch.content) for upstream in world.upstreams.values() for batch in upstream.batches)
    begun_s = trio.current_time()
    async with running(world.hands(), partitions=FIVE, bytes_per_second_max=1000):
        await until(lambda: all(world.ledger(each).end_offset() == 89 for each in FIVE), within_s=200)
    took_s = trio.current_time() - begun_s
    assert took_s >= total / 1000 - 2  # the last segment goes before its time
    assert took_s < total / 1000 + 15


async def test_partitions_take_turns_with_one_slot(world: CopyWorld) -> None:
    for upstream in world.upstreams.values():
        upstream.append(60)
    async with running(world.hands(), partitions=FIVE, concurrent_max=1):
        await until(lambda: all(world.ledger(each).end_offset() > 0 for each in FIVE))
        most = max(world.ledger(each).end_offset() for each in FIVE)
        assert most < 100, "one partition was copied to its end while others waited"


async def test_disabled_it_copies_nothing_and_deletes_what_is_old(world: CopyWorld) -> None:
    world.upstream.append(20)
    hands = world.hands()
    async with running(hands, delete_grace_ms=0) as copier:
        await until(lambda: world.ledger().end_offset() == 59)
        hands.is_disabled = True
        await trio.sleep(3)
        world.upstream.append(20)
        hands.retention = Retention(retention_bytes=0)
        await until(lambda: world.finished() == [])
        assert only(copier).waits_for == "copy.disable"
        await trio.sleep(20)
    assert (world.finished(), world.committed) == ([], {PARTITION: 60})
    assert world.store.objects == {}


async def test_of_a_topic_that_is_not_copied_any_more_what_is_old_is_deleted(world: CopyWorld) -> None:
    """It has neither an age nor a stall, and where copying begins is not noted where nothing was copied. When it is
    named again it is copied again."""
    world.upstream.append(20)
    hands = world.hands()
    async with running(hands, delete_grace_ms=0):
        await until(lambda: world.ledger().end_offset() == 59)
    hands.is_copied = False
    world.upstream.append(20)
    async with running(hands, delete_grace_ms=0, partitions=FIVE[:2], generation=2) as copier:
        await until(lambda: len(copier.progress()) == 2 and all(each.looks > 1 for each in copier.progress()))
        assert {each.waits_for for each in copier.progress()} == {"nothing: its topic is not copied any more"}
        assert [(each.lag_ms, each.stall) for each in copier.progress()] == [(0, None)] * 2
        assert value(hands, "tidegate_copy_age_seconds", topic="orders") == 0
        hands.retention = Retention(retention_bytes=0)
        await until(lambda: world.finished() == [])
        assert world.committed == {PARTITION: 60}
        hands.is_copied, hands.retention = True, Retention()
        await until(lambda: world.ledger().end_offset() == 119)
    assert value(hands, "tidegate_copy_gaps_total") == 0


def _magic_1(base_offset: int) -> bytes:
    batch = bytearray(data_batch(base_offset))
    batch[16] = 1
    return bytes(batch)


def _broken(base_offset: int) -> bytes:
    batch = bytearray(data_batch(base_offset))
    batch[-1] ^= 1
    return bytes(batch)


@pytest.mark.parametrize(("make", "reason"), [(_magic_1, "format version 1"), (_broken, "CRC is wrong")])
async def test_a_poisoned_partition_stops_alone(world: CopyWorld, make: Callable[[int], bytes], reason: str) -> None:
    for upstream in world.upstreams.values():
        upstream.append(20)
    world.upstream.append_raw(make(60), 60, 60)
    world.upstream.append(20)
    hands = world.hands()
    async with running(hands, partitions=FIVE) as copier:
        await until(lambda: all(world.ledger(each).end_offset() == 59 for each in FIVE))
        await trio.sleep(20)
        poisoned, *others = copier.progress()
        assert reason in poisoned.waits_for
        assert not any(reason in other.waits_for for other in others)
        assert value(hands, "tidegate_copy_poisoned_partitions") == 1
        assert world.ledger().end_offset() == 59
        await copier.revoke([PARTITION])
        assert value(hands, "tidegate_copy_poisoned_partitions") == 0


async def test_a_poisoned_partition_goes_on_once_upstream_starts_behind_the_batch(world: CopyWorld) -> None:
    world.upstream.append(20)
    world.upstream.append_raw(_magic_1(60), 60, 60)
    world.upstream.append(20)
    hands = world.hands()
    async with running(hands):
        await until(lambda: value(hands, "tidegate_copy_poisoned_partitions") == 1)
        await trio.sleep(5)
        world.upstream.delete_before(61)
        await until(lambda: world.ledger().end_offset() == 120)
    assert value(hands, "tidegate_copy_poisoned_partitions") == 0
    assert value(hands, "tidegate_copy_gap_records_total") == 1


async def test_a_partition_that_comes_back_while_it_is_let_go_is_begun_again(world: CopyWorld) -> None:
    world.upstream.append(40)
    async with running(world.hands()) as copier, trio.open_nursery() as nursery:
        await until(lambda: world.ledger().segments())
        nursery.start_soon(copier.revoke, [PARTITION])
        await trio.sleep(0.001)
        await copier.assign([PARTITION], 2)
        await until(lambda: world.ledger().end_offset() == 119)


async def test_a_batch_that_is_right_the_second_time_is_copied(world: CopyWorld) -> None:
    world.upstream.append(10)
    batch, hands = world.upstream.batches[4], world.hands()
    sound, fetch = batch.content, hands.fetch
    batch.content = sound[:-1] + bytes([sound[-1] ^ 1])

    async def fetch_once(*args: Any, **kwargs: Any) -> FetchedRecords:
        found = await fetch(*args, **kwargs)
        batch.content = sound
        return found

    hands.fetch = fetch_once  # type: ignore[method-assign]  # the second answer is right
    async with running(hands):
        await until(lambda: world.ledger().end_offset() == 29)
    assert value(hands, "tidegate_copy_poisoned_partitions") == 0


async def test_revoke_returns_once_the_upload_under_way_is_finished(world: CopyWorld) -> None:
    world.upstream.append(40)
    hands = world.hands()
    async with running(hands) as copier:
        await until(lambda: hands.uploading is not None or world.ledger().segments())
        await copier.revoke([PARTITION])
        states = {segment.state.name for segment in world.ledger().segments()}
        assert states == {"COPY_SEGMENT_FINISHED"}
        count = len(world.records())
        await trio.sleep(30)
        assert len(world.records()) == count
        assert copier.progress() == []
    assert [*(hands.folder / OWN_NAME).rglob("*.*")] == []


async def test_whoever_is_superseded_begins_again_with_a_higher_fence(world: CopyWorld) -> None:
    world.upstream.append(10)
    first, second = world.hands(), world.hands()
    async with running(first, generation=3), running(second, generation=3):
        for _ in range(6):
            world.upstream.append(10)
            await trio.sleep(10)
    superseded = [value(hands, "tidegate_copy_superseded_total") or 0 for hands in (first, second)]
    assert max(superseded) > 0
    assert max(segment.broker_id for segment in world.finished()) > 3
    offset = 0
    for segment in world.finished():
        assert segment.start_offset <= offset <= segment.end_offset
        offset = segment.end_offset + 1


async def test_a_fault_of_one_partition_is_none_of_the_others(world: CopyWorld) -> None:
    for upstream in world.upstreams.values():
        upstream.append(10)
    del world.upstreams[PARTITION]  # its questions raise KeyError
    with capture_logs():  # to write a traceback a second costs more than the test
        async with running(world.hands(), partitions=FIVE) as copier:
            await until(lambda: all(world.ledger(each).end_offset() == 29 for each in FIVE[1:]))
            assert "KeyError" in str(copier.progress()[0].last_error)


async def test_records_that_are_none_are_passed_over(world: CopyWorld) -> None:
    number = metadata_partition(PARTITION.topic_id, PARTITION.partition, METADATA_PARTITIONS)
    world.upstream.append(10)
    hands = world.hands()
    world.log.publish(number, b"\xff")
    async with running(hands) as copier:
        await until(lambda: only(copier).copied_offset == 29)
