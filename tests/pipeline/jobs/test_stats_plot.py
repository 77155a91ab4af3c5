"""The picture of `stats` is written. That it looks well only eyes can tell."""

import datetime
from pathlib import Path

from pipeline.jobs.stats_plot import plot_stats
from tests.support.for_each import for_each

FIRST = datetime.date(2026, 1, 1)
SIZES = [{"size_class": 1024, "batches": 3, "records": 9, "bytes": 3000}]


def topic_rows(count: int) -> list[dict[str, object]]:
    return [{"day": FIRST, "topic": f"t{number}", "bytes": number + 1, "records": 1} for number in range(count)]


@for_each("count", [0, 1, 20])
def test_a_picture_is_written_whatever_there_is(tmp_path: Path, count: int) -> None:
    codecs = [{"day": FIRST, "codec": codec, "bytes": 5, "records": 1} for codec in ("zstd", "codec 7")]
    file = tmp_path / f"{count}.png"
    plot_stats(file, topics=topic_rows(count), codecs=codecs if count else [], sizes=SIZES if count else [])
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
