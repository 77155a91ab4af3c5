"""How many files this process may have open, and whether its connections have enough.

Each client connection is two sockets. A process that runs out accepts nobody, reaches no broker and opens no cache
file, all at once, so the limit is raised as far as it may be, and what is still missing is said at the start.
"""

import resource
from contextlib import suppress
from typing import Final

from tidegate.config.model import Config

FILES_PER_CONNECTION: Final = 2
FILES_BESIDE: Final = 256
"""Own connections to brokers, listeners, cache files in use, modules."""


def raise_limit() -> None:
    """Raise the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS: a hard limit without end is more than the kernel takes
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def files_needed(config: Config, workers: int) -> int:
    """Return how many files one process may come to have open."""
    connections = -(-config.proxy.connections_max // workers)
    return FILES_PER_CONNECTION * connections + 2 * config.tier.concurrent_gets_max + FILES_BESIDE


def shortage(config: Config, workers: int = 1) -> str | None:
    """One sentence if the hard limit is below what is needed; None if it is not."""
    needed, hard = files_needed(config, workers), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return None
    return (
        f"proxy.connections.max {config.proxy.connections_max} may need {needed} open files, and the limit is {hard}: "
        "raise it (systemd: LimitNOFILE=, containers: --ulimit nofile=, shells: ulimit -n), or lower the key"
    )
