"""The picture of `stats`: what is stacked, and its marks. That it looks well only eyes can tell."""

import datetime
from pathlib import Path

from pipeline.jobs.stats_plot import (
    LAYERS_MAX,
    OTHERS,
    day_ticks,
    largest,
    layers,
    plot_stats,
    round_step,
    scaled_bytes,
    scaled_count,
)
from tests.support.for_each import for_each

FIRST = datetime.date(2026, 1, 1)
SIZES = [{"size_class": 1024, "batches": 3, "records": 9, "bytes": 3000}]


def topic_rows(count: int) -> list[dict[str, object]]:
    return [{"day": FIRST, "topic": f"t{number}", "bytes": number + 1, "records": 1} for number in range(count)]


def test_small_topics_share_a_colour() -> None:
    rows = topic_rows(LAYERS_MAX + 3)
    own = largest(rows, "topic", "bytes")
    found = layers(rows, "topic", "bytes", own)
    assert list(found) == [*(f"t{number}" for number in range(LAYERS_MAX + 2, 3, -1)), OTHERS]
    assert sum(layer[FIRST] for layer in found.values()) == sum(range(1, LAYERS_MAX + 4))
    assert largest(topic_rows(LAYERS_MAX), "topic", "bytes")[-1] == "t0"
    # What has no day is in no bar.
    rows = [{"day": None, "topic": "old", "bytes": 5, "records": 1}]
    assert largest(rows, "topic", "bytes") == []
    assert layers(rows, "topic", "bytes", []) == {}


def test_marks_are_round_in_their_unit_and_days_marked_each_or_at_even_distances() -> None:
    assert round_step(70 * 1024**3, 1024) == 20 * 1024**3
    assert round_step(900, 1024) == 200
    assert round_step(200e6, 1000) == 50e6
    assert (scaled_bytes(20 * 1024**3), scaled_count(50e6), scaled_count(0)) == ("20 GiB", "50M", "0")

    few = [FIRST, FIRST + datetime.timedelta(days=40)]
    many = [FIRST + datetime.timedelta(days=at) for at in range(90)]
    assert day_ticks(few) == few
    assert [(day - FIRST).days for day in day_ticks(many)] == [0, 15, 30, 45, 60, 75]


@for_each("count", [0, 1, 20])
def test_a_picture_is_written_whatever_there_is(tmp_path: Path, count: int) -> None:
    codecs = [{"day": FIRST, "codec": codec, "bytes": 5, "records": 1} for codec in ("zstd", "codec 7")]
    file = tmp_path / f"{count}.png"
    plot_stats(file, topics=topic_rows(count), codecs=codecs if count else [], sizes=SIZES if count else [])
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
