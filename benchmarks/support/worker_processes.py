"""A Tidegate with some number of workers, its processes, and whose connection is whose (Linux only).

Which worker has a client's connection is read from /proc: the socket whose peer is the client's port, and the process
that has this socket open. So bytes are counted by clients and not by those who are measured.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from benchmarks.support.stage import Address
from tests.support.raw_client import address_of
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.tidegate_process import PROGRAM, Tidegate

SUPERVISOR: Final = "supervisor"
_TIMEOUT_S: Final = 10.0
_LINK: Final = "socket:["


@dataclass(frozen=True, slots=True)
class Served:
    """It runs and is ready. `workers` are its processes that serve clients, by number."""

    tidegate: Tidegate
    address: Address
    workers: Mapping[int, int]

    @property
    def pids(self) -> dict[str, int]:
        """By `worker_name`, and SUPERVISOR where there is one."""
        named = {worker_name(number): pid for number, pid in self.workers.items()}
        return named if self.tidegate.pid in self.workers.values() else {SUPERVISOR: self.tidegate.pid, **named}


def worker_name(number: int) -> str:
    """As the tables and `watch` have it."""
    return f"worker {number}"


@contextmanager
def served_by(
    cluster: KafkaCluster, workers: int, checkout: Path | None = None, properties: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Start one before a cluster.

    Args:
        checkout: the folder of another version of Tidegate, which knows nothing of workers; None: this one.
    """
    counted = {} if checkout else {"proxy.workers": str(workers)}
    tidegate = Tidegate(
        work=Path(mkdtemp(prefix="tidegate-", dir=cluster.work)),
        server_properties=cluster.server_properties_path(1),
        bootstrap_servers=cluster.bootstrap_servers,
        properties={**counted, **(properties or {})},
        program=program_of(checkout),
    )
    tidegate.start()
    try:
        address = address_of(tidegate.wait_ready())
        yield Served(tidegate, address, _workers(tidegate))
    finally:
        tidegate.stop()


def program_of(checkout: Path | None) -> tuple[str, ...]:
    """Return the command of another version's Tidegate; None: this one's."""
    if checkout is None:
        return PROGRAM
    # With -m, the folder where a command is started comes before whatever is installed.
    package = "tidegate" if (checkout / "tidegate").is_dir() else "proxy"
    return ("env", "-C", str(checkout.resolve()), sys.executable, "-m", package)


def _workers(tidegate: Tidegate) -> dict[int, int]:
    with urllib.request.urlopen(f"http://{tidegate.admin_address}/readyz", timeout=_TIMEOUT_S) as answer:
        told = json.loads(answer.read())
    return {each["worker"]: each["pid"] for each in told.get("workers", ())} or {0: tidegate.pid}


def owners_of_ports(workers: Mapping[int, int]) -> dict[int, int]:
    """Return by port at its other end the worker of each connection that a worker has now."""
    ports = {}
    for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
        _, _, peer, _, _, _, _, _, _, inode, *_ = line.split()
        ports[inode] = int(peer.partition(":")[2], 16)
    found = {}
    for worker, pid in workers.items():
        for link in _links(Path(f"/proc/{pid}/fd")):
            if link.startswith(_LINK) and (inode := link.removeprefix(_LINK).rstrip("]")) in ports:
                found[ports[inode]] = worker
    return found


def _links(folder: Path) -> Iterator[str]:
    for entry in folder.iterdir():
        try:
            yield os.readlink(entry)
        except FileNotFoundError:  # closed between our two looks
            continue
