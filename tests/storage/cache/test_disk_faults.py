"""The disk cache's disk in trouble: full, read-only, broken, gone. It is counted, done without, and comes back after a
rest: how long, who tries next, what may be read meanwhile."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from metrics.cache_meters import CacheMeter, DiskErrorCause
from metrics.registry import Registry
from storage.cache.disk_health import RETRY_S, DiskHealth
from storage.errors import StorageConfigError
from tests.support.cases import case
from tests.support.disk_cache import (
    Clock,
    DiskCache,
    break_writes,
    bytes_on_disk,
    comes_back,
    cost,
    data_of,
    disk_cache,
    files_below,
    key_of,
)

FIRST, SECOND, THIRD = key_of(1), key_of(2), key_of(3)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[DiskCache]:
    with disk_cache(tmp_path) as cache:
        yield cache


NUMBERS = {errno.ENOSPC: "full", errno.EROFS: "read_only", errno.EIO: "other"}


def test_a_write_that_fails_is_counted_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, cause in NUMBERS.items():
        with case(cause), disk_cache(tmp_path / cause) as cache:
            cache.write(FIRST)
            with monkeypatch.context() as patch:
                break_writes(patch, number)
                assert not cache.disk.write(SECOND, data_of(SECOND))
            assert (cache.errors(cause), cache.count("disk_skipped_blocks_total")) == (1, 1)
            assert [path.name for path in files_below(cache.path)] == ["1-100-100"]
            assert cache.disk.index.size_bytes == cost(1)
            assert cache.disk.holds(FIRST) == (cause != "other")
            comes_back(cache)
            assert cache.served(FIRST, SECOND) == [FIRST]


def test_a_disk_that_stays_full_is_tried_once_in_a_while(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    break_writes(monkeypatch, errno.ENOSPC)
    for _ in range(100):
        cache.disk.write(FIRST, data_of(FIRST))
        cache.clock.now_s += RETRY_S / 20
    assert cache.errors("full") == 5
    assert cache.count("disk_skipped_blocks_total") == 100


def test_a_block_whose_file_is_gone_is_a_miss_and_no_more(cache: DiskCache) -> None:
    cache.write(FIRST, SECOND)
    cache.file_of(FIRST).unlink()
    assert cache.served(FIRST, SECOND) == [SECOND]
    assert cache.errors("missing") == 1
    assert cache.disk.index.size_bytes == cost(1)
    assert cache.disk.available
    cache.write(FIRST)


def test_a_vanished_folder_is_made_once_more(tmp_path: Path) -> None:
    for finder in ("reader", "writer"):
        path = tmp_path / finder
        with disk_cache(path) as cache:
            cache.write(FIRST, SECOND)
            shutil.rmtree(path)
            if finder == "reader":
                assert cache.disk.read(FIRST) is None
            else:
                assert not cache.disk.write(THIRD, data_of(THIRD))
            assert cache.errors("missing") == 1, finder
            assert not cache.disk.holds(SECOND)
            assert (len(cache.disk.index.entries), cache.disk.index.size_bytes) == (0, 0)
            comes_back(cache)
            cache.write(FIRST)
            with disk_cache(path) as other:
                assert other.errors("in_use") > 0
            shutil.rmtree(path)
            assert not cache.disk.write(SECOND, data_of(SECOND))
            cache.disk.health.on_written()  # also when a write had just succeeded
            assert cache.disk.available
            cache.write(SECOND)
            assert cache.served(SECOND) == [SECOND]


def test_a_folder_that_comes_back_is_listed_and_counts(tmp_path: Path) -> None:
    """As when a disk is unmounted and mounted again: what it holds is neither lost nor forgotten in the budget."""
    path = tmp_path / "cache"
    keys = [key_of(number) for number in range(10, 14)]
    with disk_cache(path, bytes_max=cost(4)) as cache:
        cache.write(*keys)
        path.rename(tmp_path / "away")
        assert not cache.disk.write(THIRD, data_of(THIRD))
        (tmp_path / "away").rename(path)
        comes_back(cache)
        assert bytes_on_disk(path) <= cache.disk.index.size_bytes == cost(4)
        assert len(cache.served(*keys, THIRD)) == 4


def test_a_folder_that_somebody_else_took_meanwhile_is_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with disk_cache(path) as cache:
        path.rename(tmp_path / "away")
        with disk_cache(path) as second:
            second.write(FIRST)
            for _ in range(3):
                assert not cache.disk.write(THIRD, data_of(THIRD))
                cache.clock.now_s += RETRY_S
            assert cache.errors("in_use") == 2
            assert second.served(FIRST, THIRD) == [FIRST]
        cache.clock.now_s -= 1
        comes_back(cache)
        assert cache.served(FIRST) == [FIRST]


def test_missing_folders_inside_are_made_once_more(cache: DiskCache, tmp_path: Path) -> None:
    cache.write(FIRST)
    (tmp_path / "blocks" / "writing").rmdir()
    assert not cache.disk.write(SECOND, data_of(SECOND))
    assert cache.errors("missing") == 1
    comes_back(cache)
    assert cache.served(FIRST) == [FIRST]


def refuse_deletes(patch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    patch.setattr(Path, "unlink", refuse)


def test_what_cannot_be_deleted_is_charged_and_goes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk_cache(tmp_path, bytes_max=cost(2)) as cache:
        cache.write(FIRST, SECOND)
        with monkeypatch.context() as patch:
            refuse_deletes(patch)
            for _ in range(3):
                assert not cache.disk.write(THIRD, data_of(THIRD))
                cache.clock.now_s += RETRY_S
            assert cache.errors("read_only") == 3
            assert cache.disk.index.size_bytes == cost(2)
            assert len(cache.served(FIRST, SECOND)) == 1, "no more is given up than one block needs"
        cache.write(THIRD)
        assert bytes_on_disk(tmp_path) <= cache.disk.index.size_bytes == cost(2)


def test_half_a_block_that_cannot_be_deleted_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk_cache(tmp_path, bytes_max=cost(1)) as cache:
        with monkeypatch.context() as patch:
            break_writes(patch, errno.EIO)
            refuse_deletes(patch)
            assert not cache.disk.write(FIRST, data_of(FIRST))
        assert len(files_below(tmp_path)) == 1
        assert cache.disk.index.size_bytes == cost(1)
        cache.clock.now_s += RETRY_S
        cache.write(FIRST)
        assert [path.name for path in files_below(tmp_path)] == ["1-100-100"]


def test_what_cannot_be_dropped_at_the_start_is_in_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk_cache(tmp_path, identity="another") as cache:
        cache.write(FIRST)
    with monkeypatch.context() as patch:
        refuse_deletes(patch)
        with disk_cache(tmp_path, bytes_max=cost(1)) as cache:
            assert cache.disk.index.size_bytes == cost(1)
            assert not cache.disk.available
            patch.undo()
            cache.clock.now_s += RETRY_S
            cache.write(SECOND)
            assert bytes_on_disk(tmp_path) <= cost(1)


def test_an_unreadable_block_is_given_up_and_the_disk_rests(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(FIRST, SECOND)

    def fail(descriptor: int, size_bytes: int, position: int) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        assert cache.disk.read(FIRST) is None
    assert cache.errors("other") == 1
    assert not cache.disk.holds(SECOND)
    comes_back(cache)
    assert cache.served(FIRST, SECOND) == [SECOND]


def test_a_block_evicted_before_it_is_read_is_no_trouble(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(FIRST)
    path_of = cache.disk.folder.path_of

    def path_of_evicted(key: object) -> Path:
        monkeypatch.undo()
        cache.disk.drop(FIRST)
        return path_of(FIRST)

    monkeypatch.setattr(cache.disk.folder, "path_of", path_of_evicted)
    assert cache.disk.read(FIRST) is None
    assert cache.errors("missing") == 0
    assert cache.disk.available


def failing_mkdir(number: int) -> Callable[..., NoReturn]:
    def fail(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_with_a_disk_in_trouble_it_starts_without_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, cause in NUMBERS.items():
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", failing_mkdir(number))
            with case(cause), disk_cache(tmp_path / cause) as cache:
                assert cache.errors(cause) > 0
                assert cache.count("disk_available") == 0
                patch.undo()
                comes_back(cache)
    monkeypatch.setattr(Path, "mkdir", failing_mkdir(errno.EACCES))
    with pytest.raises(StorageConfigError, match=r"^cache\.path: .*: Permission denied$"), disk_cache(tmp_path / "x"):
        pass


def test_a_folder_that_another_process_has_is_done_without_until_it_is_free(tmp_path: Path) -> None:
    """Failed before: a serve that was started right after one was killed refused its configuration."""
    with disk_cache(tmp_path / "cache") as first:
        first.write(FIRST)
        with disk_cache(tmp_path / "cache") as second:
            assert second.disk.health.trouble is not None
            assert second.disk.health.trouble.startswith("in_use: cache.path")
            assert not second.disk.write(SECOND, data_of(SECOND))
            first.disk.close()
            second.clock.now_s += RETRY_S
            second.write(SECOND)
            assert second.served(FIRST, SECOND) == [FIRST, SECOND]
            assert second.disk.health.trouble is None


def test_a_listing_that_fails_is_made_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with disk_cache(tmp_path, clock=clock) as cache:
        cache.write(FIRST)

    def fail(path: Path) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        with disk_cache(tmp_path, clock=clock) as cache:
            patch.undo()
            assert not cache.disk.holds(FIRST)
            comes_back(cache)
            assert cache.served(FIRST) == [FIRST]


class HealthWorld:
    def __init__(self) -> None:
        self.registry = Registry()
        self.clock = Clock()
        self.health = DiskHealth(CacheMeter(self.registry), self.clock)

    @property
    def gauge(self) -> float | None:
        return self.registry.sample_value("tidegate_cache_disk_available")


def test_after_trouble_one_write_tries_and_the_rest_follow() -> None:
    for cause in DiskErrorCause:
        world = HealthWorld()
        health = world.health
        assert [health.is_good, health.may_read, health.may_write, health.try_write(), world.gauge == 1] == [True] * 5
        health.on_trouble(cause, "detail")
        assert (world.gauge, health.try_write()) == (0, False)
        assert health.may_read == (cause in (DiskErrorCause.FULL, DiskErrorCause.READ_ONLY)), "it is read, and no other"
        world.clock.now_s += RETRY_S
        assert [health.may_read, health.try_write(), health.may_write, health.try_write()] == [True, True, False, False]
        health.on_trouble(cause, "a try that fails is followed by another rest")
        world.clock.now_s += RETRY_S - 1
        assert not health.may_write
        world.clock.now_s += 1
        assert health.try_write()
        health.on_written()
        assert (world.gauge, health.try_write(), health.try_write()) == (1, True, True), cause
