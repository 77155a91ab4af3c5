"""HAProxy for tests: Debian's own program, with deploy/haproxy/haproxy.cfg before two Tidegates.

    with two_replicas(folder, properties, brokers=(1,)) as (balancer, replicas):
        replicas[0].process.kill()

On one machine, three addresses stand for three machines: 127.0.0.1 is the balancer's, the replicas have 127.0.0.2 and
127.0.0.3, and all of them have the same ports. So the file is used as it is, but for addresses and ports.
"""

import csv
import io
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.needs import ROOT
from tests.support.serving import Serving, before_kafka
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_process import JavaProcess

CONFIG: Final = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
BALANCER: Final = "127.0.0.1"
REPLICAS: Final = {"a": "127.0.0.2", "b": "127.0.0.3"}
"""The servers' names in the file, and the addresses that they have in tests."""
MACHINES: Final = {"a": "10.0.0.11", "b": "10.0.0.12"}
"""The addresses that they have in the file."""
BOOTSTRAP_PORT: Final = 19092
BROKER_PORTS: Final = {1: 19093, 2: 19094, 3: 19095}
ADMIN_PORT: Final = 9464
SOCKET: Final = "/run/haproxy/tidegate.sock"
STOP_S_MAX: Final = 10.0
ANSWER_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Free ones for those of the file; the same on all three addresses."""

    bootstrap: int
    brokers: Mapping[int, int]
    admin: int

    @classmethod
    def free(cls) -> "Ports":
        return cls(free_port(), {broker: free_port() for broker in BROKER_PORTS}, free_port())

    @property
    def by_port_of_the_file(self) -> dict[int, int]:
        brokers = {port: self.brokers[broker] for broker, port in BROKER_PORTS.items()}
        return {BOOTSTRAP_PORT: self.bootstrap, ADMIN_PORT: self.admin, **brokers}


@dataclass(frozen=True, slots=True)
class Used:
    """What HAProxy says of one server of one section."""

    status: str
    """`UP`, `DOWN`, or `NOLB` for one that keeps its connections and gets no new ones."""
    connections: int
    total: int
    """Connections since HAProxy was started."""


@dataclass(frozen=True, slots=True)
class Balancer:
    """A running HAProxy."""

    bootstrap: str
    socket_path: Path

    def used(self) -> dict[tuple[str, str], Used]:
        """By section and server."""
        with socket.socket(socket.AF_UNIX) as asking, asking.makefile("rb") as answer:
            asking.settimeout(ANSWER_S_MAX)
            asking.connect(str(self.socket_path))
            asking.sendall(b"show stat\n")
            rows = csv.DictReader(io.StringIO(answer.read().decode().removeprefix("# ")))
            return {
                (row["pxname"], row["svname"]): Used(
                    row["status"].partition(" ")[0], int(row["scur"]), int(row["stot"])
                )
                for row in rows
                if row["svname"] not in ("FRONTEND", "BACKEND")
            }

    def connections(self, replica: str) -> int:
        return sum(used.connections for (_, server), used in self.used().items() if server == replica)

    def states(self, replica: str) -> set[str]:
        return {used.status for (_, server), used in self.used().items() if server == replica}

    def wait_state(self, replica: str, status: str) -> None:
        """Until all sections say so of it."""
        wait_until(lambda: self.states(replica) == {status}, f"HAProxy to say {status} of {replica}")


class Replica:
    """One of the Tidegates: started, ended, and started again with what it had."""

    def __init__(self, name: str, folder: Path, properties: Mapping[str, str]) -> None:
        self.name = name
        self.properties = dict(properties)
        self._folder = folder
        self._runs = 0
        self._cleanup = ExitStack()
        self.served = self._start()

    def start_again(self) -> None:
        self.served = self._start()

    def wait_ready(self) -> None:
        self.served.wait_log("ready: ")

    def close(self) -> None:
        self._cleanup.close()

    def _start(self) -> Serving:
        self._runs += 1
        folder = self._folder / f"{self.name}-{self._runs}"
        folder.mkdir(parents=True)
        served = Serving(folder, self.properties, {}, ("-m", "tidegate"))
        self._cleanup.callback(served.process.wait)
        self._cleanup.callback(served.process.kill)
        return served


@contextmanager
def haproxy(ports: Ports) -> Iterator[Balancer]:
    """The file of deploy/haproxy, running; its replicas need not be there."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-haproxy-"))
    # HAProxy binds the socket under a longer name first, and a socket's path ends at 108 bytes.
    socket_path = folder / "socket"
    config = folder / CONFIG.name
    config.write_text(config_for(ports, socket_path), encoding="utf-8")
    command = [shutil.which("haproxy") or "haproxy", "-db", "-f", str(config)]
    process = JavaProcess("HAProxy", command, folder / "haproxy.log")
    try:
        wait_until(lambda: socket_path.exists() or not process.is_running, "HAProxy's socket")
        assert process.is_running, process.log_tail()
        yield Balancer(f"{BALANCER}:{ports.bootstrap}", socket_path)
    finally:
        process.stop(STOP_S_MAX)
        shutil.rmtree(folder)


def config_for(ports: Ports, socket_path: Path, others: Mapping[str, str] | None = None) -> str:
    """deploy/haproxy/haproxy.cfg with a test's addresses and ports, and what else is to be replaced.

    Raises:
        AssertionError: the file does not have what is to be replaced.
    """
    text = CONFIG.read_text(encoding="utf-8")
    # Fewer connections, for machines with a low limit of open files.
    replaced = {"bind :": f"bind {BALANCER}:", SOCKET: str(socket_path), "maxconn 8192": "maxconn 200"}
    replaced |= {MACHINES[name]: address for name, address in REPLICAS.items()}
    replaced |= {f":{old}\n": f":{new}\n" for old, new in ports.by_port_of_the_file.items() if old != ADMIN_PORT}
    replaced |= {
        f":{old} ": f":{new} " for old, new in ports.by_port_of_the_file.items() if old in BROKER_PORTS.values()
    }
    replaced |= {f"port {ADMIN_PORT} ": f"port {ports.admin} "}
    for old, new in {**replaced, **(others or {})}.items():
        assert old in text, f"{CONFIG.name} has no {old!r}"
        text = text.replace(old, new)
    return text


def replica_properties(kafka: KafkaCluster, ports: Ports, address: str) -> dict[str, str]:
    """Return what the file's own comment asks for. Ports of tests are not in a row, so each broker's is named."""
    return {
        **before_kafka(kafka),
        "proxy.listen": f"{address}:{ports.bootstrap}",
        "proxy.advertised.host": BALANCER,
        "proxy.broker.ports": ", ".join(f"{broker}:{port}" for broker, port in ports.brokers.items()),
        "proxy.protocol": "true",
        "proxy.protocol.trusted": BALANCER,
        "admin.listen": f"{address}:{ports.admin}",
    }


@contextmanager
def two_replicas(
    kafka: KafkaCluster, folder: Path, properties: Mapping[str, str]
) -> Iterator[tuple[Balancer, Sequence[Replica]]]:
    """HAProxy and both replicas, ready and known as such; each has a cache of its own."""
    ports = Ports.free()
    with ExitStack() as stack:
        replicas = []
        for name, address in REPLICAS.items():
            own = {"cache.path": str(folder / f"cache-{name}"), **properties}
            replicas.append(Replica(name, folder, {**replica_properties(kafka, ports, address), **own}))
            stack.callback(replicas[-1].close)
        for replica in replicas:
            replica.wait_ready()
        balancer = stack.enter_context(haproxy(ports))
        for replica in replicas:
            balancer.wait_state(replica.name, "UP")
        yield balancer, replicas
