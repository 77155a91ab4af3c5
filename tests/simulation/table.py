"""Prints the table of the simulation: `python -m tests.simulation.table [words of names…]`."""

import sys
import time

from tests.simulation.cases import CASES, LINKS
from tests.simulation.world import run_case

HEAD = (
    f"{'case':36} {'link':14} {'pass':>4} {'share':>6} {'s':>7} {'first':>6} {'fetched':>7} {'beyond':>7} "
    f"{'GETs/GB':>7} {'peak':>4} {'real s':>6}"
)


def main(words: list[str]) -> None:
    print(HEAD)
    for case in CASES:
        for link, profile in LINKS.items():
            if not all(word in f"{case.name} {link}" for word in words):
                continue
            began = time.monotonic()
            outcome = run_case(case, profile)
            real_s = time.monotonic() - began
            for number, done in enumerate(outcome.passes, 1):
                print(
                    f"{case.name:36} {link:14} {number:4} {done.share:6.2f} {done.elapsed_s:7.3f} "
                    f"{done.first_answer_s:6.3f} {done.fetched_ratio:7.3f} {done.beyond_bytes / 2**20:7.0f} "
                    f"{done.gets_per_gb:7.0f} {done.gets_open_max:4} {real_s:6.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
