"""The leader epochs that a broker gets back from the tier, and logs that are not the same."""

import pytest

from proxy.commands.restored_lineage import LineageConflictError, restored_lineage
from storage.indexes.leader_epochs import LeaderEpochs

TIER_END = 99


@pytest.mark.parametrize(
    ("own", "tier", "expected"),
    [
        (((6, 100),), ((0, 0), (2, 20), (4, 40)), ((0, 0), (2, 20), (4, 40), (6, 100))),
        (((4, 70), (6, 120)), ((0, 0), (2, 20), (4, 40)), ((0, 0), (2, 20), (4, 40), (6, 120))),
        (((4, 40), (6, 120)), ((0, 0), (2, 20), (4, 40)), ((0, 0), (2, 20), (4, 40), (6, 120))),
        (((0, 50),), ((0, 0),), ((0, 0),)),
        (((0, 50), (1, 60), (3, 130)), ((0, 0), (1, 60)), ((0, 0), (1, 60), (3, 130))),
        # Copying began later than the broker's log does.
        (((0, 0), (2, 20)), ((0, 10), (2, 20)), ((0, 0), (2, 20))),
        # Epochs without records: whoever led may have written nothing, and then no batch names it.
        (
            ((2, 50), (3, 80), (5, 80), (6, 90)),
            ((0, 0), (2, 20), (5, 80), (6, 90)),
            ((0, 0), (2, 20), (3, 80), (5, 80), (6, 90)),
        ),
        # A gap between tier and broker.
        (((6, 500),), ((0, 0),), ((0, 0), (6, 500))),
        # The broker has nothing, and learns from its leader.
        ((), ((0, 0),), ()),
        (((6, 100),), (), ((6, 100),)),
    ],
    ids=[
        "all deleted",
        "first epoch raised",
        "first epoch whole",
        "one epoch",
        "overlap",
        "copied later",
        "without records",
        "gap",
        "no own",
        "no tier",
    ],
)
def test_the_tiers_older_epochs_come_before_the_brokers(
    own: LeaderEpochs, tier: LeaderEpochs, expected: LeaderEpochs
) -> None:
    restored = restored_lineage(own, tier, tier_end=TIER_END, log_end_offset=1000)
    assert restored == expected
    assert restored_lineage(restored, tier, tier_end=TIER_END, log_end_offset=1000) == expected


@pytest.mark.parametrize(
    ("own", "tier", "offset"),
    [
        (((4, 50),), ((0, 0), (2, 20)), 50),
        (((2, 50), (3, 80)), ((0, 0), (2, 20)), 80),
        (((2, 50), (3, 80)), ((0, 0), (2, 20), (3, 70)), 70),
        (((2, 50),), ((0, 0), (2, 20), (3, 70)), 70),
        (((2, 50),), ((0, 0), (2, 60)), 50),
    ],
    ids=["other leader", "an epoch more", "begins elsewhere", "an epoch less", "began later"],
)
def test_an_offset_of_two_epochs_is_a_conflict(own: LeaderEpochs, tier: LeaderEpochs, offset: int) -> None:
    with pytest.raises(LineageConflictError, match=f"offset {offset} is of leader epoch"):
        restored_lineage(own, tier, tier_end=TIER_END, log_end_offset=1000)


def test_of_what_a_follower_lacks_its_epochs_say_nothing() -> None:
    tier = ((0, 0), (2, 20), (3, 70))
    assert restored_lineage(((2, 50),), tier, tier_end=TIER_END, log_end_offset=70) == ((0, 0), (2, 20))


def test_an_older_epoch_behind_the_brokers_first_is_a_conflict() -> None:
    with pytest.raises(LineageConflictError, match="older than the broker's first, 6, that begins at 120"):
        restored_lineage(((6, 100),), ((0, 0), (4, 120)), tier_end=130, log_end_offset=100)
