"""Rows, bars, options and the layout of data of the cold reads; the script itself needs tools that tests do without."""

import json
from dataclasses import replace

import pytest

from benchmarks.cold_read import cells, checks_of, ratio_aim, runs_of
from benchmarks.support.aiven_stage import LONG_PARTITIONS, ColdTopic, segment_counts
from benchmarks.support.cold_options import SCHEMES, ColdOptions, parse_cold_options
from benchmarks.support.cold_report import Cell, Check, ColdRead, ColdReport, Reading, Side, show
from tests.support.segments import filled_segment, metadata_of, topic_partition

CELL = Cell(scheme="http", batch_kib=16, variant="plain", cache="memory", partitions=2)


def reading(megabytes_per_s: float, core_s: float = 1.5) -> Reading:
    return Reading(
        megabytes_per_s=megabytes_per_s,
        core_s={"Tidegate": core_s, "store": 0.5},
        idle_share=0.25,
        log_gets_per_gb=90.0,
        other_gets_per_gb=15.0,
        stored_bytes_asked=1.0,
        readahead_wasted_mb=0.0,
        hedges=1,
        peak_rss_mib=400.0,
    )


def cold_read(cell: Cell = CELL, *, second: bool = False, log_bytes: int = 400_000_000) -> ColdRead:
    """Three rounds, of ratios 0.9, 0.8 and 0.1."""
    speeds = ((400.0, 360.0), (500.0, 400.0), (1000.0, 100.0))
    rounds = [(Side(direct, {"SDK": 1.0}, 0.5), reading(through)) for direct, through in speeds]
    read = "second" if second else "first"
    return ColdRead(cell=cell, read=read, log_bytes=log_bytes, rounds=rounds, of_first=1.25 if second else None)


def verdicts(cell: Cell, log_bytes: int = 400_000_000) -> dict[str, tuple[float | None, float | None]]:
    """Floor and aim of each check, by the end of its name."""
    checks = checks_of(cold_read(cell, log_bytes=log_bytes), cold_read(cell, second=True))
    return {check.name.rpartition(": ")[2]: (check.floor, check.aim) for check in checks}


# --- rows ---


def test_the_rows_are_all_combinations_of_one_scheme() -> None:
    options = replace(ColdOptions(), batch_kib=(4, 64), variants=("plain", "aes-zstd"), partitions=(1, 2, 8))
    found = cells(options, "https")
    assert len({cell.name for cell in found}) == len(found) == 12
    assert {cell.scheme for cell in found} == {"https"}
    assert found[0].name == "https, 4 KiB, plain, 1p"
    assert replace(CELL, cache="small-disk").name == "http, 16 KiB, plain, small-disk, 2p"


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    read = cold_read()
    assert (read.ratio, read.ratios) == (0.8, [0.9, 0.8, 0.1])
    assert read.direct(lambda side: side.megabytes_per_s) == 500.0
    assert read.through(lambda side: side.megabytes_per_s) == 360.0


AIMS = {
    ("http", 16, 2): 0.8,
    ("https", 64, 2): 0.7,
    ("http", 64, 1): 0.7,
    ("http", 4, 2): 0.6,
    ("http", 1, 2): None,
    ("http", 16, 8): None,
}


def test_a_row_is_held_against_its_share_of_the_sdk() -> None:
    for (scheme, batch_kib, partitions), aim in AIMS.items():
        cell = replace(CELL, scheme=scheme, batch_kib=batch_kib, partitions=partitions)
        assert ratio_aim(cell) == aim, cell
        assert verdicts(cell).get("of the SDK") == (None if aim is None else (None, aim)), cell


def test_no_speed_fails_a_run_and_processor_time_is_held_in_one_row_alone() -> None:
    assert verdicts(CELL) == {
        "of the first": (None, 1.0),
        "of the SDK": (None, 0.8),
        "Tidegate's core-s per GB": (None, 2.0),
        "log GETs per GB": (None, 120.0),
    }
    assert "Tidegate's core-s per GB" not in verdicts(replace(CELL, scheme="https"))
    # Gets have a floor where much is read.
    assert verdicts(CELL, log_bytes=2_000_000_000)["log GETs per GB"] == (120.0, 80.0)


def test_an_upper_bound_must_not_be_passed_and_an_aim_without_a_floor_fails_no_run() -> None:
    gets = Check("GETs per GB", 121.0, "", floor=120.0, aim=80.0, is_upper_bound=True)
    of_the_sdk = Check("of the bare SDK", 0.79, "×", aim=0.8)
    for check, verdict, holds in (
        (gets, "the floor does not hold", False),
        (replace(gets, value=120.0), "floor holds", True),
        (replace(gets, value=80.0), "aim reached", True),
        (of_the_sdk, "short of the aim", True),
        (replace(of_the_sdk, value=0.8), "aim reached", True),
    ):
        assert (check.verdict, check.holds) == (verdict, holds)
        assert ColdReport("cold", checks=[check]).holds == holds
    assert not ColdReport("cold", complaints=["it was not cold"]).holds


def test_the_json_holds_rounds_ratios_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    show(ColdReport("cold", reads=[cold_read()], checks=[Check("of the SDK", 0.8, "×", aim=0.8)]), as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["reads"][0]["ratio"] == 0.8
    assert shown["reads"][0]["cell"]["scheme"] == "http"
    assert [through["megabytes_per_s"] for _, through in shown["reads"][0]["rounds"]] == [360.0, 400.0, 100.0]
    assert shown["checks"][0]["verdict"] == "aim reached"
    assert shown["holds"] is True


def test_the_tables_show_reads_processes_notes_and_complaints(capsys: pytest.CaptureFixture[str]) -> None:
    reads = [cold_read(), cold_read(second=True)]
    show(ColdReport("cold", reads=reads, notes=["a note"], complaints=["a complaint"]), as_json=False)
    shown = capsys.readouterr().out
    said = ("http, 16 KiB, plain, 2p", "0.10–0.90", "1.25", "Tidegate", "25%", "a note", "failed: a complaint")
    assert all(text in shown for text in said)


# --- data ---


def test_every_partition_gets_a_segment_and_the_long_ones_the_rest() -> None:
    assert segment_counts(12 * 64, 64, 8) == [3] * LONG_PARTITIONS + [1] * 6
    assert segment_counts(9 * 64 - 1, 64, 8) == [2] + [1] * 7
    assert segment_counts(1, 64, 8) == [1] * 8
    assert segment_counts(5 * 64, 64, 2) == [3, 2]
    assert segment_counts(5 * 64, 64, 1) == [5]


def test_streams_read_everything_once() -> None:
    segments = {
        number: [metadata_of(topic_partition("cold", number), filled_segment(batch_count=4))] for number in (0, 1)
    }
    topic = ColdTopic("cold", segments, 1000.0, {"plain": {0: [("a", 7)], 1: [("b", 8)]}})
    runs = runs_of(topic, 2, 3)
    assert [(run.partition, run.start, run.end) for run in runs] == [(0, 0, 20), (0, 20, 40), (1, 0, 40)]
    assert topic.stored("plain", 2) == [("a", 7), ("b", 8)]
    assert topic.stored_bytes("plain", 1) == 7


# --- options ---


def test_cold_options_have_defaults_and_are_taken_from_the_command_line() -> None:
    assert parse_cold_options([]) == ColdOptions()
    arguments = ["--quick", "--json", "--scheme", "https", "--batch-kib", "1,64,1", "--variants", "aes-zstd"]
    arguments += ["--partitions", "8", "--caches", "memory,small-disk", "--client", "librdkafka", "--chunk-kib", "64"]
    expected = ColdOptions(
        schemes=("https",),
        batch_kib=(1, 64),
        variants=("aes-zstd",),
        partitions=(8,),
        caches=("memory", "small-disk"),
        client="librdkafka",
        rounds=1,
        chunk_kib=64,
        as_json=True,
    )
    assert parse_cold_options(arguments) == expected
    assert parse_cold_options(["--scheme", "both"]).schemes == SCHEMES
