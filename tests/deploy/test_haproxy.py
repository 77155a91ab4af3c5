"""deploy/haproxy/haproxy.cfg: HAProxy takes it as it is, and it is what its own comment asks of Tidegate.

How clients fare behind it: tests/integration/test_failover.py.
"""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proxy.config.load import load
from tests.support.haproxy import (
    BALANCER,
    BOOTSTRAP_PORT,
    BROKER_PORTS,
    CONFIG,
    MACHINES,
    REPLICAS,
    SOCKET,
    Ports,
    config_for,
    haproxy,
)
from tests.support.needs import ROOT

LOCAL = ROOT / "deploy" / "examples" / "local.properties"
QUICK = {"inter 1s": "inter 100ms", "timeout check 2s": "timeout check 200ms"}
PATIENCE_S = 10.0


class Stand:
    """Stands for a replica: says its name to whoever connects, and of `/readyz` what it is told to say."""

    def __init__(self, name: str, ports: Ports) -> None:
        self.name = name
        self.status: HTTPStatus | None = HTTPStatus.OK
        """None: no answer."""
        self.ends = threading.Event()
        self._ports = ports

    @contextmanager
    def standing(self) -> Iterator[None]:
        stand, address = self, REPLICAS[self.name]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if stand.status is None:
                    stand.ends.wait(PATIENCE_S)
                    return
                self.send_response(stand.status)
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                """Nothing on stderr."""

        with (
            ThreadingHTTPServer((address, self._ports.admin), Handler) as admin,
            socket.create_server((address, self._ports.brokers[1])) as listener,
            ExitStack() as clients,
        ):

            def accept() -> None:
                while not self.ends.is_set():
                    client = clients.enter_context(closing(listener.accept()[0]))
                    client.sendall(self.name.encode())

            threads = [threading.Thread(target=admin.serve_forever), threading.Thread(target=accept)]
            for thread in threads:
                thread.start()
            yield
            self.ends.set()
            admin.shutdown()
            socket.create_connection((address, self._ports.brokers[1])).close()  # the last that is accepted
            for thread in threads:
                thread.join()


def connected(ports: Ports) -> tuple[socket.socket, str]:
    """A connection by way of the balancer, and the replica that it leads to."""
    client = socket.create_connection((BALANCER, ports.brokers[1]), PATIENCE_S)
    return client, client.recv(1).decode()


@pytest.mark.needs("haproxy", "linux")
def test_a_replica_that_drains_keeps_its_connections_and_one_that_hangs_does_not() -> None:
    ports = Ports.free()
    stands = {name: Stand(name, ports) for name in REPLICAS}
    with ExitStack() as stack:
        for stand in stands.values():
            stack.enter_context(stand.standing())
        balancer = stack.enter_context(haproxy(ports, QUICK))
        balancer.wait_state("a", "UP")
        first, home = connected(ports)
        stack.enter_context(first)
        assert home == "a"

        stands["a"].status = HTTPStatus.SERVICE_UNAVAILABLE
        balancer.wait_state("a", "NOLB")
        second, stand_in = connected(ports)
        stack.enter_context(second)
        assert stand_in == "b"
        assert balancer.used()["broker-1", "a"].connections == 1

        stands["a"].status = None
        balancer.wait_state("a", "DOWN")
        assert first.recv(1) == b""
        assert balancer.used()["broker-1", "b"].connections == 1

        stands["a"].status = HTTPStatus.OK
        balancer.wait_state("a", "UP")
        third, home_again = connected(ports)
        stack.enter_context(third)
        assert home_again == "a"


def sections() -> dict[str, str]:
    """The text of each section by its first line."""
    parts = re.split(r"(?m)^(?=[a-z])", CONFIG.read_text("utf-8"))
    return {part.partition("\n")[0]: part for part in parts[1:]}


@pytest.mark.needs("haproxy")
def test_haproxy_takes_the_file_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / CONFIG.name
    path.write_text(config_for(Ports.free(), tmp_path / "socket"), "utf-8")
    for each in (CONFIG, path):
        done = subprocess.run(["haproxy", "-c", "-f", each], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "Configuration file is valid\n")
    assert SOCKET not in path.read_text("utf-8")


def test_the_properties_in_its_comment_give_the_ports_that_it_forwards(tmp_path: Path) -> None:
    keys = re.findall(r"(?m)^#   ([a-z.]+=\S+)", CONFIG.read_text("utf-8"))
    path = tmp_path / "tidegate.properties"
    path.write_text("\n".join([LOCAL.read_text("utf-8"), *keys]), "utf-8")
    proxy = load(path, {}).proxy
    assert proxy.listen.port == BOOTSTRAP_PORT
    assert {broker: proxy.broker_port_start + broker - proxy.broker_id_min for broker in BROKER_PORTS} == BROKER_PORTS
    assert proxy.drain_delay_ms > 1000  # `inter`
    names = {"bootstrap": BOOTSTRAP_PORT, **{f"broker-{each}": at for each, at in BROKER_PORTS.items()}}
    for name, port in names.items():
        section = sections()[f"listen {name}"]
        assert f"bind :{port}\n" in section
        assert {address for address in MACHINES.values() if f"{address}:{port}" in section} == set(MACHINES.values())


def test_brokers_are_shared_out_and_each_replica_stands_in_for_the_other() -> None:
    homes = {}
    for broker in BROKER_PORTS:
        servers = re.findall(r"(?m)^    server (\w) \S+( backup)?$", sections()[f"listen broker-{broker}"])
        assert sorted(name for name, _ in servers) == sorted(MACHINES)
        (homes[broker],) = [name for name, backup in servers if not backup]
    assert homes == {1: "a", 2: "b", 3: "a"}
