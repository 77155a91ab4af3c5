"""The disk cache on a real folder: restarts, identities, keys, expiry. Its disk's troubles: test_disk_faults."""

import os
import threading
from pathlib import Path

import pytest

from metrics.cache_meters import CacheMeter, DiskErrorCause
from metrics.registry import Registry
from storage.cache.block_cipher import BlockCipher
from storage.cache.disk import DiskBlocks
from storage.errors import StorageConfigError
from tests.support.disk_cache import (
    START_S,
    Clock,
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
        assert (len(cache.disk), cache.disk.size_bytes) == (1, cost(1))
        assert cache.count("resident_bytes", level="disk") == cost(1)
        assert cache.count("disk_skipped_blocks_total") == 0


def test_half_a_block_is_a_bug(tmp_path: Path) -> None:
    with disk_cache(tmp_path) as cache:
        for data in (b"", data_of(FIRST)[1:], data_of(FIRST) + b"1"):
            with pytest.raises(ValueError, match="a block of 100 bytes has"):
                cache.disk.write(FIRST, data)
        with pytest.raises(ValueError, match="a block of 0 bytes has 0"):
            cache.disk.write(key_of(1, size_bytes=0), b"")


def test_999_whole_blocks_survive_a_restart_and_the_torn_ones_do_not(tmp_path: Path) -> None:
    keys = [key_of(number, segment=f"segment {number % 7}") for number in range(1002)]
    with disk_cache(tmp_path) as cache:
        cache.write(*keys)
        truncated, flipped, zeroed = (cache.file_of(key) for key in keys[:3])
    os.truncate(truncated, truncated.stat().st_size - 1)
    content = bytearray(flipped.read_bytes())
    content[-10] ^= 0x10
    flipped.write_bytes(content)
    # What a power cut can leave: a file of the right length that the data never reached.
    zeroed.write_bytes(bytes(zeroed.stat().st_size))
    with disk_cache(tmp_path) as cache:
        assert cache.served(*keys) == keys[3:]
        assert not any(path.exists() for path in (truncated, flipped, zeroed))
        assert (len(cache.disk), cache.disk.size_bytes) == (999, cost(999))
        assert cache.errors("corrupt") == 3
        assert cache.count("quarantined_blocks_total") == 2


def test_nothing_is_held_or_written_until_the_folder_is_listed(tmp_path: Path) -> None:
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST)
    disk = DiskBlocks(
        tmp_path,
        bytes_max=cost(9),
        identity="x",
        cipher=None,
        retention_s=None,
        meter=CacheMeter(Registry()),
        clock=Clock(),
    )
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


def test_what_is_half_written_at_a_crash_is_gone_after_it(tmp_path: Path) -> None:
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST)
    half = tmp_path / "blocks" / "writing" / "17.part"
    half.write_bytes(b"half")
    with disk_cache(tmp_path) as cache:
        assert not half.exists()
        assert cache.served(FIRST) == [FIRST]


def test_the_budget_holds_files_headers_and_folders(tmp_path: Path) -> None:
    with disk_cache(tmp_path, bytes_max=cost(3) + 4095) as cache:
        for number in range(20):
            cache.write(key_of(number, segment=f"segment {number}"))
            assert bytes_on_disk(tmp_path) <= cache.disk.size_bytes <= cost(3)
        assert len(cache.disk) == 3
        assert cache.count("evictions_total", level="disk") == 17


def test_a_block_larger_than_the_budget_evicts_nothing(tmp_path: Path) -> None:
    with disk_cache(tmp_path, bytes_max=cost(2)) as cache:
        cache.write(FIRST)
        large = key_of(2, size_bytes=3 * 4096)
        assert not cache.disk.write(large, data_of(large))
        assert cache.served(FIRST) == [FIRST]
        assert cache.count("disk_skipped_blocks_total") == 1


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


def test_a_backfill_does_not_flush_what_consumers_share(tmp_path: Path) -> None:
    shared = [key_of(number, segment="shared") for number in range(8)]
    with disk_cache(tmp_path, bytes_max=cost(16)) as cache:
        for key in shared:
            assert cache.disk.write(key, data_of(key), "one consumer")
        for reader in ("another", "a third"):
            for key in shared:
                assert cache.served(key, reader=reader) == [key]
        for number in range(200):
            assert cache.disk.write(key_of(number), data_of(key_of(number)), "backfill")
        assert cache.served(*shared) == shared


def test_what_a_scan_leaves_on_disk_is_one_run_also_after_a_restart(tmp_path: Path) -> None:
    keys = [key_of(number) for number in range(150)]
    with disk_cache(tmp_path, bytes_max=cost(80)) as cache:  # so an extent has five blocks
        for key in keys[:100]:
            assert cache.disk.write(key, data_of(key), "backfill")
        assert cache.served(*keys, reader="another") == keys[20:100]
    with disk_cache(tmp_path, bytes_max=cost(80)) as cache:
        for key in keys[100:110]:
            assert cache.disk.write(key, data_of(key), "backfill")
        assert [key for key in keys if cache.disk.holds(key)] == keys[30:110]


def test_foreign_files_are_never_touched(tmp_path: Path) -> None:
    with disk_cache(tmp_path, bytes_max=cost(2)) as cache:
        cache.write(FIRST)
        block = cache.file_of(FIRST)
    foreign = [
        tmp_path / "catalog" / "snapshot",
        tmp_path / "blocks" / "notes",
        block.parent / "notes",
        block.parent.parent / "notes",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100_000))
    with disk_cache(tmp_path, bytes_max=cost(2), identity="another") as cache:
        cache.write(*(key_of(number) for number in range(10)))
        cache.disk.drop_segment(FIRST.segment_id)
        assert len(cache.disk) == 0
    assert [path.stat().st_size for path in foreign] == [100_000] * 4
    assert files_below(tmp_path) == []


def test_blocks_of_another_identity_are_dropped_at_the_start(tmp_path: Path) -> None:
    with disk_cache(tmp_path, identity="one bucket") as cache:
        cache.write(FIRST)
    with disk_cache(tmp_path, identity="another bucket") as cache:
        assert not cache.disk.holds(FIRST)
        assert files_below(tmp_path) == []


KEY, OTHER_KEY = BlockCipher(bytes(range(32))), BlockCipher(bytes(32))


def test_an_encrypted_cache_serves_and_shows_no_plaintext(tmp_path: Path) -> None:
    with disk_cache(tmp_path, cipher=BlockCipher.generate()) as cache:
        cache.write(FIRST)
        assert cache.served(FIRST) == [FIRST]
        assert data_of(FIRST)[:8] not in cache.file_of(FIRST).read_bytes()


def test_a_key_file_makes_an_encrypted_cache_survive(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(32))
    path.chmod(0o400)
    for expected in ([], [FIRST]):
        with disk_cache(tmp_path / "cache", cipher=BlockCipher.from_file(path)) as cache:
            assert cache.served(FIRST) == expected
            cache.write(FIRST)


@pytest.mark.parametrize(
    ("before", "after"), [(KEY, OTHER_KEY), (KEY, None), (None, KEY)], ids=["another key", "off", "on"]
)
def test_what_another_key_has_written_is_dropped(
    before: BlockCipher | None, after: BlockCipher | None, tmp_path: Path
) -> None:
    with disk_cache(tmp_path, cipher=before) as cache:
        cache.write(FIRST)
    with disk_cache(tmp_path, cipher=after) as cache:
        assert not cache.disk.holds(FIRST)
        assert files_below(tmp_path) == []


def test_a_bad_block_is_dropped_when_it_is_read_and_may_be_written_anew(tmp_path: Path) -> None:
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST, SECOND)
        cache.file_of(FIRST).write_bytes(cache.file_of(SECOND).read_bytes())
        assert cache.disk.read(FIRST) is None
        assert not cache.disk.holds(FIRST)
        assert (cache.errors("corrupt"), cache.count("quarantined_blocks_total")) == (1, 1)
        assert cache.disk.size_bytes == cost(1)
        cache.write(FIRST)
        assert cache.served(FIRST, SECOND) == [FIRST, SECOND]


def test_dropped_blocks_and_segments_are_gone_at_once(tmp_path: Path) -> None:
    other = key_of(1, segment="other")
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST, SECOND, THIRD, other)
        cache.disk.drop(FIRST)
        cache.disk.drop(FIRST)
        assert cache.served(FIRST, SECOND, THIRD, other) == [SECOND, THIRD, other]
        cache.disk.drop_segment(SECOND.segment_id)
        assert cache.served(SECOND, THIRD, other) == [other]
        assert len(files_below(tmp_path)) == 1


def test_segments_unknown_to_the_catalog_are_dropped_even_before_the_listing(tmp_path: Path) -> None:
    known = key_of(1, segment="known")
    with disk_cache(tmp_path) as cache:
        cache.write(FIRST, SECOND, known)
    with disk_cache(tmp_path) as cache:
        cache.disk._is_loaded = False
        assert cache.disk.drop_unknown(lambda segments: segments & {known.segment_id}) == 2
        assert cache.served(FIRST, SECOND, known) == [known]
        assert len(files_below(tmp_path)) == 1


def test_blocks_that_nobody_reads_expire(tmp_path: Path) -> None:
    clock = Clock()
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        cache.write(FIRST, SECOND)
        clock.now_s += HOUR_S
        assert cache.disk.expire() == 0
        assert cache.served(FIRST) == [FIRST]
        clock.now_s += 1
        assert not cache.disk.holds(SECOND), "not even before its file is deleted"
        assert cache.disk.expire() == 1
        assert cache.count("expired_total", level="disk") == 1
        assert cache.served(FIRST, SECOND) == [FIRST]
        assert len(files_below(tmp_path)) == 1


def test_last_uses_survive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        cache.write(FIRST, SECOND)
        clock.now_s += HOUR_S / 2
        cache.served(FIRST)
    clock.now_s += HOUR_S / 2 + 1
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        assert cache.served(FIRST, SECOND) == [FIRST]
        assert len(files_below(tmp_path)) == 1
        assert cache.count("expired_total", level="disk") == 1


def test_a_files_time_is_written_at_most_once_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    with disk_cache(tmp_path, clock=clock) as cache:
        cache.write(FIRST)
        for later_s, stamped_s in ((59, 0), (60, 60), (119, 60), (120, 120)):
            clock.now_s = START_S + later_s
            cache.served(FIRST)
            assert cache.file_of(FIRST).stat().st_mtime == START_S + stamped_s


def test_a_file_from_the_future_is_as_old_as_one_of_now(tmp_path: Path) -> None:
    clock = Clock()
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        cache.write(FIRST)
        os.utime(cache.file_of(FIRST), (START_S * 2, START_S * 2))
    with disk_cache(tmp_path, retention_s=HOUR_S, clock=clock) as cache:
        assert cache.served(FIRST) == [FIRST]
        clock.now_s += HOUR_S + 1
        assert cache.disk.expire() == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("open", r"can be written by others \(mode 0777\)"),
        ("file", r"is not a folder$"),
        ("file/below", r": Not a directory$"),
        ("taken", r"is in use by another process"),
    ],
)
def test_a_wrong_path_is_refused_in_one_sentence_that_names_its_key(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    with (
        disk_cache(tmp_path / "taken"),
        pytest.raises(StorageConfigError, match=rf"^cache\.path: .*/{name}.*{sentence}"),
        disk_cache(tmp_path / name),
    ):
        pass


def test_threads_share_it(tmp_path: Path) -> None:
    """No order of events leaves a wrong byte, a file too many, or a charge for one that is gone."""
    keys = [key_of(number, segment=f"segment {number % 3}") for number in range(12)]
    with disk_cache(tmp_path, bytes_max=cost(5)) as cache:
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for step in range(150):
                    key = keys[(step * 7 + seed * 5) % len(keys)]
                    cache.disk.write(key, data_of(key), seed)
                    cache.served(keys[(step * 5 + seed) % len(keys)])
                    if step % 20 == seed:
                        cache.disk.drop_segment(key.segment_id)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert cache.disk.size_bytes == cost(len(files_below(tmp_path))) <= cost(5)
        assert [key for key in keys if cache.disk.holds(key)] == cache.served(*keys)
        assert {cause.value for cause in DiskErrorCause if cache.errors(cause.value)} == set()
