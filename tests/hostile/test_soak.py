"""The soak's short forms: everything that the hour has, in two minutes, and a small crowd."""

from collections import Counter

import pytest

from tests.hostile.crowd_soak import (
    CLIENTS_MIN,
    IDLE,
    READING,
    RELAYING,
    STALLED_READING,
    STALLED_RELAYING,
    crowd_soak,
    roles,
)
from tests.hostile.soak import soak

SECONDS = 120.0
GROWTH_MAX = 1.25
"""After half a minute not every buffer has been as large as it will be."""
ANSWERS_AN_ALTERATION = 100
"""In place of a thousand: most answers are from the tier, so a broker gives some thousand in this time."""

CROWD_SECONDS, CROWD_CLIENTS = 12.0, 120


@pytest.mark.needs("java", "kafka", "linux")
@pytest.mark.integration
def test_two_minutes_of_three_hundred_connections() -> None:
    assert soak(SECONDS, growth_max=GROWTH_MAX, one_in=ANSWERS_AN_ALTERATION) == []


@pytest.mark.needs("java", "kafka", "linux")
@pytest.mark.integration
def test_a_small_crowd_of_idle_reading_and_stalled_clients() -> None:
    assert crowd_soak(CROWD_SECONDS, CROWD_CLIENTS) == []


def test_half_of_a_crowd_is_idle_and_each_kind_of_reader_has_a_quarter() -> None:
    found = Counter(roles(2000))
    assert found == {IDLE: 1000, RELAYING: 400, READING: 400, STALLED_RELAYING: 100, STALLED_READING: 100}
    assert len(Counter(roles(CLIENTS_MIN))) == len(found)
