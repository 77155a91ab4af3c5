"""Prints the table of the simulation.

python -m tests.simulation.table                         every case over every link of its own
python -m tests.simulation.table "cold 2" 30ms           those whose name and link hold these words
python -m tests.simulation.table --seeds 8 "cold 2"      by as many seeds
python -m tests.simulation.table --baseline              what tests/simulation/baseline.py holds

`share`: of what the link, or a slow consumer, allows, in the mean over the seeds; above 1 where a cache helps. `±`: the
standard error of that mean, so what differs by less than twice as much is the same. `worst`: of the seeds. `first`: s
to the first answer. `fetched`: bytes fetched of what was asked for over bytes delivered; `beyond`: MiB fetched of what
nobody asked for. `peak`: the most GETs in flight at once. `cpu s`: real processor seconds of the simulation, which say
nothing else.
"""

import argparse
import logging
import math
import time
from collections.abc import Iterator, Sequence
from statistics import mean, stdev

import structlog

from tests.simulation.aims import Runs, missed_aims
from tests.simulation.cases import CASES, LINKS, SEEDS, Case, case_named
from tests.simulation.world import Pass, run_case

_HEAD = (
    f"{'case':46} {'link':12} {'pass':>4} {'share':>5} {'±':>5} {'worst':>5} {'aim':>4} {'s':>6} {'first':>5} "
    f"{'fetched':>7} {'beyond':>6} {'GETs/GB':>7} {'peak':>4} {'cpu s':>5}  misses"
)


class Table:
    """Runs cases and keeps what they reached."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self._runs: dict[tuple[str, str], Runs] = {}

    def runs(self, case: Case, link: str) -> Runs:
        """Return what the case reaches; run once."""
        key = (case.name, link)
        if key not in self._runs:
            self._runs[key] = [run_case(case, LINKS[link], seed).passes for seed in self._seeds]
        return self._runs[key]

    def lines(self, case: Case, link: str) -> Iterator[str]:
        """A line for each pass."""
        began_s = time.process_time()
        runs = self.runs(case, link)
        cpu_s = time.process_time() - began_s
        aim = "" if case.aim is None else f"{case.aim:.2f}"
        missed = "; ".join(self.missed(case, link))
        for number, seeds in enumerate(zip(*runs, strict=True), 1):
            yield (
                f"{case.name:46} {link:12} {number:4} {_shares(seeds)} {aim:>4} {_mean(seeds, 'elapsed_s'):6.3f} "
                f"{_mean(seeds, 'first_answer_s'):5.3f} {_mean(seeds, 'fetched_ratio'):7.3f} "
                f"{_mean(seeds, 'beyond_bytes') / 2**20:6.0f} {_mean(seeds, 'gets_per_gb'):7.0f} "
                f"{max(done.gets_open_max for done in seeds):4} {cpu_s:5.1f}  {missed if number == 1 else ''}".rstrip()
            )

    def missed(self, case: Case, link: str) -> list[str]:
        """The aims that the case misses."""
        cold_share = None if case.not_below is None else _mean(self._first(case_named(case.not_below), link), "share")
        return missed_aims(case, self.runs(case, link), cold_share)

    def _first(self, case: Case, link: str) -> Sequence[Pass]:
        return [passes[0] for passes in self.runs(case, link)]


def _mean(seeds: Sequence[Pass], field: str) -> float:
    return float(mean(getattr(done, field) for done in seeds))


def _shares(seeds: Sequence[Pass]) -> str:
    shares = [done.share for done in seeds]
    error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    return f"{mean(shares):5.2f} {error:5.3f} {min(shares):5.2f}"


def baseline_lines(table: Table) -> Iterator[str]:
    """The two tables of tests/simulation/baseline.py. Shares are rounded down."""
    yield "BASELINE: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] = {"
    for case in CASES:
        yield f'    "{case.name}": {{'
        for link in case.links:
            of_passes = [[done.share for done in seeds] for seeds in zip(*table.runs(case, link), strict=True)]
            floors = tuple((_down(mean(shares)), _down(min(shares))) for shares in of_passes)
            yield f'        "{link}": {floors},'
        yield "    },"
    yield "}"
    yield "MISSED: Collection[tuple[str, str]] = {"
    for case in CASES:
        for link in case.links:
            if table.missed(case, link):
                yield f'    ("{case.name}", "{link}"),'
    yield "}"


def _down(share: float) -> float:
    return math.floor(100 * share) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description="What cold and cached reads reach, in virtual time.")
    parser.add_argument("words", nargs="*", help="only rows whose case and link hold all of these")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--baseline", action="store_true", help="print what tests/simulation/baseline.py holds")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    table = Table(range(asked.seeds))
    if asked.baseline:
        for line in baseline_lines(table):
            print(line, flush=True)
        return
    print(_HEAD)
    for case in CASES:
        for link in case.links:
            if all(word in f"{case.name} {link}" for word in asked.words):
                for line in table.lines(case, link):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
