"""One Fetch from end to end: who answers which partition, in what time, within which budget
(ARCHITECTURE.md#one-request-end-to-end, docs/protocol.md#l1, docs/protocol.md#l2, docs/protocol.md#l3)."""

from dataclasses import replace

import pytest
import structlog.testing
import trio

from protocol.fetch.messages import FetchPartition
from protocol.wire.errors import ErrorCode
from proxy.fetch.fallback import COME_AGAIN
from storage.errors import RemoteResourceNotFoundError
from storage.model import TopicIdPartition
from tests.support.fake_wire import BATCH_BYTES, broker_batch, tier_batch
from tests.support.for_each import for_each
from tests.support.segments import topic_partition, uuid_of
from tests.support.tier_world import LEADER_EPOCH, FakeFetcher, TierWorld, ask, codes_of, records_of
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump

EXPIRED = "kafka_server_delayedremotefetchmetrics_expires_total"


def tier_run(partition: TopicIdPartition, offset: int, count: int) -> bytes:
    return b"".join(tier_batch(partition.partition, offset + number) for number in range(count))


@for_each_run("version", range(4, 19))
async def test_every_version_gets_tier_and_broker_side_by_side(world: TierWorld, version: int) -> None:
    cold = world.add_partition("orders", 0, high_watermark=1500, log_start_offset=3)
    hot = world.add_partition("orders", 1, high_watermark=1500)
    response = await world.client().fetch(
        [ask(cold, 17, max_bytes=300), ask(hot, 1490, max_bytes=200)], api_version=version
    )
    first, second = response.partitions
    assert records_of(response) == [tier_run(cold, 17, 3), broker_batch(1, 1490) + broker_batch(1, 1491)]
    assert (first.error_code, first.high_watermark, first.last_stable_offset) == (0, 1500, 1500)
    assert first.log_start_offset == (3 if version >= 5 else -1)
    assert first.aborted_transactions is None
    assert (first.topic, first.topic_id) == (("orders", None) if version < 13 else (None, cold.topic_id))
    assert (second.partition, second.high_watermark) == (1, 1500)
    assert (response.session_id > 0) == (version >= 7)


async def test_the_answer_keeps_the_brokers_order_and_names_each_partition_once(world: TierWorld) -> None:
    """Failed before: what the broker does not read was answered in the request's place."""
    cold = [world.add_partition("orders", number, high_watermark=1500) for number in range(4)]
    other = world.add_partition("other", 0, high_watermark=1500)
    gone = topic_partition("gone")
    asked = [ask(cold[2], 1200), ask(other, 5), ask(gone, 5), ask(cold[0], 5), ask(other, 1300), ask(cold[3], 5)]
    asked[4] = replace(asked[4], partition=1)
    response = await world.client().fetch(asked)
    answered = [(answer.topic_id, answer.partition) for answer in response.partitions]
    assert answered == [(asked[place].topic_id, asked[place].partition) for place in (0, 1, 3, 5, 2, 4)]
    assert codes_of(response) == [0, 0, 0, 0, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID]


async def test_a_batch_that_cannot_be_held_is_put_off_alone(world: TierWorld) -> None:
    """Failed before: the connection was closed, and the client came back for ever."""
    cold = world.add_partition("orders", 0, high_watermark=1500)
    hot = world.add_partition("orders", 1, high_watermark=1500)
    client = world.client()
    client.wire.held_bytes_max = BATCH_BYTES - 1
    with structlog.testing.capture_logs() as logs:
        response = await client.fetch([ask(cold, 17, max_bytes=100), ask(hot, 1490, max_bytes=100)])
    assert (codes_of(response), records_of(response)) == ([0, COME_AGAIN], [tier_batch(0, 17), b""])
    (line,) = [entry for entry in logs if entry["event"] == "batch_too_large"]
    key = "expert.proxy.response.held.bytes.max"
    named = {"topic": "orders", "partition": 1, "size_bytes": BATCH_BYTES, "key": key}
    assert line.items() >= named.items()
    assert world.sample("tidegate_batches_too_large_total") == 1


# --- docs/protocol.md#l1: no tier byte without a good probe ---


@for_each_run("code", [29, 6, 74, 75, 3, 100, 9, -1])
async def test_an_error_of_the_probe_is_the_answer_and_no_tier_byte_leaves(world: TierWorld, code: int) -> None:
    partition = world.add_partition()
    world.log(partition).error_code = code
    response = await world.client().fetch([ask(partition, 17)])
    (answer,) = response.partitions
    offsets = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
    assert (answer.error_code, *offsets) == (code, -1, -1, -1)
    assert records_of(response) == [b""]


async def test_reads_start_beside_the_probe_and_its_error_is_not_held_up_by_them(world: TierWorld) -> None:
    partition = world.add_partition()
    client = world.client()
    await client.fetch([ask(partition, 17)])
    world.log(partition).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.reader.delay_s = 3.0
    world.broker.latency_s = 0.1
    assert codes_of(await client.fetch([ask(partition, 17)], max_wait_ms=5000)) == [29]
    assert trio.current_time() == pytest.approx(0.1)
    assert len(world.reader.reads) == 2


async def starts_beside_its_probe(world: TierWorld, client: FakeFetcher, asked: FetchPartition, **fields: int) -> bool:
    """Return whether a Fetch's read starts before the broker has answered the probe."""
    world.broker.latency_s = 0.1
    before = len(world.reader.reads)
    with trio.move_on_after(0.05):
        await client.fetch([asked], **fields)
    started = len(world.reader.reads) - before
    await trio.sleep(0.5)
    world.broker.latency_s = 0.0
    return started > 0


async def test_the_first_read_starts_after_its_probe_and_later_ones_beside_theirs(world: TierWorld) -> None:
    """Failed before: reads of clients that had no right to them started too."""
    partition, other = world.add_partition("orders", 0), world.add_partition("orders", 1)
    client = world.client()
    assert not await starts_beside_its_probe(world, client, ask(partition, 17))
    await client.fetch([ask(partition, 17)])
    await trio.sleep(1000.0)
    assert await starts_beside_its_probe(world, client, ask(partition, 500))
    # By name, and under another isolation level or epoch, it is the same right.
    assert await starts_beside_its_probe(world, client, ask(partition, 17), api_version=12, isolation_level=1)
    assert await starts_beside_its_probe(world, client, ask(partition, 17, current_leader_epoch=LEADER_EPOCH))
    assert not await starts_beside_its_probe(world, client, ask(other, 17))
    assert not await starts_beside_its_probe(world, world.client(), ask(partition, 17))


@for_each("version", [12, 17])
@for_each_run("loss", ["refused", "another leader", "preferred replica", "gone", "another sign-in"])
async def test_a_right_that_was_lost_has_to_be_given_again(world: TierWorld, loss: str, version: int) -> None:
    partition = world.add_partition()
    log, client = world.log(partition), world.client()
    await client.fetch([ask(partition, 17)], api_version=version)
    if loss == "another sign-in":
        client.service.forget_authority()
    elif loss == "gone":
        del world.broker.logs[partition.topic_id, 0]
        await client.fetch([ask(partition, 17)], api_version=version)
        world.broker.logs[partition.topic_id, 0] = log
        world.cluster.ids["orders"] = partition.topic_id
    else:
        log.error_code = {"refused": 29, "another leader": 6}.get(loss, 0)
        log.preferred_read_replica = 3 if loss == "preferred replica" else -1
        await client.fetch([ask(partition, 17)], api_version=version)
        log.error_code, log.preferred_read_replica = 0, -1
    assert not await starts_beside_its_probe(world, client, ask(partition, 17), api_version=version)


@for_each_run("version", [4, 12, 13, 17])
async def test_a_client_without_rights_costs_no_read(world: TierWorld, version: int) -> None:
    """Failed before: 30 MiB from the store for three requests, other clients' blocks evicted, the disk written."""
    refused = world.add_partition("orders", 0)
    allowed = world.add_partition("other", 0)
    world.log(refused).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    client = world.client()
    for _ in range(3):
        response = await client.fetch(
            [ask(refused, 17, max_bytes=100), ask(allowed, 17, max_bytes=100)], api_version=version
        )
        assert codes_of(response) == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert {partition for partition, *_ in world.reader.reads} == {allowed}
    assert world.sample("kafka_server_brokertopicmetrics_remotefetchrequests_total", topic="orders") == 0


@for_each_run("is_first", [True, False])
async def test_a_late_probe_begins_the_time_again_and_nothing_is_held_for_it(world: TierWorld, is_first: bool) -> None:
    """Failed before: a client that lets the answers before the probe's lie kept the blocks of its read for ever."""
    partition = world.add_partition()
    client = world.client()
    if not is_first:
        await client.fetch([ask(partition, 17)])
        client.service.on_answered()
    world.reader.reads.clear()
    world.broker.latency_s, world.reader.delay_s = 3.0, 0.2
    held: list[int] = []

    async def look() -> None:
        for _ in range(3):
            await trio.sleep(0.4)
            held.append(len(client.reads.held))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        response = await client.fetch([ask(partition, 17, max_bytes=100)])
    assert records_of(response) == [tier_run(partition, 17, 1)]
    assert trio.current_time() == pytest.approx(3.2)
    assert held == ([0, 0, 0] if is_first else [1, 0, 0])
    assert len(world.reader.reads) == (1 if is_first else 2)


async def test_records_of_a_refused_partition_do_not_end_the_wait_for_the_others(world: TierWorld) -> None:
    refused, slow = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.log(refused).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.reader.delays_s[slow] = 0.4
    response = await world.client().fetch([ask(refused, 17), ask(slow, 17, max_bytes=100)])
    assert records_of(response) == [tier_run(slow, 17, 1), b""]


async def test_a_throttled_probe_is_the_whole_answer(world: TierWorld) -> None:
    cold, hot = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.broker.throttle_time_ms = 250
    response = await world.client().fetch([ask(cold, 17), ask(hot, 1000)])
    assert (response.throttle_time_ms, response.error_code, response.partitions) == (250, 0, [])
    assert not world.reader.reads


async def test_a_top_level_error_of_the_probe_is_the_whole_answer(
    world: TierWorld, partition: TopicIdPartition
) -> None:
    world.broker.error_code = ErrorCode.UNSUPPORTED_VERSION
    response = await world.client().fetch([ask(partition, 17)])
    assert (response.error_code, response.partitions) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_a_read_under_a_dead_lineage_is_done_again_after_a_truncation(world: TierWorld) -> None:
    """Failed before: the read that began beside a stale probe gave bytes of the branch that was cut."""
    partition = world.add_partition(segments=[(0, 499), (500, 799)], high_watermark=1500)
    client = world.client()
    assert codes_of(await client.fetch([ask(partition, 17)])) == [0]
    # An unclean election: the log was cut at 500 and has since grown to 900; 500 to 799 is a dead branch.
    log = world.log(partition)
    log.leader_epoch, log.high_watermark, log.local_log_start_offset = 6, 900, 900
    log.epoch_ends = {LEADER_EPOCH: (LEADER_EPOCH, 500), 6: (6, 900)}
    world.add_segment(partition, 500, 899, epochs={6: 500})
    world.reader.reads.clear()
    response = await client.fetch([ask(partition, 600, max_bytes=100)])
    assert codes_of(response) == [0]
    assert len(world.reader.reads) == 2
    assert world.client_of_ours.epochs_asked[-1][3] == [LEADER_EPOCH, 6]


async def test_a_topic_made_again_under_its_name_never_yields_an_old_byte(world: TierWorld) -> None:
    old = world.add_partition("orders", 0)
    client = world.client()
    assert records_of(await client.fetch([ask(old, 17, max_bytes=100)])) == [tier_run(old, 17, 1)]
    del world.broker.logs[old.topic_id, 0]
    new = TopicIdPartition(uuid_of("another id"), 0, "orders")
    world.broker.add(new, local_log_start_offset=50, high_watermark=100)
    by_id = await client.fetch([ask(old, 17)])
    assert (codes_of(by_id), records_of(by_id)) == ([ErrorCode.UNKNOWN_TOPIC_ID], [b""])
    world.cluster.ids["orders"] = old.topic_id
    by_name = await client.fetch([ask(old, 17, max_bytes=100)], api_version=12)
    assert records_of(by_name) == [broker_batch(0, 17)]
    assert world.cluster.topic_id("orders") is None


# --- docs/protocol.md#l2: staleness heals itself ---


@for_each_run(
    "delay_s, failure, waited_s",
    [(0.0, None, 0.0), (1000.0, None, 0.5), (0.0, RemoteResourceNotFoundError("no metadata topic"), 0.0)],
)
async def test_a_miss_that_stays_one_goes_to_the_broker_in_the_same_exchange(
    world: TierWorld, delay_s: float, failure: Exception | None, waited_s: float
) -> None:
    """Failed before for a slow one: each such Fetch was answered empty, while the metadata topic did not move."""
    partition = world.add_partition(segments=[(0, 499)])
    world.tail.delay_s, world.tail.failure = delay_s, failure
    response = await world.client().fetch([ask(partition, 700, max_bytes=100)])
    assert records_of(response) == [broker_batch(0, 700)]
    assert world.broker.remote_reads == 1
    assert trio.current_time() == pytest.approx(waited_s)


async def test_what_is_given_back_gets_what_the_tier_left_of_the_limit(world: TierWorld) -> None:
    served = world.add_partition("orders", 0)
    missed = world.add_partition("orders", 1, segments=[(0, 499)])
    asked = [ask(served, 17, max_bytes=600), ask(missed, 700, max_bytes=1000)]
    response = await world.client().fetch(asked, max_bytes=1000)
    assert [len(records) for records in records_of(response)] == [600, 400]


async def test_what_is_given_back_keeps_its_charge_beside_a_batch_larger_than_its_share(world: TierWorld) -> None:
    """The served batch is 50 bytes above its limit, and not at the expense of the one that goes to the broker."""
    served = world.add_partition("orders", 0)
    missed = world.add_partition("orders", 1, segments=[(0, 499)])
    asked = [ask(served, 17, max_bytes=BATCH_BYTES // 2), ask(missed, 700, max_bytes=1000)]
    response = await world.client().fetch(asked, max_bytes=2 * BATCH_BYTES + BATCH_BYTES // 2)
    assert [len(records) for records in records_of(response)] == [BATCH_BYTES, 2 * BATCH_BYTES]


# --- docs/protocol.md#l3: deadlines and budgets ---


@for_each_run("max_wait_ms, limit_s", [(0, 0.5), (499, 0.5), (2000, 2.0), (60_000, 5.0)])
async def test_a_late_read_is_answered_empty_in_its_time(world: TierWorld, max_wait_ms: int, limit_s: float) -> None:
    partition = world.add_partition(high_watermark=1234, log_start_offset=3)
    world.reader.delay_s = 100.0
    response = await world.client().fetch([ask(partition, 17)], max_wait_ms=max_wait_ms)
    assert trio.current_time() == pytest.approx(limit_s)
    (answer,) = response.partitions
    assert (answer.error_code, answer.high_watermark, answer.log_start_offset, answer.records) == (0, 1234, 3, ())
    assert world.sample(EXPIRED) == 1


async def test_limits_are_charged_in_request_order_and_nothing_left_is_no_read(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number) for number in range(3)]
    asked = [ask(partition, 17, max_bytes=1000) for partition in partitions]
    response = await world.client().fetch(asked, max_bytes=1500)
    assert [len(records) for records in records_of(response)] == [1000, 500, 0]
    assert {partition for partition, *_ in world.reader.reads} == set(partitions[:2])
    assert response.partitions[2].high_watermark == 1000


async def test_a_log_start_that_another_connection_heard_of_ends_a_good_probe(world: TierWorld) -> None:
    """Failed once: the old word counted on, with a budget of nothing: empty answers at once, until it had aged."""
    world.settings = replace(world.settings, authority_age_s_max=1.0)
    partition = world.add_partition("orders", 0, high_watermark=1500)
    one, other = world.client(), world.client()
    assert codes_of(await one.fetch([ask(partition, 17)])) == [0]
    world.log(partition).log_start_offset = 100
    assert codes_of(await other.fetch([ask(partition, 17)])) == [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert codes_of(await one.fetch([ask(partition, 17)])) == [ErrorCode.OFFSET_OUT_OF_RANGE]
