"""One way of reading, compared between both sides in alternating rounds, with the bytes that Tidegate counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.support.bare_fetch import Transfer
from benchmarks.support.comparison import Report, alternate, throughput_row
from benchmarks.support.options import Options
from benchmarks.support.stage import Address, Stage
from benchmarks.support.tidegate_usage import Usage, usage

WARM_UP_ROUNDS = 2
"""Untimed: the broker's compilers, the page cache, and Tidegate's own first times."""


@dataclass(frozen=True, slots=True)
class Bars:
    """What the ratio is held against."""

    floor: float
    aim: float


def compare(
    stage: Stage,
    options: Options,
    report: Report,
    *,
    name: str,
    read: Callable[[Address], Transfer],
    bars: Bars,
    counted_bytes: Callable[[Usage], int],
) -> Usage:
    """Add a row and a note to the report; what Tidegate did in the timed rounds.

    Args:
        read: one side of one round.
        counted_bytes: which of Tidegate's counters must have seen what the client read.
    """
    read_bytes: dict[Address, int] = {}

    def side(address: Address) -> Callable[[], float]:
        def timed() -> float:
            transfer = read(address)
            read_bytes[address] = read_bytes.get(address, 0) + transfer.read_bytes
            return transfer.megabytes_per_s

        return timed

    direct, through = side(stage.direct), side(stage.through)
    alternate(WARM_UP_ROUNDS, direct, through)
    read_bytes.clear()
    before = usage(stage.tidegate)
    rounds = alternate(options.rounds, direct, through)
    used = usage(stage.tidegate) - before
    report.rows.append(throughput_row(name, rounds, floor=bars.floor, aim=bars.aim))
    _account(report, name, rounds, read_bytes[stage.through], counted_bytes(used), used)
    return used


def _account(
    report: Report, name: str, rounds: Sequence[tuple[float, float]], read: int, counted: int, used: Usage
) -> None:
    ratios = ", ".join(f"{through / direct:.2f}" for direct, through in rounds)
    report.notes.append(
        f"{name}: {read / 1e6:,.0f} MB read by the client, {counted / 1e6:,.0f} MB as Tidegate counted them, "
        f"{used.cpu_s / (counted / 1e9 or 1):.2f} core-seconds of Tidegate per GB; rounds {ratios}"
    )
    if counted < read:
        report.complaints.append(f"{name}: Tidegate has counted fewer bytes than the client has read through it")
