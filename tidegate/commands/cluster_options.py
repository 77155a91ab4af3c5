"""What the command line gives to `gc` and `diff`: their arguments, and how those are read. Imports next to
nothing, so that `tidegate --help` answers at once."""

import argparse
import re
from pathlib import Path
from typing import Final

_PARTITIONS_MAX: Final = 1_000_000
_TIMES_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """`90s`, `15m`, `24h`, `7d` in milliseconds; for argparse."""
    matched = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h|d)", text.strip())
    if matched is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 90s, 15m, 24h and 7d are")
    return int(matched[1]) * _TIMES_MS[matched[2]]


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


def partitions(text: str) -> frozenset[int]:
    """`0,2,5-8`; for argparse."""
    found: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        last = int(matched[2] or matched[1]) if matched is not None else -1
        if matched is None or not int(matched[1]) <= last < int(matched[1]) + _PARTITIONS_MAX:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of partitions: 0,2,5-8 is one")
        found.update(range(int(matched[1]), last + 1))
    return frozenset(found)


def host_port(text: str) -> tuple[str, int]:
    """HOST:PORT; for argparse."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def count(text: str) -> int:
    """A whole number above 0; for argparse."""
    if not re.fullmatch(r"\d{1,9}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _add_side_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", type=host_port, help="where serve listens, if not at FILE's proxy.listen"
    )
    parser.add_argument(
        "--command-config",
        metavar="CLIENT.PROPERTIES",
        type=Path,
        help="ask as this client, whose file is one of Kafka's scripts; by default as FILE's upstream.*",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="NAME", help="only this topic")
    parser.add_argument("--partitions", metavar="0,2,5-8", type=partitions, help="only partitions of these numbers")
    parser.add_argument(
        "--samples", metavar="N", type=count, default=20, help="segments that are looked into; 20 by default"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="the same sample again, while the tier stays as it is")
    parser.add_argument(
        "--per-second", metavar="N", type=count, default=10, help="questions to each side in a second; 10 by default"
    )
    _add_side_arguments(parser)
