"""The disk cache on a real folder: restarts, identities, keys, expiry; then under any order of events.

There what is on disk is counted from outside: after every step, and in the middle of every write, when the temporary
file is there. Events are those of its users, of a disk that fails, and of somebody who meddles with its files. Its
disk's troubles one by one: test_disk_faults.
"""

import errno
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metrics.cache_meters import DiskErrorCause
from storage.cache import block_file
from storage.cache.block_cipher import BlockCipher
from storage.cache.block_file import VERSION, DiskBlockKey, cost_bytes, file_bytes
from storage.cache.disk_health import RETRY_S
from tests.support.disk_cache import (
    START_S,
    Clock,
    DiskCache,
    bytes_on_disk,
    cost,
    data_of,
    disk_cache,
    files_below,
    key_of,
)

FIRST, SECOND, THIRD = key_of(1), key_of(2), key_of(3)
HOUR_S = 3600.0


def test_a_block_is_read_as_it_was_written(tmp_path: Path) -> None:
    with disk_cache(tmp_path / "cache") as cache:
        assert not cache.disk.holds(FIRST)
        assert cache.disk.read(FIRST) is None
        for data in (data_of(FIRST), bytearray(data_of(FIRST)), memoryview(data_of(FIRST))):
            assert cache.disk.write(FIRST, data)
        assert cache.disk.holds(FIRST)
        assert cache.served(FIRST, SECOND) == [FIRST]
        assert (len(cache.disk.index.entries), cache.disk.index.size_bytes) == (1, cost(1))
        assert cache.count("resident_bytes", level="disk") == cost(1)
        assert cache.count("disk_skipped_blocks_total") == 0


def test_whole_blocks_survive_a_restart_and_the_torn_ones_do_not(tmp_path: Path) -> None:
    keys = [key_of(number, segment=f"segment {number % 7}") for number in range(102)]
    with disk_cache(tmp_path) as cache:
        cache.write(*keys)
        truncated, flipped, zeroed = (cache.file_of(key) for key in keys[:3])
    os.truncate(truncated, truncated.stat().st_size - 1)
    content = bytearray(flipped.read_bytes())
    content[-10] ^= 0x10
    flipped.write_bytes(content)
    # What a power cut can leave: a file of the right length that the data never reached, and one half written.
    zeroed.write_bytes(bytes(zeroed.stat().st_size))
    half = tmp_path / "blocks" / "writing" / "17.part"
    half.write_bytes(b"half")
    with disk_cache(tmp_path) as cache:
        assert cache.served(*keys) == keys[3:]
        assert not any(path.exists() for path in (truncated, flipped, zeroed, half))
        assert (len(cache.disk.index.entries), cache.disk.index.size_bytes) == (99, cost(99))
        assert cache.errors("corrupt") == 3
        assert cache.count("quarantined_blocks_total") == 2


def test_nothing_is_held_or_written_until_the_folder_is_listed(tmp_path: Path) -> None:
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST)
    with disk_cache(tmp_path, is_listed=False) as cache:
        disk = cache.disk
        assert (disk.available, disk.holds(FIRST), disk.read(FIRST)) == (False, False, None)
        assert not disk.write(SECOND, data_of(SECOND))
        disk.load()
        assert disk.write(SECOND, data_of(SECOND))
        disk.load()
        assert disk.holds(SECOND)
        disk.close()
        disk.close()
        assert (disk.available, disk.holds(SECOND)) == (False, False)
        assert not disk.write(FIRST, data_of(FIRST))


def test_a_smaller_budget_holds_once_listed_and_what_was_read_last_stays(tmp_path: Path) -> None:
    keys = [key_of(number) for number in range(10)]
    clock = Clock()
    with disk_cache(tmp_path, clock=clock) as cache:
        cache.write(*keys)
        clock.now_s += HOUR_S
        cache.served(keys[2], keys[5])
    with disk_cache(tmp_path, bytes_max=cost(2), clock=clock) as cache:
        assert bytes_on_disk(tmp_path) <= cost(2)
        assert cache.served(*keys) == [keys[2], keys[5]]


KEY, OTHER_KEY = BlockCipher(bytes(range(32))), BlockCipher(bytes(32))


def test_a_key_file_makes_an_encrypted_cache_survive(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(32))
    path.chmod(0o400)
    for expected in ([], [FIRST]):
        with disk_cache(tmp_path / "cache", cipher=BlockCipher.from_file(path)) as cache:
            assert cache.served(FIRST) == expected
            cache.write(FIRST)


def test_what_was_written_otherwise_is_dropped_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[tuple[int, Any, Any]] = [
        (VERSION, {"cipher": KEY}, {"cipher": OTHER_KEY}),
        (VERSION, {"cipher": KEY}, {}),
        (VERSION, {}, {"cipher": KEY}),
        (VERSION, {"identity": "one bucket"}, {"identity": "another bucket"}),
        (VERSION - 1, {}, {}),
        (VERSION + 1, {}, {}),
    ]
    for number, (version, before, after) in enumerate(others):
        path = tmp_path / str(number)
        with monkeypatch.context() as patch:
            for module in ("block_file", "disk_folder"):
                patch.setattr(f"storage.cache.{module}.VERSION", version)
            with disk_cache(path, **before) as cache:
                cache.write(FIRST)
        with disk_cache(path, **after) as cache:
            assert not cache.disk.holds(FIRST), (version, before, after)
            assert files_below(path) == []


def test_dropped_blocks_and_segments_are_gone_at_once(tmp_path: Path) -> None:
    other = key_of(1, segment="other")
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST, SECOND, THIRD, other)
        cache.disk.drop(FIRST)
        cache.disk.drop(FIRST)
        assert cache.served(FIRST, SECOND, THIRD, other) == [SECOND, THIRD, other]
        cache.disk.drop_segments([SECOND.segment_id])
        assert cache.served(SECOND, THIRD, other) == [other]
        assert len(files_below(tmp_path)) == 1


def test_segments_unknown_to_the_catalog_are_dropped_even_before_the_listing(tmp_path: Path) -> None:
    known = key_of(1, segment="known")
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST, SECOND, known)
    with disk_cache(tmp_path, is_listed=False) as cache:
        assert cache.disk.drop_unknown(lambda segments: segments & {known.segment_id}) == 2
        assert cache.served(FIRST, SECOND, known) == [known]
        assert len(files_below(tmp_path)) == 1


def test_blocks_that_nobody_reads_expire_also_over_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        cache.write(FIRST, SECOND)
        clock.now_s += HOUR_S
        assert cache.disk.expire() == 0
        assert cache.served(FIRST) == [FIRST]
        clock.now_s += 1
        assert not cache.disk.holds(SECOND), "not even before its file is deleted"
        assert cache.disk.expire() == cache.count("expired_total", level="disk") == 1
        assert cache.served(FIRST, SECOND) == [FIRST]
        assert len(files_below(tmp_path)) == 1
        cache.write(SECOND)
        clock.now_s += HOUR_S / 2
        cache.served(FIRST)
    clock.now_s += HOUR_S / 2 + 1
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        assert cache.served(FIRST, SECOND) == [FIRST]
        assert len(files_below(tmp_path)) == cache.count("expired_total", level="disk") == 1


def test_a_files_time_is_written_at_most_once_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        cache.write(FIRST)
        for later_s, stamped_s in ((59, 0), (60, 60), (119, 60), (120, 120)):
            clock.now_s = START_S + later_s
            cache.served(FIRST)
            assert cache.file_of(FIRST).stat().st_mtime == START_S + stamped_s
        os.utime(cache.file_of(FIRST), (START_S * 2, START_S * 2))
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        assert cache.served(FIRST) == [FIRST], "a file from the future is as old as one of now"
        clock.now_s += HOUR_S + 1
        assert cache.disk.expire() == 1


def test_threads_share_it(tmp_path: Path) -> None:
    """No order of events leaves a wrong byte, a file too many, or a charge for one that is gone."""
    keys = [key_of(number, segment=f"segment {number % 3}") for number in range(12)]
    with disk_cache(tmp_path, bytes_max=cost(5)) as cache:

        def work(seed: int) -> None:
            for step in range(150):
                key = keys[(step * 7 + seed * 5) % len(keys)]
                cache.disk.write(key, data_of(key), seed)
                cache.served(keys[(step * 5 + seed) % len(keys)])
                if step % 20 == seed:
                    cache.disk.drop_segments([key.segment_id])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        assert cache.disk.index.size_bytes == cost(len(files_below(tmp_path))) <= cost(5)
        assert [key for key in keys if cache.disk.holds(key)] == cache.served(*keys)
        assert {cause.value for cause in DiskErrorCause if cache.errors(cause.value)} == set()


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
        self.write_buffers = block_file.write_buffers
        self.patch.setattr(block_file, "write_buffers", self.watched_write)

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
        before = len(self.cache.disk.index.entries)
        assert self.cache.disk.expire() == before - len(self.cache.disk.index.entries)

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
            assert bytes_on_disk(self.path) <= self.cache.disk.index.size_bytes <= self.bytes_max

    @invariant()
    def leaves_what_is_foreign(self) -> None:
        assert all(path.read_bytes() == b"mine" for path in self.foreign)


def whole_files(path: Path) -> list[Path]:
    """Files that have their names."""
    return [file for file in files_below(path) if file.suffix != ".part"]


TestDiskBlocks = DiskBlocksMachine.TestCase
