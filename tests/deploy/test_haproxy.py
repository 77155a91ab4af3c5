"""deploy/haproxy/haproxy.cfg: HAProxy takes it as it is, and it is what its own comment asks of Tidegate.

How clients fare behind it: tests/integration/test_failover.py.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.haproxy import BOOTSTRAP_PORT, BROKER_PORTS, CONFIG, MACHINES, SOCKET, Ports, config_for
from tests.support.needs import ROOT
from tidegate.config.load import load

LOCAL = ROOT / "deploy" / "examples" / "local.properties"


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
