"""A disk cache whose reads and writes take virtual time. The files are real, below a folder of the test's own."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from metrics.cache_meters import CacheMeter
from storage.cache.disk import DiskBlockKey, DiskBlocks
from tests.support.segments import FIRST_TIMESTAMP_MS
from tests.support.simulated_link import SimulatedLink
from tests.support.simulated_time import SimulatedThreads


class SimulatedDisk:
    """A DiskBlocks. A call costs what a body of its size costs over `way`, one connection each."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        identity: str,
        way: SimulatedLink,
        threads: SimulatedThreads,
        meter: CacheMeter,
    ) -> None:
        self._disk = DiskBlocks(
            folder,
            bytes_max=bytes_max,
            identity=identity,
            cipher=None,
            retention_s=None,
            meter=meter,
            clock=lambda: FIRST_TIMESTAMP_MS / 1000 + way.now_s,
        )
        self._way = way
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def read(self, key: DiskBlockKey, reader: Hashable | None = None) -> memoryview | None:
        self._wait(key.size_bytes)
        return self._disk.read(key, reader)

    def write(self, key: DiskBlockKey, data: memoryview | bytes | bytearray, reader: Hashable | None = None) -> bool:
        self._wait(len(data))
        return self._disk.write(key, data, reader)

    def _wait(self, size_bytes: int) -> None:
        call = self._way.open(size_bytes)
        call.want(size_bytes, self._way.now_s)
        self._threads.wait(lambda: call.has_wanted)
        call.is_closed = True
