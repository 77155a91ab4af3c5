"""The disk cache on file systems that are really full, read-only or closed to us, and beside another process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from storage.cache.block_file import identity_digest
from storage.cache.disk_folder import DiskFolder
from storage.cache.disk_health import RETRY_S
from storage.errors import StorageConfigError
from tests.support.disk_cache import comes_back, data_of, disk_cache, files_below, key_of

FIRST, SECOND = key_of(1), key_of(2)
NOBODY = 65534
IDENTITY = identity_digest("a store")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "tiny"
    path.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs"]
    subprocess.run(["mount", *options, path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.needs("tmpfs")
def test_a_disk_that_is_really_full_serves_what_it_has_and_comes_back(tiny_disk: Path) -> None:
    keys = [key_of(number, size_bytes=30_000) for number in range(20)]
    with disk_cache(tiny_disk) as cache:
        written = [key for key in keys if cache.disk.write(key, data_of(key))]
        assert 5 < len(written) < 9
        assert cache.errors("full") == 1
        assert cache.served(*keys) == written
        assert len(files_below(tiny_disk)) == len(written), "and no half of one"
        cache.disk.drop(written[0])
        comes_back(cache)


@pytest.mark.needs("tmpfs")
def test_a_disk_that_is_really_read_only_serves_what_it_has_and_comes_back(tiny_disk: Path) -> None:
    with disk_cache(tiny_disk) as cache:
        cache.write(FIRST)
        remount(tiny_disk, "ro")
        try:
            assert not cache.disk.write(SECOND, data_of(SECOND))
            cache.clock.now_s += RETRY_S * 20
            assert cache.served(FIRST) == [FIRST]
            cache.disk.close()
            with disk_cache(tiny_disk, clock=cache.clock) as restarted:
                assert restarted.served(FIRST) == [FIRST]
                assert not restarted.disk.write(SECOND, data_of(SECOND))
                assert restarted.errors("read_only") == 1
                remount(tiny_disk, "rw")
                comes_back(restarted)
        finally:
            remount(tiny_disk, "rw")


def remount(path: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", path], check=True)


def test_a_folder_that_may_not_be_written_is_denied() -> None:
    with TemporaryDirectory() as name, bound_by_permissions(folder := Path(name)), disk_cache(folder) as cache:
        (folder / "blocks" / "writing").chmod(0o500)
        assert not cache.disk.write(SECOND, data_of(SECOND))
        assert cache.errors("denied") == 1
        comes_back(cache)


@contextmanager
def bound_by_permissions(folder: Path) -> Iterator[None]:
    """They do not bind root, who is nobody meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    holder = (
        "import sys, pathlib\nfrom storage.cache.disk_folder import DiskFolder\n"
        f"DiskFolder(pathlib.Path(sys.argv[1]), {IDENTITY!r}, b'').open()\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", holder, str(tmp_path / "cache")]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        closing(DiskFolder(tmp_path / "cache", IDENTITY, b"")) as folder,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StorageConfigError, match="in use by another process"):
            folder.open()
        process.kill()
        process.wait()
        assert folder.open()
