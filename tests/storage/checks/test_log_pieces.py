"""Reading a log once, from start to end, in pieces."""

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from storage.checks.log_pieces import PIECE_BYTES, RANGE_BYTES, LogPieces, UnreadablePieceError
from storage.errors import CorruptObjectError, RetriableRemoteStorageError
from storage.model import IndexType
from storage.remote_storage_manager import SegmentStream
from tests.support.opened_bytes import OpenedBytes
from tests.support.segments import filled_segment, metadata_of, topic_partition

SEGMENT = filled_segment(0, batch_count=30)
METADATA = metadata_of(topic_partition(), SEGMENT)
SIZE = len(SEGMENT.log)


def no_index(index_type: IndexType) -> bytes:
    raise NotImplementedError(index_type)


def opened(chunk_bytes: int, log: Callable[[], bytes] = lambda: SEGMENT.log) -> OpenedBytes:
    return OpenedBytes(METADATA, log, no_index, chunk_bytes=chunk_bytes)


def no_wait(seconds: float) -> None:
    """Nothing."""


@pytest.mark.parametrize("chunk_bytes", [1, 1000, SIZE, 10 * SIZE])
def test_the_pieces_one_after_the_other_are_the_log(chunk_bytes: int) -> None:
    read = b""
    with closing(LogPieces(opened(chunk_bytes), SIZE)) as pieces:
        while len(read) < SIZE:
            read += pieces.at(len(read))
    assert read == SEGMENT.log


def test_bytes_are_found_from_any_position_on() -> None:
    with closing(LogPieces(opened(1000), SIZE)) as pieces:
        for position in (0, 1, 999, 1000, 5500, 5501, 5500, 3000, SIZE - 1):
            piece = pieces.at(position)
            assert len(piece) == min(1000 - position % 1000, SIZE - position)
            assert piece == SEGMENT.log[position : position + len(piece)]


def test_a_piece_that_cannot_be_read_says_what_follows_it() -> None:
    class Corrupt(OpenedBytes):
        def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
            if start_position == 2000:
                raise CorruptObjectError("chunk 2")
            return super().open_stream(start_position, end_position)

    class OneRange(LogPieces):
        """Opens each piece by itself."""

        def __init__(self) -> None:
            super().__init__(Corrupt(METADATA, lambda: SEGMENT.log, no_index, chunk_bytes=1000), SIZE)
            self._range_bytes = 1000

    with closing(OneRange()) as pieces:
        with pytest.raises(UnreadablePieceError, match="chunk 2") as caught:
            pieces.at(2345)
        assert (caught.value.position, caught.value.resume_position) == (2000, 3000)
        assert pieces.at(3000)[:10] == SEGMENT.log[3000:3010]


def test_a_log_that_ends_early_cannot_be_read_there() -> None:
    with closing(LogPieces(opened(1000, lambda: SEGMENT.log[:2500]), SIZE)) as pieces:
        assert len(pieces.at(1000)) == 1000
        with pytest.raises(UnreadablePieceError, match="truncated"):
            pieces.at(2000)


def test_trouble_that_passes_is_asked_again_from_the_same_place() -> None:
    trouble = [RetriableRemoteStorageError("503")] * 2

    def log() -> bytes:
        if trouble:
            raise trouble.pop()
        return SEGMENT.log

    with closing(LogPieces(opened(1000, log), SIZE, no_wait)) as pieces:
        assert pieces.at(4000) == SEGMENT.log[4000:5000]


def test_a_large_log_is_never_in_memory_as_a_whole() -> None:
    size = 6 * RANGE_BYTES
    large = replace(METADATA, segment_size_bytes=size)

    class Zeros:
        """A SegmentStream of nothing but zeros."""

        def read(self, size_bytes: int) -> bytearray:
            return bytearray(size_bytes)

        def close(self) -> None:
            """Nothing."""

    class Endless(OpenedBytes):
        def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
            assert end_position - start_position <= RANGE_BYTES
            return Zeros()

    position = 0
    tracemalloc.start()
    try:
        with closing(LogPieces(Endless(large, lambda: b"", no_index), size)) as pieces:
            while position < size:
                position += len(pieces.at(position))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * PIECE_BYTES
