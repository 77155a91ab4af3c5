"""How many workers there are, and which part of the host's budgets each has.

One configuration is for the host: what a worker gets is its Nth part, so that all together take no more than one
process would. Divided are the budgets under `memory.max.bytes`, `cache.disk.bytes`, GETs at once and connections. Not
divided are times and limits on one frame, one connection or one broker. Limits for each client address are the
supervisor's, save behind a balancer: then only a worker reads the address, and each keeps the limits by itself.
"""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from tidegate.config.model import WORKER_MEMORY_BYTES_MIN, Config
from tidegate.open_files import connections_max
from tidegate.workers.cache_parts import cache_part

AUTO_MAX: Final = 8
"""What `auto` starts at most: beyond it the link to the store is full first."""

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use (cgroup v2): microseconds in a period, or `max`."""


def worker_count(config: Config) -> int:
    """`proxy.workers`; for `auto`: one for each core that this process may use, while each has memory enough."""
    if config.proxy.workers:
        return config.proxy.workers
    room_for = min(
        config.memory_bytes_max // WORKER_MEMORY_BYTES_MIN, config.cache.memory_bytes // config.cache.block_bytes
    )
    return max(1, min(usable_cores(), AUTO_MAX, room_for))


def usable_cores(quota: Path = _QUOTA) -> int:
    """The cores that this process may run on, and has the time for."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    try:
        allowed_us, period_us = quota.read_text("ascii").split()
        return min(cores, max(1, math.ceil(int(allowed_us) / int(period_us))))
    except (OSError, ValueError):
        return cores  # no such file, or no limit


def share_of(config: Config, worker: int, workers: int) -> Config:
    """The configuration of one worker, which listens to nobody itself and stops when the supervisor says so."""

    def part(whole: int) -> int:
        return max(1, whole // workers)

    proxy, cache, readahead, tier = config.proxy, config.cache, config.readahead, config.tier
    total_bytes_max = readahead.total_bytes_max // workers
    return replace(
        config,
        memory_bytes_max=part(config.memory_bytes_max),
        proxy=replace(
            proxy,
            held_bytes_max=part(proxy.held_bytes_max),
            connections_max=math.ceil(connections_max(config, workers) / workers),
            connections_max_per_ip=proxy.connections_max_per_ip if proxy.protocol else None,
            connections_rate_per_ip=proxy.connections_rate_per_ip if proxy.protocol else None,
            drain_delay_ms=0,
        ),
        cache=replace(
            cache,
            path=None if cache.path is None else cache_part(cache.path, worker),
            disk_bytes=cache.disk_bytes // workers,
            memory_bytes=part(cache.memory_bytes),
        ),
        readahead=replace(
            readahead,
            total_bytes_max=total_bytes_max,
            stream_bytes_max=min(readahead.stream_bytes_max, total_bytes_max),
        ),
        tier=replace(
            tier, inflight_bytes_max=part(tier.inflight_bytes_max), concurrent_gets_max=part(tier.concurrent_gets_max)
        ),
        catalog=replace(config.catalog, snapshot_is_written=worker == 0),
        log=replace(config.log, worker=str(worker)),
    )
