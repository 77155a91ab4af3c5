"""Who used the processors while something was measured, and how much nobody used (Linux only; elsewhere zeros)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.support.tidegate_usage import cpu_s

OTHERS = "others"
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = (4, 5)
"""In /proc/stat's first line: idle, and waiting for a disk (proc(5))."""


@dataclass(slots=True)
class Spent:
    """`cpu_s`: user and system seconds of each process, and of OTHERS. `idle_share`: of all processors' time."""

    idle_share: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)


@contextmanager
def watch(pids: Mapping[str, int]) -> Iterator[Spent]:
    """Filled when the block ends."""
    spent = Spent()
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    idle_before, all_before = machine_ticks()
    yield spent
    idle, total = (now - then for now, then in zip(machine_ticks(), (idle_before, all_before), strict=True))
    spent.idle_share = idle / max(1, total)
    spent.cpu_s = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
    spent.cpu_s[OTHERS] = max(0.0, (total - idle) / _CLOCK_TICKS_PER_S - sum(spent.cpu_s.values()))


def machine_ticks() -> tuple[int, int]:
    """Those nobody used, and all, since the machine started."""
    try:
        first = Path("/proc/stat").read_text("ascii").partition("\n")[0].split()
    except FileNotFoundError:
        return 0, 0
    # What guests used is in user time already, so the last two fields do not count.
    return sum(int(first[number]) for number in _IDLE_FIELDS), sum(map(int, first[1:9]))
