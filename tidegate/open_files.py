"""How many files this process may have open, whether its connections have enough, and what is done when none is left.

Each client connection is two sockets. A process that runs out accepts nobody, reaches no broker and opens no cache
file, all at once. So the limit is raised as far as it may be, clients get no more of it than leaves Tidegate what it
needs itself, and a process that has run out all the same says so.
"""

import os
import resource
from contextlib import suppress
from typing import Final

import trio

from metrics.troubles import TroubleId
from proxy.connection.peer_address import NO_ROOM
from proxy.readiness import Readiness
from tidegate.config.model import Config

CONNECTIONS_MAX: Final = 4096
"""Unless the key names another number."""

FILES_PER_CONNECTION: Final = 2
FILES_BESIDE: Final = 256
"""Own connections to brokers, listeners, cache files in use, modules."""

LOOK_S: Final = 1.0
NONE_LEFT_S: Final = 10.0
"""So long after the last look that found too few the trouble is over: at the limit files come and go."""


def raise_limit() -> None:
    """Raise the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS: a hard limit without end is more than the kernel takes
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_max(config: Config, workers: int = 1) -> int:
    """Return how many client connections there may be in all processes: as many as configured, or as open files
    allow. Where fewer than Tidegate needs itself may be open, half of them are the clients'."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = config.proxy.connections_max or CONNECTIONS_MAX
    if hard == resource.RLIM_INFINITY:
        return wanted
    own_files = min(FILES_BESIDE + 2 * config.tier.concurrent_gets_max, hard // 2)
    return min(wanted, workers * max(1, (hard - own_files) // FILES_PER_CONNECTION))


def shortage(config: Config, workers: int = 1) -> str | None:
    """Return one sentence if open files do not allow the configured number of connections."""
    wanted, allowed = config.proxy.connections_max, connections_max(config, workers)
    if wanted is None or wanted == allowed:
        return None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (
        f"proxy.connections.max is {wanted}, and no more than {allowed} are let in, for the limit on open files is "
        f"{hard}: raise it (systemd: LimitNOFILE=, containers: --ulimit nofile=, shells: ulimit -n), or lower the key"
    )


class SpareFiles:
    """Open files that stand for nothing: closing one leaves room for a file that is needed.

    Args:
        count: how many are kept.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self.fill()

    def fill(self) -> None:
        """Open what is missing, as far as the process may."""
        with suppress(OSError):  # none is left: the next call has its chance
            while len(self._held) < self._count:
                self._held.append(_open())

    def spend(self) -> bool:
        """Close one; return whether there was one."""
        if self._held:
            os.close(self._held.pop())
            return True
        return False

    def close(self) -> None:
        """Close all."""
        while self.spend():
            pass


def _open() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def are_enough_left() -> bool:
    """Return whether this process could open what one more client takes."""
    opened: list[int] = []
    try:
        for _ in range(FILES_PER_CONNECTION):
            opened.append(_open())
    except OSError as error:
        return error.errno not in NO_ROOM
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


async def watch_open_files(readiness: Readiness) -> None:
    """Tell readiness while no file is left, until cancelled."""
    over_at_s = 0.0
    while True:
        if not are_enough_left():
            over_at_s = trio.current_time() + NONE_LEFT_S
        lasts = trio.current_time() < over_at_s
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason = f"no open file is left of {limit}: clients, brokers and the store wait for one"
        readiness.tell(TroubleId.NO_OPEN_FILE, [reason] if lasts else [])
        await trio.sleep(LOOK_S)
