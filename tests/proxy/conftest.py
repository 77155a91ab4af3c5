"""What several files here begin with."""

import pytest
import trio

from tests.support.tier_world import TierWorld


@pytest.fixture
def world(nursery: trio.Nursery) -> TierWorld:
    """Everything behind a FetchService, in memory; files with a world of another kind have a fixture of that name."""
    return TierWorld(nursery)
