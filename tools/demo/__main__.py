"""`python -m tools.demo [--keep] [--records N]`; `make demo` runs it.

Exit codes are the command line's (`tidegate.exit_codes`).
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from tidegate import exit_codes
from tools.demo.run import DemoOptions, main

RECORDS_DEFAULT: Final = 300_000
RECORDS_MAX: Final = 100_000_000


def options(arguments: Sequence[str] | None = None) -> DemoOptions:
    """Return what the command line asks for; argparse exits with 2 on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="tidegate-demo",
        description="Start a Kafka broker with tiered storage, read a topic with and without Tidegate, and compare.",
    )
    parser.add_argument("--keep", action="store_true", help="leave everything running and say how to use it")
    parser.add_argument(
        "--records",
        type=_record_count,
        default=RECORDS_DEFAULT,
        metavar="N",
        help=f"records to produce (default {RECORDS_DEFAULT})",
    )
    chosen = parser.parse_args(arguments)
    return DemoOptions(keep=chosen.keep, records=chosen.records)


def _record_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= RECORDS_MAX:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {RECORDS_MAX}")
    return int(text)


if __name__ == "__main__":
    try:
        sys.exit(main(options()))
    except KeyboardInterrupt:
        print("tidegate: interrupted", file=sys.stderr)
        sys.exit(exit_codes.FOUND_WRONG)
