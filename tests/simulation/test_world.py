"""What the simulation measures: the bytes that were fetched, of what was asked for and beyond."""

from dataclasses import replace

from tests.simulation.cases import DEFAULTS, LINKS, half_cached, is_even, sequential
from tests.simulation.world import run_case
from tests.support.simulated_store import MIB

PROFILE = LINKS["30ms-60-400"]
CASE = replace(sequential("cold", 1, 24 * MIB), settings=replace(DEFAULTS, readahead_stream_bytes_max=0))
"""Without read-ahead, so that what is fetched is known."""


def test_a_cold_read_fetches_what_it_delivers() -> None:
    (done,) = run_case(CASE, PROFILE).passes
    assert (done.delivered_bytes, done.fetched_bytes, done.beyond_bytes) == (24 * MIB, 24 * MIB, 0)
    assert done.share == done.delivered_bytes / done.elapsed_s / PROFILE.link_bytes_per_s
    assert PROFILE.first_byte_s < done.first_answer_s < done.elapsed_s


def test_what_is_read_ahead_of_the_last_offset_counts_as_beyond() -> None:
    case = replace(CASE, settings=replace(DEFAULTS, readahead_stream_bytes_max=16 * MIB))
    (done,) = run_case(case, PROFILE).passes
    assert done.fetched_bytes == 24 * MIB
    assert 0 < done.beyond_bytes <= 16 * MIB


def test_what_comes_next_is_under_way_before_the_first_answer() -> None:
    outcome = run_case(replace(CASE, settings=DEFAULTS), PROFILE)
    gets = [line for line in outcome.trace if line.startswith("log ")]
    sent_s = sorted(float(line.split(" sent ")[1].split()[0]) for line in gets)
    assert sent_s[4] < outcome.passes[0].first_answer_s - PROFILE.first_byte_s


def test_what_is_cached_is_not_fetched() -> None:
    (done,) = run_case(half_cached(CASE, "the first half", is_below_12), PROFILE).passes
    assert done.fetched_bytes == 12 * MIB


def test_small_gaps_are_read_over() -> None:
    (done,) = run_case(half_cached(CASE, "every other block", is_even), PROFILE).passes
    assert 12 * MIB < done.fetched_bytes <= 24 * MIB


def is_below_12(number: int) -> bool:
    return number < 12


def test_a_second_pass_is_measured_by_itself() -> None:
    first, second = run_case(replace(CASE, passes=2), PROFILE).passes
    assert (first.gets > 0, second.gets, second.fetched_bytes) == (True, 0, 0)
    assert second.delivered_bytes == first.delivered_bytes


def test_a_disk_gives_what_memory_does_not_hold() -> None:
    """Given a memory cache of 2 MiB and a disk, when the data is read again, then nothing is fetched, and it takes as
    long as the disk takes."""
    case = replace(CASE, settings=replace(CASE.settings, memory_bytes_max=2 * MIB), disk_bytes=64 * MIB, passes=2)
    _, second = run_case(case, PROFILE).passes
    assert second.fetched_bytes == 0
    assert second.elapsed_s > 24 * MIB / 2e9
