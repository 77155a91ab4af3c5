"""How much memory this process may have at most: the machine's, or what its control groups leave of that.

A process that comes to need more is killed with no line in its own log, so it is asked before.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage.config.value_kinds import MIB
from storage.sizes import shown_size
from tidegate.config.model import Config

BESIDE_BYTES: Final = 150 * MIB
"""Resident memory of a process beside its part of `memory.max.bytes`, at most (docs/operate/size.md)."""

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def memory_bytes(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """The least of the machine's memory and of the limits of each control group that we are in."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine_bytes, *_limits(groups, own_groups)])


def _limits(groups: Path, own_groups: Path) -> Iterator[int]:
    for folder in _folders(groups, own_groups):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2, and of version 1
            with suppress(OSError, ValueError):  # no such file, or `max`
                yield int((folder / name).read_text("ascii"))


def _folders(groups: Path, own_groups: Path) -> Iterator[Path]:
    """Every group that we are in, as a container sees it (at the root) and as a machine does."""
    yield from (groups, groups / "memory")
    with suppress(OSError):
        for line in own_groups.read_text("ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            root = groups / "memory" if "memory" in controllers else groups
            own = root / path.lstrip("/")
            yield from (each for each in (own, *own.parents) if each.is_relative_to(root))


def memory_shortage(config: Config, workers: int, limit_bytes: int) -> tuple[str, bool] | None:
    """A sentence if memory may run out, and whether it will; None if it may not."""
    processes = workers + (workers > 1)
    needed_bytes = config.memory_bytes_max + processes * BESIDE_BYTES
    if needed_bytes <= limit_bytes:
        return None
    allowed, beside = shown_size(config.memory_bytes_max), shown_size(BESIDE_BYTES)
    sentence = (
        f"memory.max.bytes {allowed} and {beside} for each of {processes} processes are {shown_size(needed_bytes)}, "
        f"and this machine or its control group allows {shown_size(limit_bytes)}: the kernel would kill it; lower the "
        "key, or raise the limit"
    )
    return sentence, config.memory_bytes_max > limit_bytes
