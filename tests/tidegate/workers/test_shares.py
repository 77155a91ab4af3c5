"""What each worker has of the host's budgets, and how many workers `auto` is."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage.config import ConfigError
from storage.config.value_kinds import MIB
from tests.support.config_files import load_lines
from tidegate.config import Config
from tidegate.workers.shares import AUTO_MAX, share_of, usable_cores, worker_count

BUDGETS: Sequence[Callable[[Config], int]] = (
    lambda config: config.memory_bytes_max,
    lambda config: config.cache.memory_bytes,
    lambda config: config.cache.disk_bytes,
    lambda config: config.readahead.total_bytes_max,
    lambda config: config.tier.inflight_bytes_max,
    lambda config: config.tier.concurrent_gets_max,
    lambda config: config.proxy.held_bytes_max,
)


def test_all_together_have_no_more_than_one_process_would(tmp_path: Path) -> None:
    whole = load_lines(tmp_path, f"cache.path={tmp_path / 'cache'}\nproxy.connections.max=4097\n")
    for workers in (2, 3, 8):
        shares = [share_of(whole, worker, workers) for worker in range(workers)]
        for budget in BUDGETS:
            assert budget(whole) - workers < sum(map(budget, shares)) <= budget(whole)
        assert 4097 <= sum(share.proxy.connections_max or 0 for share in shares) < 4097 + workers
        assert all(share.readahead.stream_bytes_max <= share.readahead.total_bytes_max for share in shares)
        assert len({share.cache.path for share in shares}) == workers
        # The first worker's part of the cache is where a single process has it.
        assert shares[0].cache.path == whole.cache.path
        assert [share.log.worker for share in shares] == [str(worker) for worker in range(workers)]
        assert {share.catalog.snapshot_path for share in shares} == {whole.catalog.snapshot_path}
        assert [share.catalog.snapshot_is_written for share in shares] == [True] + [False] * (workers - 1)


def test_auto_is_a_worker_for_each_core_that_has_memory_enough(tmp_path: Path) -> None:
    cores = usable_cores()
    assert worker_count(load_lines(tmp_path, "proxy.workers=auto\n")) == min(cores, AUTO_MAX)
    assert worker_count(load_lines(tmp_path, "proxy.workers=auto\nmemory.max.bytes=192 MiB\n")) == 1
    blocks = "cache.memory.bytes=16 MiB\nexpert.cache.block.bytes=16 MiB\n"
    assert worker_count(load_lines(tmp_path, f"proxy.workers=auto\n{blocks}")) == 1
    assert worker_count(load_lines(tmp_path, "proxy.workers=3\n")) == 3
    assert worker_count(load_lines(tmp_path, "")) == 1


def test_workers_without_memory_enough_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"so many need memory\.max\.bytes = 384 MiB or more"):
        load_lines(tmp_path, f"proxy.workers=2\nmemory.max.bytes={2 * 192 * MIB - 1}\n")
    blocks = r"cache\.memory\.bytes = 48 MiB or more, a block of expert\.cache\.block\.bytes for each"
    with pytest.raises(ConfigError, match=blocks):
        load_lines(tmp_path, "proxy.workers=3\ncache.memory.bytes=47 MiB\nexpert.cache.block.bytes=16 MiB\n")
    with pytest.raises(ConfigError, match="auto or a number from 1 to 64"):
        load_lines(tmp_path, "proxy.workers=0\n")


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    affinity = getattr(os, "sched_getaffinity", None)
    all_cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    for quota, cores in (
        ("max 100000", all_cores),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("", all_cores),
        ("150000 1", all_cores),
    ):
        file.write_text(quota)
        assert usable_cores(file) == cores, quota
    assert usable_cores(tmp_path / "absent") == all_cores
