"""The probe: what is asked, whose answer counts, how long a good one may be reused (docs/protocol.md#l1)."""

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError
from protocol.fetch.messages import FetchPartition
from protocol.wire.errors import ErrorCode
from proxy.fetch import frontiers
from proxy.fetch.service import FetchSettings
from storage.model import TopicIdPartition
from storage.reading.aborted_transactions import TierAborts
from tests.support.fake_wire import BATCH_BYTES, broker_batch, tier_batch
from tests.support.tier_world import LEADER_EPOCH, FakeFetcher, TierWorld, ask, codes_of, records_of

pytestmark = pytest.mark.autojump

READ_COMMITTED = 1


@pytest.fixture
def patient(world: TierWorld) -> TierWorld:
    """The same, with good probes reused for a second."""
    world.settings = FetchSettings(authority_age_s_max=1.0, fetch_wait_s_max=0.5, linger_s=0.02, read_prefer_tier=False)
    return world


# --- what is asked ---


async def test_a_probe_is_a_sessionless_fetch_at_the_high_watermark_by_topic_id(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500)
    client = world.client()
    for _ in range(2):
        await client.fetch([ask(partition, 17, current_leader_epoch=LEADER_EPOCH)], api_version=9)
    first, second = world.broker.fetches
    for probe in (first, second):
        assert (probe.api_version, probe.session_id, probe.session_epoch) == (13, 0, -1)
        assert (probe.max_wait_ms, probe.min_bytes, probe.max_bytes) == (0, 0, 1)
        assert (probe.client_id, probe.replica_id, probe.isolation_level) == ("a-client", -1, 0)
        (asked,) = probe.partitions
        assert (asked.topic_id, asked.partition) == (partition.topic_id, 0)
        assert (asked.current_leader_epoch, asked.last_fetched_epoch) == (LEADER_EPOCH, -1)
        assert asked.partition_max_bytes == 1
    # Failed before: where the high watermark was not known yet, the local log start, and a whole batch was thrown away.
    assert (first.partitions[0].fetch_offset, second.partitions[0].fetch_offset) == (1500, 1500)
    assert world.sample("tidegate_probe_discarded_bytes_total") == 0


async def test_unknown_aborted_tails_are_asked_for_behind_the_probe_one_by_one(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number, high_watermark=1500) for number in (0, 1)]
    client = world.client()
    for _ in range(2):
        response = await client.fetch([ask(p, 17, max_bytes=100) for p in partitions], isolation_level=READ_COMMITTED)
        assert records_of(response) == [tier_batch(0, 17), tier_batch(1, 17)]
        assert [answer.aborted_transactions for answer in response.partitions] == [[], []]
    both, tail_of_0, tail_of_1, both_again = world.broker.asked
    assert both == [("orders", 0, 1500), ("orders", 1, 1500)]
    assert both_again == [("orders", 0, 1500), ("orders", 1, 1500)]
    assert (tail_of_0, tail_of_1) == ([("orders", 0, 1000)], [("orders", 1, 1000)])
    assert {probe.isolation_level for probe in world.broker.fetches} == {READ_COMMITTED}
    assert {probe.max_bytes for probe in world.broker.fetches} == {1}


# --- READ_COMMITTED and aborted transactions ---


async def committed(
    world: TierWorld, partition: TopicIdPartition, offset: int, client: FakeFetcher | None = None
) -> tuple[list[bytes], list[tuple[int, int]] | None]:
    """The records of one batch, and the aborted transactions."""
    asked = [ask(partition, offset, max_bytes=100)]
    response = await (client or world.client()).fetch(asked, isolation_level=READ_COMMITTED)
    return records_of(response), response.partitions[0].aborted_transactions


async def test_an_abort_that_reaches_from_the_tier_into_the_local_log_is_listed_once(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500)
    world.log(partition).aborted = [(7, 990, 1010), (8, 1000, 1020)]
    assert await committed(world, partition, 990) == ([tier_batch(0, 990)], [(7, 990)])
    assert await committed(world, partition, 17) == ([tier_batch(0, 17)], [])
    world.log(partition).aborted = [(7, 990, 1010), (8, 600, 1011)]
    world.reader.aborts[partition] = TierAborts([(9, 550), (8, 600)], 700, is_complete=False, searched_below=1000)
    world.tier.forget(1, partition)
    assert await committed(world, partition, 560) == ([tier_batch(0, 560)], [(9, 550), (8, 600)])
    # Not where the tier has told it all.
    world.reader.aborts[partition] = TierAborts([(9, 550)], 1000, is_complete=True, searched_below=1000)
    assert await committed(world, partition, 560) == ([tier_batch(0, 560)], [(9, 550)])


async def test_an_open_transaction_at_the_local_log_start_limits_the_tier(world: TierWorld) -> None:
    """The marker at 1110 of what began at 990 is hidden behind the open transaction, from 1000 on."""
    partition = world.add_partition(high_watermark=1500)
    log = world.log(partition)
    log.last_stable_offset, log.aborted = 1000, [(7, 990, 1110)]
    assert await committed(world, partition, 990) == ([broker_batch(0, 990)], [(7, 990)])
    world.reader.aborts[partition] = TierAborts([(9, 550)], 600, is_complete=True, searched_below=900)
    assert await committed(world, partition, 560) == ([tier_batch(0, 560)], [(9, 550)])
    log.last_stable_offset = -1
    del world.reader.aborts[partition]
    assert await committed(world, partition, 990) == ([tier_batch(0, 990)], [(7, 990)])


async def test_a_tail_is_asked_for_once_until_the_last_stable_offset_falls(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500)
    log, client = world.log(partition), world.client()

    async def cost() -> int:
        before = len(world.broker.fetches)
        await committed(world, partition, 990, client)
        return len(world.broker.fetches) - before

    assert [await cost(), await cost()] == [2, 1]
    client = world.client()
    log.append()
    assert await cost() == 1
    log.last_stable_offset = 1400
    # The probe that sees it fall still goes by what is known; the next asks again.
    assert [await cost(), await cost(), await cost()] == [1, 2, 1]


async def test_a_catalog_that_ends_before_the_local_log_begins_is_caught_up_with(world: TierWorld) -> None:
    """An abort whose marker is in the segment that the catalog does not have yet is in neither list."""
    partition = world.add_partition(segments=[(0, 499)], high_watermark=1500)
    assert (await committed(world, partition, 17))[0] == [broker_batch(0, 17)]
    assert world.tail.caught_up == [partition]
    world.tail.on_catch_up = lambda: world.add_segment(partition, 500, 999)
    assert (await committed(world, partition, 17))[0] == [tier_batch(0, 17)]


async def test_read_committed_leaves_a_segment_inside_the_local_log_to_the_broker(world: TierWorld) -> None:
    """Failed before: another leader had rolled at 1099, so the tier gave 1000 to 1099 too, and with them records of a
    transaction whose abort marker is in the local log beyond; the probe vouches for what lies below 1000 only."""
    partition = world.add_partition(segments=[(0, 499), (500, 1099)], high_watermark=1500)
    world.log(partition).aborted = [(7, 1050, 1200)]
    client = world.client()
    straddling = await client.fetch([ask(partition, 900, max_bytes=100)], isolation_level=READ_COMMITTED)
    assert records_of(straddling) == [broker_batch(0, 900)]
    below = await client.fetch([ask(partition, 17, max_bytes=100)], isolation_level=READ_COMMITTED)
    assert records_of(below) == [tier_batch(0, 17)]
    uncommitted = await client.fetch([ask(partition, 900, max_bytes=100)])
    assert records_of(uncommitted) == [tier_batch(0, 900)]
    assert not world.tail.caught_up


async def test_a_good_committed_probe_is_not_reused_once_the_local_log_start_has_moved(patient: TierWorld) -> None:
    """Failed before: the probe at 1000 said nothing of a transaction from 1100 to 1300, which then lay half in the
    tier."""
    partition = patient.add_partition(high_watermark=1500)
    client = patient.client()
    await client.fetch([ask(partition, 17)], isolation_level=READ_COMMITTED)
    log = patient.log(partition)
    log.local_log_start_offset, log.aborted = 1200, [(7, 1100, 1300)]
    patient.add_segment(partition, 1000, 1199)
    await patient.frontiers.refresh(1, [partition])
    assert await committed(patient, partition, 1100, client) == ([tier_batch(0, 1100)], [(7, 1100)])


# --- large batches ---


async def test_where_a_batch_was_large_the_end_is_asked_for_before_the_next_probe(
    world: TierWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: each probe of a partition that is written to brought a whole batch, of 100 MB perhaps."""
    monkeypatch.setattr(frontiers, "LARGE_BATCH_BYTES", BATCH_BYTES - 1)
    partition, client = world.add_partition(high_watermark=1500), world.client()
    for expected_bytes in (0, BATCH_BYTES, BATCH_BYTES, BATCH_BYTES):
        assert codes_of(await client.fetch([ask(partition, 17)])) == [0]
        assert world.sample("tidegate_probe_discarded_bytes_total") == expected_bytes
        world.broker.append(world.log(partition))
    assert [asked[0][2] for asked in world.broker.asked] == [1500, 1500, 1502, 1503]


async def test_of_a_large_batch_no_more_is_held_than_that_it_came(world: TierWorld) -> None:
    """Failed before: it was held whole, in memory that others waited for, or closed the connection."""
    partition = world.add_partition(high_watermark=1500)
    world.log(partition).aborted = [(7, 990, 1010)]
    client = world.client()
    client.wire.held_bytes_max = BATCH_BYTES - 1
    assert await committed(world, partition, 990, client) == ([tier_batch(0, 990)], [(7, 990)])
    assert world.sample("tidegate_probe_discarded_bytes_total") == BATCH_BYTES


# --- a stale probe offset ---


async def test_a_stale_high_watermark_is_learned_anew_and_probed_once_more(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500)
    client = world.client()
    await client.fetch([ask(partition, 17)])
    world.log(partition).high_watermark = 1200
    response = await client.fetch([ask(partition, 17, max_bytes=100)])
    assert (codes_of(response), records_of(response)) == ([0], [tier_batch(0, 17)])
    assert response.partitions[0].high_watermark == 1200
    assert [asked[0][2] for asked in world.broker.asked] == [1500, 1500, 1200]
    assert len(world.client_of_ours.offsets_asked) == 2


async def test_two_stale_probes_are_not_leader_and_never_out_of_range(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500)
    log = world.log(partition)
    log.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
    response = await world.client().fetch([ask(partition, 17)])
    assert (codes_of(response), records_of(response)) == ([ErrorCode.NOT_LEADER_OR_FOLLOWER], [b""])
    assert len(world.broker.fetches) == 2
    assert world.frontiers.get(1, partition) is None


async def test_a_stale_partition_that_proves_local_is_given_back(world: TierWorld, client: FakeFetcher) -> None:
    partition = world.add_partition(high_watermark=1500)
    await client.fetch([ask(partition, 17)])
    log = world.log(partition)
    log.high_watermark, log.local_log_start_offset = 100, 0
    response = await client.fetch([ask(partition, 17, max_bytes=100)])
    assert records_of(response) == [broker_batch(0, 17)]


async def test_a_stale_partition_of_which_nothing_is_learned_soon_is_given_back(nursery: trio.Nursery) -> None:
    for failure, latency_s, waited_s in ((UpstreamConnectionError("down"), 0.0, 0.0), (None, 30.0, 1.0)):
        world, began_s = TierWorld(nursery), trio.current_time()
        partition = world.add_partition(high_watermark=1500)
        client = world.client()
        await client.fetch([ask(partition, 17)])
        world.log(partition).high_watermark = 1200
        world.client_of_ours.failure, world.client_of_ours.latency_s = failure, latency_s
        response = await client.fetch([ask(partition, 17, max_bytes=100)])
        assert records_of(response) == [broker_batch(0, 17)], failure
        assert trio.current_time() - began_s == pytest.approx(waited_s), failure


# --- reuse ---


async def probes_of(world: TierWorld, client: FakeFetcher, *asked: FetchPartition, **fields: int) -> int:
    """Return how many probes one more Fetch costs."""
    before = len(world.broker.fetches)
    await client.fetch(list(asked), **fields)
    return len(world.broker.fetches) - before


async def test_a_good_probe_is_reused_for_its_age(patient: TierWorld, partition: TopicIdPartition) -> None:
    client = patient.client()
    assert await probes_of(patient, client, ask(partition, 17)) == 1
    await trio.sleep(0.999)
    assert await probes_of(patient, client, ask(partition, 18)) == 0
    assert patient.sample("tidegate_probes_reused_total") == 1
    await trio.sleep(0.001)
    assert await probes_of(patient, client, ask(partition, 19)) == 1


async def test_a_good_probe_is_not_reused_for_a_client_that_asks_by_name(patient: TierWorld) -> None:
    """It vouched for a topic id, and the name may be another topic's by now."""
    partition = patient.add_partition()
    client = patient.client()
    costs = [await probes_of(patient, client, ask(partition, 17), api_version=version) for version in (12, 12, 13, 13)]
    assert costs == [1, 1, 0, 0]


async def test_a_good_probe_holds_on_its_connection_partition_isolation_and_epoch_only(patient: TierWorld) -> None:
    partition, other = patient.add_partition("orders", 0), patient.add_partition("orders", 1)
    client = patient.client()
    assert await probes_of(patient, client, ask(partition, 17)) == 1
    assert await probes_of(patient, patient.client(), ask(partition, 17)) == 1
    assert await probes_of(patient, client, ask(other, 17)) == 1
    assert await probes_of(patient, client, ask(partition, 17), isolation_level=READ_COMMITTED) == 2
    assert await probes_of(patient, client, ask(partition, 17, current_leader_epoch=LEADER_EPOCH)) == 1
    assert await probes_of(patient, client, ask(partition, 17)) == 0


async def test_a_reused_probe_still_knows_the_log_start(patient: TierWorld) -> None:
    partition = patient.add_partition(log_start_offset=100)
    client = patient.client()
    codes = [codes_of(await client.fetch([ask(partition, offset)])) for offset in (100, 99)]
    assert codes == [[0], [ErrorCode.OFFSET_OUT_OF_RANGE]]
    assert len(patient.broker.fetches) == 1


async def test_another_sign_in_or_leader_ends_good_probes(patient: TierWorld, partition: TopicIdPartition) -> None:
    client = patient.client()
    await client.fetch([ask(partition, 17)])
    client.service.forget_authority()
    assert [await probes_of(patient, client, ask(partition, 17)) for _ in range(2)] == [1, 0]
    patient.log(partition).leader_epoch = LEADER_EPOCH + 1
    await patient.frontiers.refresh(1, [partition])
    assert await probes_of(patient, client, ask(partition, 17)) == 1


async def test_a_right_that_is_lost_is_noticed_within_the_age(patient: TierWorld, partition: TopicIdPartition) -> None:
    client = patient.client()
    await client.fetch([ask(partition, 17)])
    patient.log(partition).error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await trio.sleep(1.0)
    for _ in range(2):
        response = await client.fetch([ask(partition, 17)])
        assert (codes_of(response), records_of(response)) == ([ErrorCode.TOPIC_AUTHORIZATION_FAILED], [b""])
    assert len(patient.broker.fetches) == 3


# --- other answers ---


async def test_a_partition_that_the_broker_leaves_out_is_given_back(world: TierWorld) -> None:
    left_out, other = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.broker.left_out = {left_out}
    response = await world.client().fetch([ask(left_out, 17), ask(other, 17, max_bytes=100)])
    assert codes_of(response) == [ErrorCode.UNKNOWN_SERVER_ERROR, 0]
    assert world.broker.asked[-1] == [("orders", 0, 17)]


async def test_a_storage_error_is_put_as_the_version_knows_it(world: TierWorld, partition: TopicIdPartition) -> None:
    world.log(partition).error_code = ErrorCode.KAFKA_STORAGE_ERROR
    for version, code in ((4, 6), (5, 6), (6, 56), (17, 56)):
        response = await world.client().fetch([ask(partition, 17)], api_version=version)
        assert codes_of(response) == [code], f"version {version}"


async def test_a_newer_leader_epoch_that_the_broker_lets_pass_has_the_lineage_built_anew(world: TierWorld) -> None:
    partition = world.add_partition()
    client = world.client()
    await client.fetch([ask(partition, 17)])
    world.log(partition).leader_epoch = 9
    response = await client.fetch([ask(partition, 17, current_leader_epoch=9, max_bytes=100)])
    assert records_of(response) == [tier_batch(0, 17)]
    frontier = world.frontiers.get(1, partition)
    assert frontier is not None
    assert frontier.leader_epoch == 9
    assert len(world.client_of_ours.epochs_asked) == 2
    assert len(world.client_of_ours.offsets_asked) == 1


async def test_a_client_with_an_old_epoch_costs_the_others_nothing(world: TierWorld, client: FakeFetcher) -> None:
    """Failed before: what was known for everybody was forgotten, and the next Fetch had to learn it again."""
    partition = world.add_partition()
    await client.fetch([ask(partition, 17)])
    response = await client.fetch([ask(partition, 17, current_leader_epoch=4)])
    assert codes_of(response) == [ErrorCode.FENCED_LEADER_EPOCH]
    assert world.frontiers.get(1, partition) is not None


async def test_a_client_fenced_at_our_epoch_has_the_partition_learned_again(world: TierWorld) -> None:
    """The broker has a newer epoch than our frontier, and nothing else would tell us so."""
    partition = world.add_partition()
    client = world.client()
    await client.fetch([ask(partition, 17)])
    world.log(partition).leader_epoch = LEADER_EPOCH + 1
    response = await client.fetch([ask(partition, 17, current_leader_epoch=LEADER_EPOCH)])
    assert codes_of(response) == [ErrorCode.FENCED_LEADER_EPOCH]
    assert world.frontiers.get(1, partition) is None
