"""What the tier fails to read is read by the broker: for which faults, for how long, how much at a time
(docs/protocol.md#l2)."""

import inspect

import pytest
import structlog.testing
import trio

from metrics.meters import FallbackReason
from protocol.client.errors import UpstreamAuthenticationError, UpstreamConnectionError
from protocol.wire.errors import ErrorCode
from proxy.fetch import fallback
from storage import errors
from storage.log.log_walk import CorruptLogError
from storage.model import TopicIdPartition
from tests.support.fake_wire import BATCH_BYTES, broker_batch, tier_batch
from tests.support.segments import Record, data_batch
from tests.support.tier_world import FakeFetcher, TierWorld, ask, codes_of, records_of
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump

DENIED = errors.RemoteAccessDeniedError("bucket orders: AccessDenied (HTTP 403)")
COME_AGAIN = ErrorCode.REPLICA_NOT_AVAILABLE


async def one(client: FakeFetcher, partition: TopicIdPartition, offset: int = 17, **fields: int) -> tuple[int, bytes]:
    """Error code and records of a Fetch of one batch."""
    response = await client.fetch([ask(partition, offset, max_bytes=BATCH_BYTES)], **fields)
    return codes_of(response)[0], records_of(response)[0]


def from_tier(partition: TopicIdPartition, offset: int = 17) -> tuple[int, bytes]:
    return 0, tier_batch(partition.partition, offset)


def from_broker(partition: TopicIdPartition, offset: int = 17) -> tuple[int, bytes]:
    return 0, broker_batch(partition.partition, offset)


# --- which faults ---


@for_each_run(
    "fault, reason",
    [
        (UpstreamAuthenticationError("no"), FallbackReason.IDENTITY),
        (UpstreamConnectionError("no leader"), FallbackReason.IDENTITY),
        (DENIED, FallbackReason.DENIED),
        (errors.RemoteResourceNotFoundError("gone"), FallbackReason.NOT_FOUND),
        (errors.CorruptObjectError("crc"), FallbackReason.CORRUPT),
        (errors.IcebergSegmentError("a.log"), FallbackReason.ICEBERG),
        (CorruptLogError("crc", position=0, end=1), FallbackReason.CORRUPT),
        (errors.StalledTransferError("twice"), FallbackReason.STALLED),
        (errors.IllegalMetadataError("bad"), FallbackReason.FAULT),
        (errors.RemoteStorageError("any"), FallbackReason.FAULT),
        (ExceptionGroup("two", [ValueError(), KeyError()]), FallbackReason.FAULT),
    ],
)
async def test_a_fault_that_will_not_pass_is_read_by_the_broker_in_the_same_exchange(
    world: TierWorld, partition: TopicIdPartition, fault: Exception, reason: FallbackReason
) -> None:
    """Failed before: 9 or -1 in a hot loop, 200 answers a second, while the broker served the same offsets."""
    world.reader.failures[partition] = fault
    world.log(partition).batches[17] = real_batch(17)
    assert await one(world.client(), partition) == (0, real_batch(17))
    assert trio.current_time() == 0
    assert world.sample("tidegate_fallback_reads_total", reason=reason.value) == 1
    assert world.sample("tidegate_fallback_partitions", reason=reason.value) == 1
    assert world.sample("tidegate_fallback_bytes_total") == BATCH_BYTES


@for_each_run(
    "fault",
    [errors.RetriableRemoteStorageError("reset"), errors.ThrottledError("503"), errors.MetadataNotReadyError("behind")],
)
async def test_a_fault_that_may_pass_is_to_come_again_but_not_at_once(world: TierWorld, fault: Exception) -> None:
    partition = world.add_partition()
    world.reader.failures[partition] = fault
    client = world.client()
    assert await one(client, partition) == (COME_AGAIN, b"")
    assert trio.current_time() == fallback.COME_AGAIN_S_MIN
    assert await one(client, partition, max_wait_ms=2000) == (COME_AGAIN, b"")
    assert trio.current_time() == fallback.COME_AGAIN_S_MIN + 2, "the client's own wait"
    del world.reader.failures[partition]
    assert await one(client, partition) == from_tier(partition)
    assert world.broker.remote_reads == 0


async def test_no_fault_ever_makes_a_client_jump_or_give_up(world: TierWorld) -> None:
    """Clients apply auto.offset.reset to OFFSET_OUT_OF_RANGE, and show UNKNOWN_SERVER_ERROR to their user."""
    world.settings.authority_age_s_max = 0
    world.fallback.settings.partitions_max = 0
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert errors.RemoteStorageError in kinds
    for number, kind in enumerate([*kinds, OSError, RuntimeError]):
        partition = world.add_partition("orders", number)
        world.reader.failures[partition] = kind("fault")
        assert await one(world.client(), partition) == (COME_AGAIN, b"")


# --- where the tier is damaged, the broker's answer is looked at ---


def real_batch(offset: int) -> bytes:
    """One of BATCH_BYTES."""
    return data_batch(offset, records=[Record(value=b"a value".ljust(32, b"."))])


def damaged(offset: int) -> bytes:
    batch = real_batch(offset)
    return batch[:90] + bytes([batch[90] ^ 1]) + batch[91:]


async def test_no_damaged_batch_that_is_known_of_is_passed_on(world: TierWorld, partition: TopicIdPartition) -> None:
    """Failed before: the broker read the same object, and what it gave was handed on as it was."""
    world.reader.failures[partition] = CorruptLogError("segment s: batch at 0: its CRC is wrong", position=0, end=1)
    world.log(partition).batches |= {number: real_batch(number) for number in (17, 18, 20)} | {19: damaged(19)}
    client = world.client()
    with structlog.testing.capture_logs() as logs:
        (answer,) = (await client.fetch([ask(partition, 17, max_bytes=5 * BATCH_BYTES)])).partitions
        assert (answer.error_code, b"".join(answer.records)) == (0, real_batch(17) + real_batch(18))
        for _ in range(2):
            assert await one(client, partition, 19) == (ErrorCode.CORRUPT_MESSAGE, b"")
    assert await one(client, partition, 20) == (0, real_batch(20))
    (line,) = [entry for entry in logs if entry["event"] == "corrupt_at_broker"]
    assert (line["partition"], line["offset"], line["reason"]) == (str(partition), 19, "its CRC is wrong")
    assert line["segment"] is not None
    assert world.sample("tidegate_corrupt_answers_total", topic="orders") == 2


async def test_for_other_reasons_nobody_looks(world: TierWorld, partition: TopicIdPartition) -> None:
    """The broker is the authority: what it says is passed on unread."""
    world.reader.failures[partition] = DENIED
    world.log(partition).batches[17] = damaged(17)
    assert await one(world.client(), partition) == (0, damaged(17))


# --- the broker's answer is taken whole ---


async def test_all_of_the_brokers_answer_is_passed_on(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500)
    log = world.log(partition)
    log.last_stable_offset, log.aborted = 1490, [(7, 10, 30)]
    world.reader.failures[partition] = DENIED
    response = await world.client().fetch([ask(partition, 17, max_bytes=300)], isolation_level=1)
    (answer,) = response.partitions
    assert records_of(response) == [b"".join(broker_batch(0, 17 + number) for number in range(3))]
    assert (answer.high_watermark, answer.last_stable_offset, answer.aborted_transactions) == (1500, 1490, [(7, 10)])
    asked = world.broker.fetches[-1]
    assert (asked.isolation_level, asked.session_id, asked.session_epoch, asked.rack_id) == (1, 0, -1, "rack-a")


@for_each_run("first_offset, expected", [(17, [tier_batch(0, 17), b""]), (2000, [b"", broker_batch(1, 17)])])
async def test_a_batch_beyond_its_limit_is_given_to_one_partition_alone(
    world: TierWorld, first_offset: int, expected: list[bytes]
) -> None:
    """Failed before: the Fetch of our own granted its first partition a batch beyond the limit once more."""
    good, bad = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.reader.failures[bad] = DENIED
    asked = [ask(good, first_offset, max_bytes=BATCH_BYTES - 1), ask(bad, 17, max_bytes=BATCH_BYTES - 1)]
    response = await world.client().fetch(asked)
    assert records_of(response) == expected


async def test_an_error_of_the_broker_is_passed_on(world: TierWorld, partition: TopicIdPartition) -> None:
    world.reader.failures[partition] = DENIED
    world.log(partition).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (await one(world.client(), partition))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_beside_records_of_others_nobody_is_held(world: TierWorld) -> None:
    bad, good = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.reader.failures[bad] = errors.RetriableRemoteStorageError("reset")
    response = await world.client().fetch([ask(bad, 17, max_bytes=100), ask(good, 17, max_bytes=100)])
    assert (codes_of(response), records_of(response)) == ([0, 0], [b"", tier_batch(1, 17)])
    assert trio.current_time() == pytest.approx(0.02, abs=0.02)


# --- how much at a time ---


async def test_a_broker_gets_four_partitions_at_a_time_and_no_more(world: TierWorld, nursery: trio.Nursery) -> None:
    partitions = [world.add_partition("orders", number) for number in range(6)]
    world.reader.failures = dict.fromkeys(partitions, DENIED)
    world.broker.latency_s = 0.1
    answers: dict[int, tuple[int, bytes]] = {}

    async def fetch(partition: TopicIdPartition) -> None:
        answers[partition.partition] = await one(world.client(), partition)

    async with trio.open_nursery() as clients:
        for partition in partitions:
            clients.start_soon(fetch, partition)
    assert sorted(code for code, _ in answers.values()) == [0, 0, 0, 0, COME_AGAIN, COME_AGAIN]
    assert world.broker.remote_reads == 4
    assert world.sample("tidegate_fallback_refused_total") == 2
    assert trio.current_time() == pytest.approx(fallback.COME_AGAIN_S_MIN)
    # The places are free again.
    answers.clear()
    for partition in partitions[:4]:
        await fetch(partition)
    assert {code for code, _ in answers.values()} == {0}


async def test_of_one_request_the_first_four_are_read_and_the_rest_is_empty_beside_them(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number) for number in range(6)]
    world.reader.failures = dict.fromkeys(partitions, DENIED)
    response = await world.client().fetch([ask(partition, 17, max_bytes=100) for partition in partitions])
    assert codes_of(response) == [0] * 6
    assert records_of(response) == [broker_batch(number, 17) if number < 4 else b"" for number in range(6)]


async def test_a_client_that_leaves_gives_its_place_back(world: TierWorld, partition: TopicIdPartition) -> None:
    world.fallback.settings.partitions_max = 1
    world.reader.failures[partition] = DENIED
    world.broker.latency_s = 10.0
    with trio.move_on_after(25.0):  # inside the broker's read: two questions of 10 s come first
        await one(world.client(), partition)
    world.broker.latency_s = 0.0
    assert await one(world.client(), partition) == from_broker(partition)


# --- spells ---


async def test_while_a_spell_lasts_the_tier_is_left_alone_and_then_one_partition_tries_it(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number) for number in range(3)]
    world.reader.failures = dict.fromkeys(partitions, DENIED)
    client = world.client()
    for partition in partitions:
        assert await one(client, partition) == from_broker(partition)
    assert len(world.reader.reads) == 3
    for partition in partitions * 3:
        assert await one(client, partition) == from_broker(partition)
    assert len(world.reader.reads) == 3
    await trio.sleep(fallback.SPELL_S_MIN)
    for partition in partitions * 3:
        assert await one(client, partition) == from_broker(partition)
    assert [read[0] for read in world.reader.reads[3:]] == [partitions[0]]
    # It failed, so the next try is later, and another's.
    await trio.sleep(fallback.SPELL_S_MIN)
    assert await one(client, partitions[1]) == from_broker(partitions[1])
    assert len(world.reader.reads) == 4
    await trio.sleep(fallback.SPELL_S_MIN)
    world.reader.failures.clear()
    assert await one(client, partitions[0]) == from_broker(partitions[0])
    assert await one(client, partitions[1]) == from_tier(partitions[1])
    # That one's records free all.
    for partition in partitions:
        assert await one(client, partition) == from_tier(partition)
    assert world.sample("tidegate_fallback_partitions", reason="denied") == 0


async def test_a_client_without_rights_does_not_use_up_the_try(world: TierWorld, partition: TopicIdPartition) -> None:
    """Failed before: a refused client that asks often enough kept the tier from ever being tried."""
    world.reader.failures[partition] = DENIED
    good, formerly_good = world.client(), world.client()
    for client in (good, formerly_good):
        assert await one(client, partition) == from_broker(partition)
    world.reader.failures.clear()
    await trio.sleep(fallback.SPELL_S_MIN)
    reads = len(world.reader.reads)
    world.log(partition).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for client in (formerly_good, world.client()):
        assert (await one(client, partition))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert len(world.reader.reads) == reads
    world.log(partition).error_code = 0
    assert await one(good, partition) == from_tier(partition)


async def test_a_partition_that_fails_alone_tries_again_alone(world: TierWorld, partition: TopicIdPartition) -> None:
    world.reader.failures[partition] = errors.RemoteResourceNotFoundError("gone")
    client = world.client()
    waits_s: list[float] = []
    last_try_s = trio.current_time()
    for _ in range(400):
        tries = len(world.reader.reads)
        assert await one(client, partition) == from_broker(partition)
        if len(world.reader.reads) > tries:
            waits_s.append(round(trio.current_time() - last_try_s))
            last_try_s = trio.current_time()
        await trio.sleep(1.0)
    assert waits_s[:7] == [0, 10, 20, 40, fallback.SPELL_S_MAX, fallback.SPELL_S_MAX, fallback.SPELL_S_MAX]


async def test_a_partition_that_never_failed_is_served_from_the_tier(world: TierWorld) -> None:
    """What is cached needs no store."""
    bad, cached = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.reader.failures[bad] = DENIED
    client = world.client()
    for _ in range(3):
        assert await one(client, bad) == from_broker(bad)
        assert await one(client, cached) == from_tier(cached)
    assert world.sample("tidegate_fallback_partitions", reason="denied") == 1


# --- late ---


async def test_an_offset_that_never_comes_is_read_by_the_broker_after_five_seconds(world: TierWorld) -> None:
    """Failed before: empty answers without an end, which a client takes for the end of the partition."""
    partition = world.add_partition()
    world.reader.delay_s = 1000.0
    client = world.client()
    answers = [await one(client, partition) for _ in range(10)]
    assert answers == [(0, b"")] * 9 + [from_broker(partition)]
    assert trio.current_time() == pytest.approx(5.0)
    assert world.sample("tidegate_fallback_partitions", reason="late") == 1


async def test_another_offset_and_a_byte_that_came_begin_anew(world: TierWorld, partition: TopicIdPartition) -> None:
    client = world.client()
    for offset in (17, 18):
        world.reader.delay_s = 1000.0
        assert [await one(client, partition, offset) for _ in range(9)] == [(0, b"")] * 9
    world.reader.delay_s = 0.0
    assert await one(client, partition, 18) == from_tier(partition, 18)
    world.reader.delay_s = 1000.0
    assert [await one(client, partition, 18) for _ in range(9)] == [(0, b"")] * 9
    assert world.broker.remote_reads == 0


async def test_empty_answers_for_want_of_time_or_room_do_not_count(world: TierWorld) -> None:
    cold, other = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.reader.delays_s[cold] = 1000.0
    client = world.client()
    for _ in range(300):  # the linger is their end
        response = await client.fetch([ask(other, 17, max_bytes=100), ask(cold, 17)])
        assert codes_of(response) == [0, 0]
    for _ in range(50):  # their place in the request is
        response = await client.fetch([ask(other, 17), ask(cold, 17)], max_bytes=10 * BATCH_BYTES)
        assert codes_of(response) == [0, 0]
        await trio.sleep(1.0)
    assert world.broker.remote_reads == 0


async def test_a_store_that_answers_with_faults_that_may_pass_for_too_long_is_late(world: TierWorld) -> None:
    partition = world.add_partition()
    world.reader.failures[partition] = errors.RetriableRemoteStorageError("connection refused")
    client = world.client()
    answers = [await one(client, partition) for _ in range(11)]
    assert answers[:10] == [(COME_AGAIN, b"")] * 10
    assert answers[10] == from_broker(partition)
    (complaint,) = world.fallback.complaints().values()
    assert "connection refused" in complaint


async def test_throttling_is_waited_out_however_long_it_takes(world: TierWorld, partition: TopicIdPartition) -> None:
    world.reader.failures[partition] = errors.ThrottledError("SlowDown")
    client = world.client()
    assert {await one(client, partition) for _ in range(100)} == {(COME_AGAIN, b"")}
    assert trio.current_time() >= 50.0
    assert world.broker.remote_reads == 0


@for_each_run("max_wait_ms", [0, 499, 500, 2000, 60_000])
async def test_a_client_comes_again_after_its_own_wait(world: TierWorld, max_wait_ms: int) -> None:
    partition = world.add_partition()
    world.fallback.settings.partitions_max = 0
    world.reader.failures[partition] = DENIED
    assert await one(world.client(), partition, max_wait_ms=max_wait_ms) == (COME_AGAIN, b"")
    expected_s = min(max(fallback.COME_AGAIN_S_MIN, max_wait_ms / 1000), fallback.COME_AGAIN_S_MAX)
    assert trio.current_time() == expected_s == fallback.comes_again_s(0.0, max_wait_ms)


async def test_a_spell_that_nobody_asks_for_any_more_ends(world: TierWorld, partition: TopicIdPartition) -> None:
    world.reader.failures[partition] = DENIED
    await one(world.client(), partition)
    await trio.sleep(fallback.SPELL_IDLE_S_MAX)
    assert len(world.fallback.complaints()) == 1
    await trio.sleep(1.0)
    assert world.fallback.complaints() == {}


async def test_a_partition_that_fails_for_another_reason_changes_its_spell(world: TierWorld) -> None:
    partition = world.add_partition()
    client = world.client()
    world.reader.failures[partition] = DENIED
    await one(client, partition)
    await trio.sleep(fallback.SPELL_S_MIN)
    world.reader.failures[partition] = errors.CorruptObjectError("crc")
    await one(client, partition)
    (complaint,) = world.fallback.complaints().values()
    assert "(corrupt)" in complaint
