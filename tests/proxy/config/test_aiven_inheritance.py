"""The plugin's own cache sizes are ours unless ours are set."""

from pathlib import Path

from storage.config.sizes import GIB, MIB
from tests.support.config_files import load_lines, shown

AIVEN = (
    "upstream.bootstrap.servers=b:1\nremote.log.storage.manager.class.name=io.aiven.kafka.tieredstorage."
    "RemoteStorageManager\n"
)
CHUNK_CACHE = "rsm.config.fetch.chunk.cache."
DISK = f"{CHUNK_CACHE}class=io.aiven.kafka.tieredstorage.fetch.cache.DiskChunkCache\n{CHUNK_CACHE}path=/plugin\n"
MEMORY = f"{CHUNK_CACHE}class=io.aiven.kafka.tieredstorage.fetch.cache.MemoryChunkCache\n"


def test_a_disk_cache_gives_size_retention_and_read_ahead(tmp_path: Path) -> None:
    lines = f"{AIVEN}{DISK}{CHUNK_CACHE}size=1073741824\n{CHUNK_CACHE}retention.ms=600000\n"
    config = load_lines(tmp_path, f"{lines}{CHUNK_CACHE}prefetch.max.size=33554432\n", minimal=False)
    assert (config.cache.disk_bytes, config.cache.retention_ms) == (GIB, 600_000)
    assert config.readahead.stream_bytes_max == 32 * MIB
    assert config.cache.path is None
    assert shown(config, "cache.disk.bytes") == (
        "1073741824",
        "tidegate.properties:5 rsm.config.fetch.chunk.cache.size",
    )


def test_ours_come_first(tmp_path: Path) -> None:
    lines = f"{AIVEN}{DISK}{CHUNK_CACHE}size=1073741824\ncache.disk.bytes=2 GiB\n"
    assert load_lines(tmp_path, lines, minimal=False).cache.disk_bytes == 2 * GIB


def test_a_memory_cache_is_taken_up_to_our_own_budget(tmp_path: Path) -> None:
    small = load_lines(tmp_path, f"{AIVEN}{MEMORY}{CHUNK_CACHE}size=67108864\n", minimal=False)
    large = load_lines(tmp_path, f"{AIVEN}{MEMORY}{CHUNK_CACHE}size=99999999999\n", minimal=False)
    assert (small.cache.memory_bytes, large.cache.memory_bytes) == (64 * MIB, 256 * MIB)


def test_unlimited_and_none_are_not_taken(tmp_path: Path) -> None:
    lines = f"{AIVEN}{DISK}{CHUNK_CACHE}size=-1\n{CHUNK_CACHE}retention.ms=-1\n{CHUNK_CACHE}prefetch.max.size=0\n"
    config = load_lines(tmp_path, lines, minimal=False)
    assert (config.cache.disk_bytes, config.readahead.stream_bytes_max) == (16 * GIB, 128 * MIB)


def test_other_plugins_keys_mean_nothing_to_us(tmp_path: Path) -> None:
    assert load_lines(tmp_path, f"{DISK}{CHUNK_CACHE}size=1073741824\n").cache.disk_bytes == 16 * GIB
