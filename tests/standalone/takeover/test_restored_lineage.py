"""The leader epochs that a broker gets back from the tier, and logs that are not the same."""

import pytest

from standalone.takeover.restored_lineage import LineageConflictError, restored_lineage
from storage.indexes.leader_epochs import LeaderEpochs

TIER_END = 99


RESTORED: dict[str, tuple[LeaderEpochs, LeaderEpochs, LeaderEpochs]] = {
    "all deleted": (((6, 100),), ((0, 0), (2, 20), (4, 40)), ((0, 0), (2, 20), (4, 40), (6, 100))),
    "raised": (((4, 70), (6, 120)), ((0, 0), (2, 20), (4, 40)), ((0, 0), (2, 20), (4, 40), (6, 120))),
    "first epoch whole": (((4, 40), (6, 120)), ((0, 0), (2, 20), (4, 40)), ((0, 0), (2, 20), (4, 40), (6, 120))),
    "one epoch": (((0, 50),), ((0, 0),), ((0, 0),)),
    "overlap": (((0, 50), (1, 60), (3, 130)), ((0, 0), (1, 60)), ((0, 0), (1, 60), (3, 130))),
    "copying began later than the broker's log does": (((0, 0), (2, 20)), ((0, 10), (2, 20)), ((0, 0), (2, 20))),
    # A leader may have written nothing, and then no batch names it.
    "epochs without records": (
        ((2, 50), (3, 80), (5, 80), (6, 90)),
        ((0, 0), (2, 20), (5, 80), (6, 90)),
        ((0, 0), (2, 20), (3, 80), (5, 80), (6, 90)),
    ),
    "a gap between tier and broker": (((6, 500),), ((0, 0),), ((0, 0), (6, 500))),
    "the broker has nothing, and learns from its leader": ((), ((0, 0),), ()),
    "no tier": (((6, 100),), (), ((6, 100),)),
}
CONFLICTS: dict[str, tuple[LeaderEpochs, LeaderEpochs, int]] = {
    "other leader": (((4, 50),), ((0, 0), (2, 20)), 50),
    "an epoch more": (((2, 50), (3, 80)), ((0, 0), (2, 20)), 80),
    "begins elsewhere": (((2, 50), (3, 80)), ((0, 0), (2, 20), (3, 70)), 70),
    "an epoch less": (((2, 50),), ((0, 0), (2, 20), (3, 70)), 70),
    "began later": (((2, 50),), ((0, 0), (2, 60)), 50),
}


def test_the_tiers_older_epochs_come_before_the_brokers() -> None:
    for case, (own, tier, expected) in RESTORED.items():
        restored = restored_lineage(own, tier, tier_end=TIER_END, log_end_offset=1000)
        assert restored == expected, case
        assert restored_lineage(restored, tier, tier_end=TIER_END, log_end_offset=1000) == expected, case


def test_an_offset_of_two_epochs_is_a_conflict() -> None:
    for own, tier, offset in CONFLICTS.values():
        with pytest.raises(LineageConflictError, match=f"offset {offset} is of leader epoch"):
            restored_lineage(own, tier, tier_end=TIER_END, log_end_offset=1000)


def test_of_what_a_follower_lacks_its_epochs_say_nothing() -> None:
    tier = ((0, 0), (2, 20), (3, 70))
    assert restored_lineage(((2, 50),), tier, tier_end=TIER_END, log_end_offset=70) == ((0, 0), (2, 20))


def test_an_older_epoch_behind_the_brokers_first_is_a_conflict() -> None:
    with pytest.raises(LineageConflictError, match="older than the broker's first, 6, that begins at 120"):
        restored_lineage(((6, 100),), ((0, 0), (4, 120)), tier_end=130, log_end_offset=100)
