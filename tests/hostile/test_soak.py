"""The soak's short form: everything that the hour has, in two minutes."""

import pytest

from tests.hostile.soak import soak

SECONDS = 120.0
GROWTH_MAX = 1.25
"""After half a minute not every buffer has been as large as it will be."""
ANSWERS_AN_ALTERATION = 100
"""In place of a thousand: most answers are from the tier, so a broker gives some thousand in this time."""


@pytest.mark.needs("java", "kafka", "linux")
@pytest.mark.integration
def test_two_minutes_of_three_hundred_connections() -> None:
    assert soak(SECONDS, growth_max=GROWTH_MAX, one_in=ANSWERS_AN_ALTERATION) == []
