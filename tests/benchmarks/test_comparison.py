"""Ratios and verdicts of benchmarks."""

from benchmarks.support.comparison import latency_row, throughput_row


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    row = throughput_row("bare", [(100.0, 90.0), (1000.0, 500.0), (10.0, 8.0)], floor=0.8, aim=0.95)
    assert row.compared == 0.8
    assert (row.direct, row.through) == ("100 MB/s", "90 MB/s")
    assert row.verdict == "floor holds"


VERDICTS = (("below the floor", False), ("floor holds", True), ("aim reached", True))


def test_a_throughput_must_not_be_below_its_floor_nor_a_latency_above() -> None:
    for through, through_ms, expected in zip((79.0, 80.0, 95.0), (1.6, 1.4, 0.9), VERDICTS, strict=True):
        throughput = throughput_row("bare", [(100.0, through)], floor=0.8, aim=0.95)
        latency = latency_row("Metadata", 1.0, through_ms, floor=0.5, aim=0.2)
        assert (throughput.verdict, throughput.holds) == (latency.verdict, latency.holds) == expected
