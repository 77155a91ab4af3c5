"""A stream's triggers as Spark drives them from 4.2 on: it says where the query stands and what a trigger may take."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.data_source import TierStreamReader
from pipeline.stream_limits import register_available_now
from tests.pipeline.test_data_source import World, opened, progress, ranges_of
from tests.support.for_each import for_each


class ReadAllAvailable:
    """As pyspark's of that name."""


@dataclass
class ReadMaxBytes:
    """As pyspark's of that name."""

    max_bytes: int


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return opened(World(tmp_path), monkeypatch)


def batches(stream: TierStreamReader, world: World) -> list[tuple[int, int]]:
    """Trigger until nothing is new, while the tier and the log grow; the first offset and the end of each batch."""
    found, start = [], stream.initialOffset()
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        tasks = ranges_of(stream.partitions(start, end))
        found.append((min(first for _, first, _ in tasks), max(end for *_, end in tasks)))
        world.tier_more()
        world.kafka.log("orders").end_offset += 100
        start = end
    return found


@pytest.fixture
def spark_4_2(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The words that the tests' own pyspark has not."""
    from abc import ABC

    words = ModuleType("pyspark.sql.streaming.datasource")
    words.__spec__ = sys.__spec__
    given = {"ReadAllAvailable": ReadAllAvailable, "ReadMaxBytes": ReadMaxBytes}
    given["SupportsTriggerAvailableNow"] = type("SupportsTriggerAvailableNow", (ABC,), {})
    vars(words).update(given)
    monkeypatch.setitem(sys.modules, words.__name__, words)
    return words


@for_each(
    "options, expected",
    [
        ({"maxBytesPerTrigger": "1000"}, [(0, 100), (100, 200), (200, 300)]),
        ({}, [(0, 300)]),
        ({"maxBytesPerTrigger": "2000", "tail": "kafka"}, [(0, 200), (200, 500)]),
    ],
)
def test_available_now_takes_what_there_was_in_as_many_batches_as_it_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark_4_2: ModuleType,
    options: dict[str, str],
    expected: list[tuple[int, int]],
) -> None:
    """The query ended after its first trigger's bytes and was `done`."""
    world = opened(World(tmp_path), monkeypatch)
    stream = world.stream(**options)
    stream.prepareForTriggerAvailableNow()
    assert batches(stream, world) == expected


def test_spark_takes_the_reader_for_one_that_knows_available_now(spark_4_2: ModuleType, world: World) -> None:
    register_available_now(TierStreamReader)
    assert isinstance(world.stream(), spark_4_2.SupportsTriggerAvailableNow)


def test_what_spark_says_goes_before_the_option_and_before_what_was_planned(world: World) -> None:
    stream = world.stream(maxBytesPerTrigger="1000")
    assert stream.latestOffset(progress(100), ReadAllAvailable()) == progress(300)
    assert stream.latestOffset(progress(100), ReadMaxBytes(2000)) == progress(300)
    assert stream.latestOffset(progress(200), ReadMaxBytes(500)) == progress(250)
    stream.partitions(progress(0), progress(50))
    assert stream.latestOffset(progress(200), ReadMaxBytes(1000)) == progress(300)
