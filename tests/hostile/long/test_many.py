"""Hostile clients in greater numbers."""

import pytest

from tests.hostile.test_comings_and_goings import rebalance, reconnect
from tests.hostile.test_readers import get_stuck
from tests.hostile.test_unfinished_frames import announce
from tests.support.hostile_stage import HostileStage, LargeTopic

pytestmark = pytest.mark.needs("linux")


def test_a_thousand_readers_that_reconnect(stage: HostileStage, large_topic: LargeTopic) -> None:
    reconnect(stage, large_topic, 1000)


def test_groups_that_rebalance_a_hundred_times(stage: HostileStage) -> None:
    rebalance(stage, 100)


def test_three_hundred_that_announce_sixteen_mebibytes(stage: HostileStage) -> None:
    announce(stage, 300)


def test_two_hundred_stuck_readers_of_the_tier(stage: HostileStage, large_topic: LargeTopic) -> None:
    get_stuck(stage, large_topic, 200)
