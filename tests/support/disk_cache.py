"""A disk cache in a temporary folder, with a clock that tests set and a disk that fails on demand.

    with disk_cache(tmp_path, bytes_max=cost(3)) as cache:        # listed already
        cache.disk.write(cache.key(1), cache.data(cache.key(1)))

The bytes of a block follow from its key: `data_of`.
"""

import errno
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from metrics.cache_meters import CacheMeter
from metrics.registry import Registry
from storage.cache import block_file
from storage.cache.block_cipher import BlockCipher
from storage.cache.block_file import DiskBlockKey, cost_bytes, file_bytes
from storage.cache.disk import DiskBlocks
from storage.cache.disk_health import RETRY_S
from storage.cache.kept_indexes import FIRST_NUMBER, IndexPart
from storage.model import Uuid
from tests.support.segments import uuid_of

START_S = 1_700_000_000.0
SIZE_BYTES = 100
_OWN_NAME = re.compile(r"\d+-\d+-\d+|\d+\.part")
IDENTITY = "a format in a store"


@dataclass
class Clock:
    now_s: float = START_S

    def __call__(self) -> float:
        return self.now_s


def key_of(number: int, *, segment: str = "segment", size_bytes: int = SIZE_BYTES) -> DiskBlockKey:
    return DiskBlockKey(uuid_of("topic"), Uuid(uuid_of(segment)), max(size_bytes, SIZE_BYTES), number, size_bytes)


def data_of(key: DiskBlockKey) -> bytes:
    """The block's bytes: another key, other bytes."""
    return hashlib.shake_128(repr(key).encode()).digest(key.size_bytes)


def cost(blocks: int) -> int:
    """Return what so many blocks cost on disk."""
    return blocks * cost_bytes(file_bytes(key_of(0)))


def files_below(folder: Path) -> list[Path]:
    """The cache's own files by their names, half written ones among them, without the lock."""
    return sorted(path for path in (folder / "blocks").rglob("*") if _OWN_NAME.fullmatch(path.name))


def log_blocks_below(folder: Path) -> list[Path]:
    """Return the blocks of logs among these, without indexes."""
    index_numbers = {str(FIRST_NUMBER + part) for part in IndexPart}
    return [path for path in files_below(folder) if path.name.partition("-")[0] not in index_numbers]


def bytes_on_disk(folder: Path) -> int:
    """Return what the files take in a file system of 4 KiB units, with one for each folder that holds some."""
    files = files_below(folder)
    units = sum(-(-path.stat().st_size // 4096) for path in files) + len({path.parent for path in files})
    return units * 4096


@dataclass
class DiskCache:
    """The cache under test, with what it was made of."""

    disk: DiskBlocks
    path: Path
    clock: Clock
    registry: Registry

    def write(self, *keys: DiskBlockKey) -> None:
        for key in keys:
            assert self.disk.write(key, data_of(key))

    def served(self, *keys: DiskBlockKey, reader: str | None = None) -> list[DiskBlockKey]:
        """Those of the keys that are there. Their bytes are right."""
        found = []
        for key in keys:
            data = self.disk.read(key, reader)
            if data is not None:
                assert data == data_of(key)
                found.append(key)
        return found

    def file_of(self, key: DiskBlockKey) -> Path:
        """The one file of this block."""
        name = f"{key.number}-{key.block_bytes}-{key.size_bytes}"
        (path,) = [path for path in files_below(self.path) if path.name == name]
        return path

    def errors(self, cause: str) -> float:
        return self.registry.sample_value("tidegate_cache_disk_errors_total", {"cause": cause}) or 0.0

    def count(self, name: str, **labels: str) -> float:
        return self.registry.sample_value(f"tidegate_cache_{name}", labels) or 0.0


@contextmanager
def disk_cache(
    path: Path,
    *,
    bytes_max: int = cost(10_000),
    identity: str = IDENTITY,
    cipher: BlockCipher | None = None,
    retention_s: float | None = None,
    clock: Clock | None = None,
    is_listed: bool = True,
) -> Iterator[DiskCache]:
    """Open a cache that has listed its folder, unless `is_listed` is False."""
    clock = clock or Clock()
    registry = Registry()
    disk = DiskBlocks(
        path,
        bytes_max=bytes_max,
        identity=identity,
        cipher=cipher,
        retention_s=retention_s,
        meter=CacheMeter(registry),
        clock=clock,
    )
    try:
        if is_listed:
            disk.load()
        yield DiskCache(disk, path, clock, registry)
    finally:
        disk.close()


def break_writes(patch: pytest.MonkeyPatch, error_number: int) -> None:
    """Every write fails from now on, with some bytes on disk already."""
    write = block_file.write_buffers

    def fail(descriptor: int, buffers: list[memoryview]) -> NoReturn:
        write(descriptor, [buffers[0][:50]])
        raise OSError(error_number, errno.errorcode[error_number])

    patch.setattr(block_file, "write_buffers", fail)


def comes_back(cache: DiskCache) -> None:
    """Not before its rest is over; then the next write is the test."""
    third = key_of(3)
    assert (cache.disk.available, cache.disk.write(third, data_of(third))) == (False, False)
    cache.clock.now_s += RETRY_S
    assert cache.disk.available
    assert cache.count("disk_available") == 0
    cache.write(third)
    assert cache.count("disk_available") == 1
    assert cache.served(third) == [third]
