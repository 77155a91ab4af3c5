"""Half a million segments are deleted that no cache has anything of."""

from pathlib import Path

import pytest
import trio

from tests.proxy.test_tier_storage import assert_deletions_cost_nothing


async def test_deletions_of_segments_that_are_nowhere_cost_nothing(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await assert_deletions_cost_nothing(500_000, nursery, tmp_path, monkeypatch)
