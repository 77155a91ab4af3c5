"""Prints the table of the simulation.

python -m tests.simulation.table                         every case over every link
python -m tests.simulation.table "cold 2" 30ms           those whose name and link hold these words
python -m tests.simulation.table --baseline              what tests/simulation/baseline.py holds

`share`: of what the link, or a slow consumer, allows; above 1 where a cache helps. `first`: s to the first answer.
`fetched`: bytes fetched of what was asked for over bytes delivered; `beyond`: MiB fetched of what nobody asked for.
`peak`: the most GETs in flight at once. `cpu s`: real processor seconds of the simulation, which say nothing else.
"""

import argparse
import logging
import math
import time
from collections.abc import Iterator, Sequence

import structlog

from tests.simulation.aims import missed_aims
from tests.simulation.cases import CASES, LINKS, Case, case_named
from tests.simulation.world import Pass, run_case

_HEAD = (
    f"{'case':46} {'link':12} {'pass':>4} {'share':>5} {'aim':>4} {'s':>6} {'first':>5} {'fetched':>7} {'beyond':>6} "
    f"{'GETs/GB':>7} {'peak':>4} {'cpu s':>5}  misses"
)


class Table:
    """Runs cases and keeps what they reached."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, str], Sequence[Pass]] = {}

    def passes(self, case: Case, link: str) -> Sequence[Pass]:
        """Return what the case reaches; run once."""
        key = (case.name, link)
        if key not in self._shares:
            self._shares[key] = run_case(case, LINKS[link]).passes
        return self._shares[key]

    def lines(self, case: Case, link: str) -> Iterator[str]:
        """A line for each pass."""
        began_s = time.process_time()
        passes = self.passes(case, link)
        cpu_s = time.process_time() - began_s
        aim = "" if case.aim is None else f"{case.aim:.2f}"
        missed = "; ".join(self.missed(case, link))
        for number, done in enumerate(passes, 1):
            yield (
                f"{case.name:46} {link:12} {number:4} {done.share:5.2f} {aim:>4} {done.elapsed_s:6.3f} "
                f"{done.first_answer_s:5.3f} {done.fetched_ratio:7.3f} {done.beyond_bytes / 2**20:6.0f} "
                f"{done.gets_per_gb:7.0f} {done.gets_open_max:4} {cpu_s:5.1f}  {missed if number == 1 else ''}".rstrip()
            )

    def missed(self, case: Case, link: str) -> list[str]:
        """The aims that the case misses."""
        cold_share = None if case.not_below is None else self.passes(case_named(case.not_below), link)[0].share
        return missed_aims(case, self.passes(case, link), cold_share)


def baseline_lines(table: Table) -> Iterator[str]:
    """The two tables of tests/simulation/baseline.py. Shares are rounded down."""
    yield "BASELINE: Mapping[str, Sequence[Sequence[float]]] = {"
    for case in CASES:
        of_links = [tuple(math.floor(100 * done.share) / 100 for done in table.passes(case, link)) for link in LINKS]
        yield f'    "{case.name}": ({", ".join(map(str, of_links))}),'
    yield "}"
    yield "MISSED: Collection[tuple[str, str]] = {"
    for case in CASES:
        for link in LINKS:
            if table.missed(case, link):
                yield f'    ("{case.name}", "{link}"),'
    yield "}"


def main() -> None:
    parser = argparse.ArgumentParser(description="What cold and cached reads reach, in virtual time.")
    parser.add_argument("words", nargs="*", help="only rows whose case and link hold all of these")
    parser.add_argument("--baseline", action="store_true", help="print what tests/simulation/baseline.py holds")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    table = Table()
    if asked.baseline:
        for line in baseline_lines(table):
            print(line, flush=True)
        return
    print(_HEAD)
    for case in CASES:
        for link in LINKS:
            if all(word in f"{case.name} {link}" for word in asked.words):
                for line in table.lines(case, link):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
