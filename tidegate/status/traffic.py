"""What the tier gives now, and what it has given since the start: brokers did not have to read that."""

from collections.abc import Callable
from typing import Final

import trio

from storage.cache.recent_speed import RecentSpeed
from tidegate.status.model import TrafficStatus

LOOK_S: Final = 1.0


class Traffic:
    """Owned by the trio thread.

    Args:
        served_bytes, gets: counts since the start.
    """

    def __init__(self, served_bytes: Callable[[], int], gets: Callable[[], int]) -> None:
        self._counts = (served_bytes, gets)
        self._seen = [0, 0]
        self._speeds = tuple(RecentSpeed(trio.current_time()) for _ in self._counts)

    async def run(self) -> None:
        """Look at the counts now and then, until cancelled."""
        while True:
            self._look()
            await trio.sleep(LOOK_S)

    def status(self) -> TrafficStatus:
        """As it is now."""
        self._look()
        now_s = trio.current_time()
        bytes_per_s, gets_per_s = (speed.at(now_s) for speed in self._speeds)
        served_bytes, gets = self._seen
        return TrafficStatus(
            tier_bytes_per_s=round(bytes_per_s), tier_bytes=served_bytes, gets_per_s=round(gets_per_s, 1), gets=gets
        )

    def _look(self) -> None:
        now_s = trio.current_time()
        for number, (count, speed) in enumerate(zip(self._counts, self._speeds, strict=True)):
            before, self._seen[number] = self._seen[number], count()
            speed.add(now_s, self._seen[number] - before)
