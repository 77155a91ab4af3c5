"""A tier over a disk cache, for the life of one process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from metrics.cache_meters import CacheMeter
from metrics.registry import Registry
from storage.cache.block_cipher import BlockCipher
from storage.cache.disk import DiskBlocks
from tests.support.segments import SyntheticSegment
from tests.support.tier import Tier, open_tier


@dataclass(frozen=True, slots=True)
class DiskTier:
    """`registry` has the disk's own metrics."""

    tier: Tier
    disk: DiskBlocks
    registry: Registry


@asynccontextmanager
async def disk_tier(
    path: Path, segments: Sequence[SyntheticSegment], *, cipher: BlockCipher | None = None, **settings: Any
) -> AsyncIterator[DiskTier]:
    """With the disk cache in that folder, listed, and written to in the background. `settings`: of `open_tier`."""
    registry = Registry()
    disk = DiskBlocks(
        path, bytes_max=10**8, identity="store", cipher=cipher, retention_s=None, meter=CacheMeter(registry)
    )
    try:
        await trio.to_thread.run_sync(disk.load)
        async with trio.open_nursery() as nursery:
            tier = open_tier(nursery, segments, disk_blocks=disk, **settings)
            nursery.start_soon(tier.storage.run)
            yield DiskTier(tier, disk, registry)
            nursery.cancel_scope.cancel()
    finally:
        disk.close()
