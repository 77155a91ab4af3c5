"""What Tidegate itself says and costs: its counters, and the processor time of its process."""

import os
import urllib.request
from dataclasses import dataclass, fields
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from metrics.meters import Direction
from tools.demo.tidegate_process import Tidegate

_TIMEOUT_S = 10.0
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT_FIELD, _USER_TIME_FIELD, _SYSTEM_TIME_FIELD = 1, 11, 12
"""Fields of /proc/PID/stat, counted from the field behind the command's closing bracket (proc(5): 4, 14 and 15)."""
_WITH_CHILDREN = slice(_USER_TIME_FIELD, _USER_TIME_FIELD + 4)
"""Also the time of children that have ended and were waited for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Since Tidegate was started. `cpu_s` is 0 where there is no /proc."""

    relayed_bytes: int
    """From brokers to clients."""
    taken_bytes: int
    """From clients to brokers."""
    served_tier_bytes: int
    fills: int
    """Blocks that came from the object store, a GET each."""
    probes_sent: int
    cpu_s: float

    def __sub__(self, earlier: "Usage") -> "Usage":
        return Usage(*(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)))


def usage(tidegate: Tidegate) -> Usage:
    """As it is now."""
    with urllib.request.urlopen(f"http://{tidegate.admin_address}/metrics", timeout=_TIMEOUT_S) as answer:
        exposition = answer.read().decode()
    to_clients, to_brokers = (
        {"direction": each.value} for each in (Direction.UPSTREAM_TO_CLIENT, Direction.CLIENT_TO_UPSTREAM)
    )
    return Usage(
        relayed_bytes=_sum(exposition, "tidegate_relayed_bytes_total", to_clients),
        taken_bytes=_sum(exposition, "tidegate_relayed_bytes_total", to_brokers),
        served_tier_bytes=_sum(exposition, "tidegate_served_tier_bytes_total", {}),
        fills=_sum(exposition, "tidegate_cache_fills_total", {}),
        probes_sent=_sum(exposition, "tidegate_probes_sent_total", {}),
        cpu_s=cpu_s(tidegate.pid),
    )


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    numbers = _stat(pid)
    return (int(numbers[_USER_TIME_FIELD]) + int(numbers[_SYSTEM_TIME_FIELD])) / _CLOCK_TICKS_PER_S if numbers else 0.0


def tree_cpu_s(pid: int) -> float:
    """User and system time so far of a process and all that it has started; 0 where there is no /proc."""
    stats = {int(each.name): _stat(int(each.name)) for each in Path("/proc").glob("[0-9]*")}
    parents = {child: int(numbers[_PARENT_FIELD]) for child, numbers in stats.items() if numbers}
    tree = {pid}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    ticks = sum(int(number) for each in tree for number in stats.get(each, [])[_WITH_CHILDREN])
    return ticks / _CLOCK_TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """The fields behind the command; none where the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(")")[2].split()


def _sum(exposition: str, name: str, labels: dict[str, str]) -> int:
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
    )
