"""Offsets kept for a group: versions, slices, coordinators that move, and what is refused."""

import pytest
import trio
from kio.schema.errors import ErrorCode

from protocol.client.errors import (
    GroupAuthorizationError,
    GroupInUseError,
    TopicAuthorizationError,
    UpstreamError,
    UpstreamRefusedError,
)
from protocol.client.groups import COMMITTED_BY, FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, GroupOffset
from protocol.client.settings import ClientSettings
from proxy.upstream.cluster import Cluster
from standalone.serving.group_offsets import PARTITIONS_MAX, GroupOffsets
from tests.support.fake_groups import FakeGroup
from tests.support.fake_kafka import FakeKafka

ORDERS, OTHER = ("orders", 0), ("other", 3)


@pytest.fixture
def group(kafka: FakeKafka) -> FakeGroup:
    kafka.add(1, "a")
    kafka.add(2, "b")
    return FakeGroup(kafka)


@pytest.fixture
def offsets(group: FakeGroup, nursery: trio.Nursery) -> GroupOffsets:
    return GroupOffsets(Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery), "a-group")


async def test_what_is_committed_is_fetched_with_its_metadata(group: FakeGroup, offsets: GroupOffsets) -> None:
    kept = {ORDERS: GroupOffset(500, "an id"), OTHER: GroupOffset(7)}
    await offsets.commit(kept)
    assert await offsets.fetch([ORDERS, OTHER, ("orders", 1)]) == kept
    assert group.committed == [{ORDERS: (500, "an id"), OTHER: (7, COMMITTED_BY)}]


async def test_every_version(kafka: FakeKafka, group: FakeGroup, offsets: GroupOffsets) -> None:
    for api in (FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH):
        for version in range(api.version_min, api.version_max + 1):
            for broker in kafka.brokers.values():
                broker.versions[api.key] = (0, version)
                broker.disconnect_all()
            case = f"{api.name} version {version}"
            await offsets.commit({ORDERS: GroupOffset(version, "x")})
            assert group.offsets[ORDERS] == (version, "x"), case
            group.offsets[ORDERS] = (500, None)
            assert await offsets.fetch([ORDERS, OTHER]) == {ORDERS: GroupOffset(500, "")}, case
            group.codes = [ErrorCode.group_authorization_failed]
            with pytest.raises(GroupAuthorizationError, match="ACL Describe on Group a-group is missing"):
                pytest.fail(f"{case}: {await offsets.fetch([ORDERS])}")


async def test_a_coordinator_is_looked_up_once_and_when_it_moves(group: FakeGroup, offsets: GroupOffsets) -> None:
    await offsets.fetch([ORDERS])
    await offsets.fetch([ORDERS])
    assert group.asked == ["find", "fetch", "fetch"]
    group.node_id = 2
    await offsets.commit({ORDERS: GroupOffset(1)})
    assert group.asked[3:] == ["commit", "find", "commit"]
    assert len(group.committed) == 1


async def test_a_failure_that_does_not_pass_is_told(group: FakeGroup, offsets: GroupOffsets) -> None:
    group.codes = [ErrorCode.coordinator_load_in_progress]
    with pytest.raises(UpstreamRefusedError) as caught:
        await offsets.fetch([ORDERS])
    assert caught.value.retriable
    group.codes = [ErrorCode.unknown_member_id]
    with pytest.raises(GroupInUseError):
        await offsets.commit({ORDERS: GroupOffset(1)})
    await offsets.commit({ORDERS: GroupOffset(2)})


async def test_one_topic_without_a_right_does_not_hide_the_others(group: FakeGroup, offsets: GroupOffsets) -> None:
    group.offsets |= {ORDERS: (500, "x"), OTHER: (7, "y")}
    group.denied = {"other"}
    refused: dict[tuple[str, int], UpstreamRefusedError] = {}
    assert await offsets.fetch([ORDERS, OTHER], refused) == {ORDERS: GroupOffset(500, "x")}
    assert [*refused] == [OTHER]
    with pytest.raises(TopicAuthorizationError, match="ACL Describe on Topic other is missing"):
        await offsets.fetch([ORDERS, OTHER])


async def test_many_partitions_go_in_several_requests(group: FakeGroup, offsets: GroupOffsets) -> None:
    partitions = [("orders", number) for number in range(PARTITIONS_MAX + 1)]
    await offsets.commit({partition: GroupOffset(partition[1]) for partition in partitions})
    assert [len(each) for each in group.committed] == [PARTITIONS_MAX, 1]
    found = await offsets.fetch(partitions)
    assert {partition: kept.offset for partition, kept in found.items()} == {each: each[1] for each in partitions}
    assert [len(each) for each in group.fetched] == [PARTITIONS_MAX, 1]
    assert await offsets.fetch([]) == {}


async def test_a_coordinator_that_is_down_is_an_error(
    kafka: FakeKafka, group: FakeGroup, offsets: GroupOffsets
) -> None:
    await offsets.fetch([ORDERS])
    kafka.stop(1)
    with pytest.raises(UpstreamError):
        await offsets.fetch([ORDERS])
    kafka.leave(1)
    group.node_id = 2
    assert await offsets.fetch([ORDERS]) == {}


ONE_MEMBERS = bytes.fromhex("0001 00000002 0006") + b"orders" + bytes.fromhex("00000002 00000000 00000002 0001") + b"x"
ANOTHERS = ONE_MEMBERS + bytes.fromhex("00000001 00000005") + b"the assignor's own"


async def test_what_members_have_is_known_once_it_is_dealt_out(group: FakeGroup, offsets: GroupOffsets) -> None:
    assert await offsets.members() == []
    group.assignments = [ANOTHERS, b""]
    group.client_ids = {1: "another"}
    has = frozenset({("orders", 0), ("orders", 2), ("x", 5)})
    assert await offsets.members() == [("c", has), ("another", frozenset())]
    for state in ("PreparingRebalance", "CompletingRebalance"):
        group.state = state
        assert await offsets.members() is None
    group.codes = [ErrorCode.group_authorization_failed]
    with pytest.raises(GroupAuthorizationError, match="ACL Describe on Group a-group is missing"):
        await offsets.members()


@pytest.mark.parametrize("size", range(1, len(ONE_MEMBERS) + 7))
async def test_an_assignment_that_is_cut_is_no_answer(group: FakeGroup, offsets: GroupOffsets, size: int) -> None:
    group.assignments = [ANOTHERS[:size]]
    with pytest.raises(UpstreamError, match="an assignment in group a-group cannot be read"):
        await offsets.members()
