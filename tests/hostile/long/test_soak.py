"""The soak's short form: everything that the long one does, in a minute."""

import pytest

from tests.hostile.soak import soak

SECONDS = 60.0
GROWTH_MAX = 1.25
"""After twelve seconds not every buffer has been as large as it will be."""


@pytest.mark.needs("java", "kafka", "linux")
def test_a_minute_of_three_hundred_connections() -> None:
    assert soak(SECONDS, growth_max=GROWTH_MAX) == []
