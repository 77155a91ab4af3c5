"""Every recorded time look-up of the frozen tier, asked of the tier offline: the broker's own answers."""

from typing import Any

import pytest
import trio

from storage.reading.timestamp_search import FoundTimestamp, TimestampSearch
from tests.support.frozen_tier import NAMES, Recorded, open_frozen_tier

pytestmark = pytest.mark.needs("vectors")

TIER_LOOK_UPS_MIN = 100
"""Of all partitions together: the broker answered so many from the tier."""


async def answer_of(search: TimestampSearch, recorded: Recorded, timestamp_ms: int) -> FoundTimestamp | None:
    segment = search.candidate(
        recorded.key,
        timestamp_ms,
        log_start_offset=recorded.log_start,
        local_log_start_offset=recorded.local_log_start,
        lineage=recorded.lineage,
    )
    if segment is None:
        return None
    return await search.search(segment, timestamp_ms, log_start_offset=recorded.log_start)


def is_in_tier(recorded: Recorded, answer: dict[str, Any]) -> bool:
    return bool(recorded.is_in_tier(answer["offset"]))


@pytest.mark.parametrize("block_bytes", [64 * 1024, 1024 * 1024])
async def test_a_time_look_up_in_the_tier_is_the_brokers(nursery: trio.Nursery, block_bytes: int) -> None:
    all_in_tier = markers = not_found = local = 0
    for recorded in map(Recorded, NAMES):
        search = open_frozen_tier(nursery, block_bytes=block_bytes).timestamps
        in_tier = 0
        for asked in recorded.said["list_offsets_by_time"]:
            for isolation in ("iso0", "iso1"):
                answer = asked[isolation]
                assert answer["error"] == 0
                found = await answer_of(search, recorded, asked["query"])
                if is_in_tier(recorded, answer):
                    in_tier += 1
                    assert found == FoundTimestamp(answer["timestamp"], answer["offset"], answer["epoch"]), asked
                else:
                    assert found is None, asked
                not_found += answer["offset"] < 0
                local += answer["offset"] >= recorded.local_log_start
                markers += recorded.name == "txn-0" and answer["offset"] == 1800
        assert in_tier > 20, recorded.name
        all_in_tier += in_tier
    assert all_in_tier >= 2 * TIER_LOOK_UPS_MIN
    assert min(markers, not_found, local) > 0
