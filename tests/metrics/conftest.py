"""What several files here begin with."""

import pytest

from metrics.meters import Meters


@pytest.fixture
def meters() -> Meters:
    return Meters()
