"""The options that every benchmark takes."""

import argparse
from dataclasses import dataclass

MEGABYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` is one side of one round."""

    rounds: int
    seconds: float
    megabytes: int
    as_json: bool


def parse_options(description: str, *, megabytes: int, arguments: list[str] | None = None) -> Options:
    """From the command line, with `megabytes` as the default amount of data."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (5)")
    parser.add_argument("--seconds", type=float, default=1.5, help="duration of each side of a round (1.5)")
    parser.add_argument("--megabytes", type=int, default=megabytes, help=f"data in the topic ({megabytes})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.megabytes < MEGABYTES_MIN:
        parser.error(f"at least one round, more than 0 s and {MEGABYTES_MIN} MB")
    return Options(chosen.rounds, chosen.seconds, chosen.megabytes, chosen.json)
