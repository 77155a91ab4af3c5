"""OffsetForLeaderEpoch where the tier is our own: what the broker has forgotten, and nothing else."""

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError
from protocol.wire.errors import ErrorCode
from tests.support.offsets_world import OffsetsWorld
from tests.support.segments import topic_partition, uuid_of

pytestmark = pytest.mark.autojump

EPOCHS = {1: 0, 3: 400, 4: 700}
"""In the tier; the broker's log begins at 1000, in epoch 5."""


@pytest.fixture
def world(nursery: trio.Nursery) -> OffsetsWorld:
    return made(nursery)


def made(nursery: trio.Nursery) -> OffsetsWorld:
    world = OffsetsWorld(nursery, owns_tier=True)
    world.add_own(epochs=EPOCHS, local_epochs=[(5, 1000), (8, 1200)])
    return world


async def ends(world: OffsetsWorld, *epochs: int, version: int = 4) -> list[tuple[int, int | None, int]]:
    answers = await world.epoch_ends([("orders", 0, epoch) for epoch in epochs], version=version)
    assert answers is not None
    return [(each.error_code, each.leader_epoch, each.end_offset) for each in answers]


async def test_all_epochs_are_told_as_by_a_broker_that_kept_everything(world: OffsetsWorld) -> None:
    asked = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    below = (0, 0, 0)  # the first: as it was asked, and where the log starts
    tiers = [(0, 1, 400), (0, 1, 400), (0, 3, 700), (0, 4, 1000)]
    brokers = [(0, 5, 1200), (0, 5, 1200), (0, 5, 1200), (0, 8, 1500), (0, -1, -1)]
    for version in (2, 3, 4):
        assert await ends(world, *asked, version=version) == [below, *tiers, *brokers], f"version {version}"


async def test_below_the_log_start_there_are_no_epochs(world: OffsetsWorld) -> None:
    (partition,) = world.catalog.partitions()
    world.log_starts.raised[partition] = 450
    assert await ends(world, 0, 1, 2, 3, 4) == [(0, 0, 450), (0, 1, 450), (0, 2, 450), (0, 3, 700), (0, 4, 1000)]
    world.log_starts.raised[partition] = 1100
    assert await ends(world, 1, 4, 5) == [(0, 1, 1000), (0, 4, 1000), (0, 5, 1200)]


async def test_the_brokers_error_stands_and_costs_nothing(world: OffsetsWorld) -> None:
    for code in (3, 6, 29, 74, 75):
        world.log(topic_partition()).error_code = code
        assert await ends(world, 1) == [(code, -1, -1)]
        assert not world.client_of_ours.ids_asked, f"code {code}"


async def test_topics_that_were_never_in_the_tier_are_relayed(world: OffsetsWorld) -> None:
    world.add_own("local", segments=())
    assert await world.epoch_ends([("local", 0, 1)]) is None
    assert not world.broker.frames


async def test_what_cannot_be_looked_up_is_left_as_the_broker_said(nursery: trio.Nursery) -> None:
    down = UpstreamConnectionError("down")
    for name, trouble in {
        "ids_failure": down,
        "ids": {"orders": uuid_of("another topic")},
        "failure": down,  # no log start
        "epoch_error_codes": [ErrorCode.UNKNOWN_LEADER_EPOCH] * 2,  # no lineage
    }.items():
        world = made(nursery)
        setattr(world.client_of_ours, name, trouble)
        assert await ends(world, 1) == [(0, 1, 1000)], name
