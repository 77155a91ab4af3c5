"""The disk cache under any order of events: never over budget, never a wrong byte, nothing foreign touched.

What is on disk is counted from outside: after every step, and in the middle of every write, when the temporary file
is there. Events are those of its users, of a disk that fails, and of somebody who meddles with its files.
"""

import errno
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.cache import disk_folder
from storage.cache.block_cipher import BlockCipher
from storage.cache.disk import RETRY_S
from storage.cache.disk_folder import DiskBlockKey, cost_bytes, file_bytes
from tests.support.disk_cache import Clock, DiskCache, bytes_on_disk, data_of, disk_cache, files_below, key_of

SEGMENTS = ("one", "two")
ALL_KEYS = [
    key_of(number, segment=segment, size_bytes=size_bytes)
    for segment in SEGMENTS
    for number, size_bytes in enumerate((1, 4096, 9000))
]
KEYS = st.sampled_from(ALL_KEYS)
READERS = st.sampled_from([None, "one", "two"])
BUDGETS = st.sampled_from([8, 12, 3]).map(lambda units: units * 4096)
RETENTION_S = 1000.0


class DiskBlocksMachine(RuleBasedStateMachine):
    """`idle_since`: when each key that may be there was last written or read."""

    cache: DiskCache

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.process = ExitStack()
        self.path = Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "cache"
        self.patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        self.clock = Clock()
        self.failing: int | None = None
        self.used_at_s: dict[DiskBlockKey, float] = {}
        self.bytes_max = 0
        self.identity = "a store"
        self.cipher: BlockCipher | None = None
        self.foreign: list[Path] = []
        self.write_buffers = disk_folder.write_buffers
        self.patch.setattr(disk_folder, "write_buffers", self.watched_write)

    def teardown(self) -> None:
        self.process.close()
        self.stack.close()

    def watched_write(self, descriptor: int, buffers: list[memoryview]) -> None:
        if self.failing is not None:
            self.write_buffers(descriptor, [buffers[0][:10]])
            raise OSError(self.failing, errno.errorcode[self.failing])
        self.write_buffers(descriptor, buffers)
        assert bytes_on_disk(self.path) <= self.bytes_max

    @initialize(bytes_max=BUDGETS)
    def begin(self, bytes_max: int) -> None:
        self.start(bytes_max)
        self.foreign = [self.path / "catalog", self.path / "blocks" / "1-2-3.copy"]
        for path in self.foreign:
            path.write_bytes(b"mine")

    def start(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        opened = disk_cache(
            self.path,
            bytes_max=bytes_max,
            identity=self.identity,
            cipher=self.cipher,
            retention_s=RETENTION_S,
            clock=self.clock,
        )
        self.cache = self.process.enter_context(opened)

    @rule(bytes_max=BUDGETS, change=st.sampled_from(["", "", "identity", "key"]))
    def restart(self, bytes_max: int, change: str) -> None:
        self.process.close()
        if change == "identity":
            self.identity += "!"
        elif change == "key":
            self.cipher = BlockCipher(bytes(32)) if self.cipher is None else None
        self.start(bytes_max)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), reader=READERS)
    def write(self, keys: list[DiskBlockKey], reader: str | None) -> None:
        for key in keys:
            was_available = self.cache.disk.available
            if not self.put(key, reader):
                fits = cost_bytes(file_bytes(key)) <= self.bytes_max
                assert not (was_available and fits and self.cache.disk.available)

    def put(self, key: DiskBlockKey, reader: str | None = None) -> bool:
        was_there = self.cache.disk.holds(key)
        is_written = self.cache.disk.write(key, data_of(key), reader)
        assert self.cache.disk.holds(key) == is_written
        if is_written and not was_there:
            self.used_at_s[key] = self.clock.now_s
        return is_written

    @rule(keys=st.permutations(ALL_KEYS), reader=READERS)
    def read(self, keys: list[DiskBlockKey], reader: str | None) -> None:
        for key in keys:
            was_held = self.cache.disk.holds(key)
            data = self.cache.disk.read(key, reader)
            assert self.cache.disk.holds(key) == (data is not None)
            if data is not None:
                assert was_held
                assert data == data_of(key)
                assert self.clock.now_s - self.used_at_s[key] <= RETENTION_S
                self.used_at_s[key] = self.clock.now_s

    @rule(key=KEYS)
    def drop(self, key: DiskBlockKey) -> None:
        self.cache.disk.drop(key)
        assert not self.cache.disk.holds(key)

    @rule(segments=st.sets(st.sampled_from(SEGMENTS), min_size=1))
    def drop_unknown(self, segments: set[str]) -> None:
        known = {key_of(0, segment=segment).segment_id for segment in segments}
        self.cache.disk.drop_unknown(known.intersection)
        assert not any(self.cache.disk.holds(key) for key in ALL_KEYS if key.segment_id not in known)

    @rule(seconds=st.sampled_from([10.0, 70.0, 600.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule()
    def expire(self) -> None:
        before = len(self.cache.disk)
        assert self.cache.disk.expire() == before - len(self.cache.disk)

    @rule(failing=st.sampled_from([errno.ENOSPC, errno.EROFS, errno.EIO]), keys=st.lists(KEYS, max_size=2))
    def fail_for_a_while(self, failing: int, keys: list[DiskBlockKey]) -> None:
        self.failing = failing
        for key in keys:
            self.put(key)
        self.failing = None
        self.clock.now_s += RETRY_S

    @precondition(lambda self: bool(whole_files(self.path)))
    @rule(data=st.data(), how=st.sampled_from(["flipped", "cut", "gone"]), position=st.sampled_from([-1, 5]))
    def meddle(self, data: st.DataObject, how: str, position: int) -> None:
        path = data.draw(st.sampled_from(whole_files(self.path)))
        times = (path.stat().st_atime, path.stat().st_mtime)
        content = bytearray(path.read_bytes())
        content[position] ^= 0x10
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(content if how == "flipped" else content[:-1])
            os.utime(path, times)

    @rule(is_retried=st.booleans())
    def lose_the_folder(self, is_retried: bool) -> None:
        shutil.rmtree(self.path, ignore_errors=True)  # it may be gone already
        self.foreign = []
        if is_retried:
            self.put(ALL_KEYS[0])
            self.clock.now_s += RETRY_S

    @invariant()
    def is_within_budget(self) -> None:
        if hasattr(self, "cache"):
            assert bytes_on_disk(self.path) <= self.cache.disk.size_bytes <= self.bytes_max

    @invariant()
    def leaves_what_is_foreign(self) -> None:
        assert all(path.read_bytes() == b"mine" for path in self.foreign)


def whole_files(path: Path) -> list[Path]:
    """Files that have their names."""
    return [file for file in files_below(path) if file.suffix != ".part"]


TestDiskBlocks = DiskBlocksMachine.TestCase
