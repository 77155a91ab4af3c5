"""How far each metadata partition has been read, and whether that is far enough.

A partition is caught up once the position reached the end offset that was sampled when it was assigned (at once when
it was empty), and stays so: later records are the ordinary tail. Taking it away makes it not caught up again.
Thread-safe; `position` and `is_caught_up` take no lock.
"""

import threading


class MetadataReadiness:
    """Positions are the next offset to be read."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._positions: dict[int, int] = {}
        self._caught_up: set[int] = set()
        self._closed = False

    def advance(self, partition: int, position: int, end_offset: int) -> bool:
        """Everything below position was applied. Whether this is what made the partition caught up."""
        with self._condition:
            self._positions[partition] = position
            became_caught_up = position >= end_offset and partition not in self._caught_up
            if became_caught_up:
                self._caught_up.add(partition)
            self._condition.notify_all()
        return became_caught_up

    def remove(self, partition: int) -> None:
        """The partition is not followed any more, or will be read anew."""
        with self._condition:
            self._positions.pop(partition, None)
            self._caught_up.discard(partition)

    def close(self) -> None:
        """Nothing is caught up any more, and nobody waits."""
        with self._condition:
            self._closed = True
            self._positions.clear()
            self._caught_up.clear()
            self._condition.notify_all()

    def position(self, partition: int) -> int:
        """The next offset to be read; 0 while nothing is known."""
        return self._positions.get(partition, 0)

    def is_caught_up(self, partition: int) -> bool:
        return partition in self._caught_up

    def wait_until_past(self, partition: int, offset: int, timeout_s: float) -> bool:
        """Block until the record at offset was applied; False after timeout_s, or when closed meanwhile."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self.position(partition) > offset, timeout_s)
            return self.position(partition) > offset
