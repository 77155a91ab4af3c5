"""What the command line gives to `gc`, `diff` and `warm`: their arguments, and how those are read. Imports next to
nothing, so that `tidegate --help` answers at once."""

import argparse
import re
from pathlib import Path
from typing import Final

_TIMES_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES: Final = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def duration_ms(text: str) -> int:
    """`90s`, `15m`, `24h`, `7d` in milliseconds; for argparse."""
    matched = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h|d)", text.strip())
    if matched is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 90s, 15m, 24h and 7d are")
    return int(matched[1]) * _TIMES_MS[matched[2]]


def size_bytes(text: str) -> int:
    """`50MiB` in bytes, above 0; for argparse."""
    matched = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.strip().lower())
    if matched is None or matched[2] not in _SIZES or not int(matched[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: 512KiB, 50MiB and 1GiB are")
    return int(matched[1]) * _SIZES[matched[2]]


def percent(text: str) -> float:
    """A number from 0 to 100, with or without its sign; for argparse."""
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = -1
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 to 100")
    return number


def add_gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", metavar="PLAN.json", type=Path, help="write the plan here; with --yes: carry it out")
    parser.add_argument("--yes", action="store_true", help="delete what is in the plan and still an orphan")
    parser.add_argument(
        "--older-than",
        metavar="TIME",
        type=duration_ms,
        default="24h",
        help="what was changed later is left alone; 24h by default",
    )
    parser.add_argument(
        "--max-orphans",
        metavar="PERCENT",
        type=percent,
        default="5",
        help="refuse when a larger share of the objects are orphans; 5 by default",
    )
    parser.add_argument(
        "--i-own-this-tier", action="store_true", help="mode=replica: delete in a tier that the brokers write"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
