from tests.storage.metadata.catalog_sizes import (
    a_segment_takes_at_most_400_bytes,
    segments_that_are_long_gone_leave_nothing_behind,
)


def test_a_segment_takes_at_most_400_bytes() -> None:
    a_segment_takes_at_most_400_bytes(10_000)


def test_segments_that_are_long_gone_leave_nothing_behind() -> None:
    segments_that_are_long_gone_leave_nothing_behind(4_000)
