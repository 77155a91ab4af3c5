"""The tier that is read: the object store, what is known of its segments, whose they are, what of them is kept here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import trio

from metrics.meters import Meters
from proxy.readiness import Readiness
from proxy.tier_owner import BROKERS_OWN_IT, TierOwner
from storage.cache.block_cipher import BlockCipher
from storage.cache.disk import DiskBlocks
from storage.config.model import Mode
from storage.config.registry import open_remote_storage_manager
from storage.formats.aiven import manager as _aiven  # noqa: F401  # loaded before workers are forked
from storage.metadata.catalog import Catalog
from storage.metadata.snapshot import Snapshot
from storage.remote_storage_manager import RemoteStorageManager
from tidegate.catalog import StartedCatalog, start_catalog
from tidegate.config.model import INDEXES_SHARE, Config, memory_share
from tidegate.process import Process
from tidegate.start_lines import python_tls
from tidegate.tier_storage import TierStorage, TierStorageSettings, open_tier_storage
from tidegate.upkeep import watch_tier

OpenManager = Callable[[str, Mapping[str, str]], RemoteStorageManager]
"""Gives a store's manager by class name and configuration."""


@dataclass(frozen=True, slots=True)
class ReadTier:
    """`started`: what fills the catalog. `disk` None: the cache is in memory only."""

    manager: RemoteStorageManager
    catalog: Catalog
    owner: TierOwner
    started: StartedCatalog
    storage: TierStorage
    disk: DiskBlocks | None


async def open_read_tier(
    process: Process, snapshot: Snapshot | None = None, open_manager: OpenManager | None = None
) -> ReadTier:
    """Begin to fill the catalog, and watch the store.

    Args:
        snapshot: the catalog's, if somebody has read it already.

    Raises:
        RemoteStorageError: the storage plug-in's configuration is wrong.
    """
    config, meters, readiness, tasks = process.config, process.meters, process.readiness, process.tasks
    manager = open_manager_of(process, open_manager)
    meters.tls.on_store(is_python=python_tls(config) is not None)
    disk = _disk_blocks(config, manager.identity, meters)
    if disk is not None:
        process.at_end.callback(disk.close)
    catalog = Catalog(config.catalog.segments_max)
    owner: TierOwner = BROKERS_OWN_IT
    if config.mode is Mode.STANDALONE:
        from tidegate.standalone_wiring import tier_owner  # of no use to a replica

        owner = tier_owner(config, process.cluster, catalog, meters.tier)
    started = await start_catalog(process, catalog, owner, snapshot)
    storage = open_tier_storage(_settings(config), manager, catalog, nursery=tasks, meters=meters, disk_blocks=disk)
    catalog.on_segment_removed(storage.segment_removed)
    tasks.start_soon(_close_at_end, manager)
    tasks.keep("cache", storage.run)
    tasks.keep("cache sweep", partial(_sweep, readiness, storage, catalog))
    segments, words = catalog.some_segments, process.reasons.tier
    tasks.keep("tier", partial(watch_tier, manager, segments, storage.limiter, readiness, words))
    return ReadTier(manager, catalog, owner, started, storage, disk)


def open_manager_of(process: Process, open_manager: OpenManager | None = None) -> RemoteStorageManager:
    """Return the manager of the object store, closed with the process.

    Raises:
        RemoteStorageError: the storage plug-in's configuration is wrong.
    """
    config = process.config
    if open_manager is None:
        open_manager = partial(open_remote_storage_manager, prefix=config.remote_storage_prefix)
    manager = open_manager(config.remote_storage_manager_class_name, config.remote_storage_config)
    process.at_end.callback(manager.close)
    return manager


async def _close_at_end(storage_manager: RemoteStorageManager) -> None:
    """The nursery ends when its threads do, and one may wait for a store that says nothing more."""
    try:
        await trio.sleep_forever()
    finally:
        storage_manager.close()


async def _sweep(readiness: Readiness, tier_storage: TierStorage, catalog: Catalog) -> None:
    # Not before the catalog is live: until then it does not know all that is in the tier.
    await readiness.wait_ready()
    await tier_storage.drop_unknown(catalog.known_among)


def _settings(config: Config) -> TierStorageSettings:
    cache, readahead, tier = config.cache, config.readahead, config.tier
    return TierStorageSettings(
        block_bytes=cache.block_bytes,
        memory_bytes_max=cache.memory_bytes,
        readahead_stream_bytes_max=readahead.stream_bytes_max,
        readahead_total_bytes_max=readahead.total_bytes_max,
        inflight_bytes_max=tier.inflight_bytes_max,
        indexes_bytes_max=memory_share(config.memory_bytes_max, INDEXES_SHARE),
        gets_max=tier.concurrent_gets_max,
        hedge_gets_per_minute_min=tier.hedge_gets_per_minute_min,
        retention_s=_retention_s(config),
    )


def _retention_s(config: Config) -> float | None:
    return None if config.cache.retention_ms < 0 else config.cache.retention_ms / 1000


def _disk_blocks(config: Config, identity: str, meters: Meters) -> DiskBlocks | None:
    cache = config.cache
    if cache.path is None or cache.disk_bytes == 0:
        return None
    return DiskBlocks(
        cache.path,
        bytes_max=cache.disk_bytes,
        identity=identity,
        cipher=_block_cipher(config),
        retention_s=_retention_s(config),
        meter=meters.cache,
    )


def _block_cipher(config: Config) -> BlockCipher | None:
    if not config.cache.encrypt:
        return None
    key_file = config.cache.encrypt_key_file
    return BlockCipher.generate() if key_file is None else BlockCipher.from_file(key_file)
