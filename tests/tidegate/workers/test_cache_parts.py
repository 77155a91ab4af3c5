"""Parts of the disk cache when the number of workers changes: every block is found again, in one part."""

from pathlib import Path

from tests.support.disk_cache import DiskCache, cost, data_of, disk_cache, files_below, key_of
from tidegate.workers.cache_parts import cache_part, settle

SEGMENTS = [f"segment {number}" for number in range(12)]
BUDGET = cost(100)


def fill(path: Path, workers: int) -> None:
    """A block of each segment, dealt out to the workers' parts in turn."""
    settle(path, workers)
    for worker in range(workers):
        with disk_cache(cache_part(path, worker), bytes_max=BUDGET) as cache:
            for segment in SEGMENTS[worker::workers]:
                write(cache, segment)


def write(cache: DiskCache, segment: str, number: int = 0) -> None:
    key = key_of(number, segment=segment)
    assert cache.disk.write(key, data_of(key))


def found(path: Path, workers: int, number: int = 0) -> list[list[str]]:
    """The segments whose block each worker reads back."""
    held = []
    for worker in range(workers):
        with disk_cache(cache_part(path, worker), bytes_max=BUDGET) as cache:
            keys = {segment: key_of(number, segment=segment) for segment in SEGMENTS}
            held.append([segment for segment, key in keys.items() if cache.served(key)])
    return held


def test_while_the_number_stays_every_block_stays(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    assert settle(tmp_path, 3) == 0
    assert found(tmp_path, 3) == [SEGMENTS[worker::3] for worker in range(3)]


def test_no_block_is_lost_when_there_are_more_or_fewer_workers(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    for workers in (4, 2, 8, 3, 1):
        settle(tmp_path, workers)
        held = found(tmp_path, workers)
        assert sorted(segment for each in held for segment in each) == sorted(SEGMENTS)
        if workers in (2, 3, 4):
            assert all(held)
    assert not [*tmp_path.glob("workers/[0-9]*")]
    assert len(files_below(tmp_path)) == len(SEGMENTS)


def test_blocks_of_one_segment_in_two_parts_come_together(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    for worker, number in ((0, 1), (1, 2)):
        with disk_cache(cache_part(tmp_path, worker), bytes_max=BUDGET) as cache:
            for segment in SEGMENTS:
                write(cache, segment, number)
    settle(tmp_path, 1)
    for number in range(3):
        assert found(tmp_path, 1, number) == [SEGMENTS]


def test_a_part_that_another_process_has_is_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    with disk_cache(cache_part(tmp_path, 1), bytes_max=BUDGET):
        assert settle(tmp_path, 1) == 0
    assert found(tmp_path, 2) == [SEGMENTS[worker::2] for worker in range(2)]
    assert settle(tmp_path, 1) > 0


def test_a_cache_that_never_had_workers_is_not_touched(tmp_path: Path) -> None:
    assert settle(tmp_path / "cache", 1) == 0
    assert not (tmp_path / "cache").exists()
