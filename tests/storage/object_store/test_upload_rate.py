"""The rate of uploads, by a clock that stands still unless somebody waits."""

import threading

import pytest

from storage.errors import RemoteStorageError
from storage.object_store.upload_rate import PIECE_BYTES, UploadRate
from tests.support.for_each import for_each

MIB = 1024 * 1024


class Clock:
    """Seconds; a wait moves it. `lag`: each wait lasts that much longer than it should."""

    def __init__(self, lag: float = 0.0) -> None:
        self.now_s = 100.0
        self._lag = lag

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        self.now_s += max(seconds, 0.0) + self._lag
        return False


def paced(clock: Clock, rate: int, sizes: list[int]) -> float:
    """Seconds that pieces of these sizes take."""
    limited = UploadRate(rate, clock=clock, wait=clock.wait)
    started_s = clock.now_s
    sent = [bytes(piece) for piece in limited.paced(bytes(size) for size in sizes)]
    assert sum(map(len, sent)) == sum(sizes)
    assert max(map(len, sent), default=0) <= PIECE_BYTES
    return clock.now_s - started_s


@for_each("rate", [MIB, 25_000_000, 1_000_000_000])
@for_each("sizes", [[MIB] * 50, [4 * MIB] * 10, [1000] * 5000, [7, 3 * MIB, 65_536] * 8])
def test_the_rate_holds_within_five_percent(rate: int, sizes: list[int]) -> None:
    assert paced(Clock(), rate, sizes) == pytest.approx(sum(sizes) / rate, rel=0.05)


def test_waits_that_last_too_long_are_made_up_for() -> None:
    sizes = [MIB] * 100
    assert paced(Clock(lag=0.02), 4 * MIB, sizes) == pytest.approx(25.0, rel=0.05)


def test_no_more_than_a_second_is_saved_up_while_nothing_is_sent() -> None:
    clock = Clock()
    limited = UploadRate(MIB, clock=clock, wait=clock.wait)
    clock.now_s += 3600
    list(limited.paced([bytes(60 * MIB)]))
    assert clock.now_s - 100 - 3600 == pytest.approx(60, rel=0.05)


def test_uploads_at_once_share_the_rate() -> None:
    clock = Clock()
    limited = UploadRate(2 * MIB, clock=clock, wait=clock.wait)
    uploads = [limited.paced([bytes(MIB)] * 10) for _ in range(3)]
    for _ in range(10):
        for upload in uploads:
            next(upload)
    assert clock.now_s - 100 == pytest.approx(15, rel=0.05)


def test_who_waits_is_ended_by_a_close() -> None:
    closed = threading.Event()
    limited = UploadRate(1, clock=lambda: 0.0, wait=closed.wait)
    closed.set()
    with pytest.raises(RemoteStorageError, match="closed"):
        next(limited.paced([bytes(MIB)]))
