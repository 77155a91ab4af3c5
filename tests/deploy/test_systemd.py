"""The systemd unit: read by systemd where that is installed, and its command run with a socket of systemd's kind."""

import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.needs import ROOT
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import properties_text

UNIT = ROOT / "deploy" / "systemd" / "tidegate.service"
WAIT_S_MAX = 60.0
SECTIONS = {
    "Unit": "After Description StartLimitBurst StartLimitIntervalSec Wants",
    "Service": """
        AmbientCapabilities CacheDirectory CacheDirectoryMode CapabilityBoundingSet ConfigurationDirectory DynamicUser
        Environment ExecReload ExecStart KillMode LimitNOFILE LockPersonality MemoryMax NoNewPrivileges NotifyAccess
        PrivateDevices PrivateTmp ProtectClock ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs
        ProtectKernelModules ProtectKernelTunables ProtectProc ProtectSystem RemoveIPC Restart RestartPreventExitStatus
        RestartSec RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID StateDirectory
        SystemCallArchitectures SystemCallErrorNumber SystemCallFilter TimeoutStartSec TimeoutStopSec Type UMask
        WatchdogSec
    """,
    "Install": "WantedBy",
}
"""Directives that systemd.unit(5), systemd.service(5), systemd.exec(5) and systemd.resource-control(5) have there."""


def directives() -> list[tuple[str, str, str]]:
    """Section, name and value of every line that is neither empty nor a comment."""
    found, section = [], ""
    for line in UNIT.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, separator, value = line.partition("=")
            assert separator, line
            found.append((section, name, value))
    return found


def value_of(name: str) -> str:
    return next(value for _, found, value in directives() if found == name)


def test_every_directive_is_one_that_systemd_has_in_that_section() -> None:
    unknown = [(section, name) for section, name, _ in directives() if name not in SECTIONS[section].split()]
    assert unknown == []


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """Where systemd is installed; elsewhere the names above have to do."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    # It looks whether the program is there.
    text = UNIT.read_text("utf-8").replace("/opt/tidegate/bin/tidegate", str(tidegate()))
    (tmp_path / UNIT.name).write_text(text, "utf-8")
    done = subprocess.run([program, "verify", tmp_path / UNIT.name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_reload_and_stop_are_the_signals_that_tidegate_knows() -> None:
    assert value_of("ExecReload") == "/bin/kill -HUP $MAINPID"
    assert not [name for _, name, _ in directives() if name == "KillSignal"], "SIGTERM is systemd's own default"


@pytest.mark.needs("linux")
def test_systemd_is_told_of_start_life_and_stop(kafka: KafkaCluster, tmp_path: Path) -> None:
    command = shlex.split(value_of("ExecStart"))
    configuration = tmp_path / "tidegate.properties"
    properties = {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "broker.config": str(kafka.server_properties_path(1)),
        "proxy.listen": "127.0.0.1:0",
        "admin.listen": f"127.0.0.1:{free_port()}",
        "cache.path": str(tmp_path / "cache"),
    }
    configuration.write_text(properties_text(properties), "latin-1")
    assert command == ["/opt/tidegate/bin/tidegate", "serve", "/etc/tidegate/tidegate.properties"]
    here = [str(tidegate()), *command[1:-1], str(configuration)]
    with notify_socket(tmp_path / "notify") as notify:
        # systemd gives the interval in microseconds; the sign of life comes at half of it.
        environ = {"PATH": "/usr/bin:/bin", "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        process = subprocess.Popen(here, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with process:
            try:
                receive_until(notify, "READY=1")
                receive_until(notify, "WATCHDOG=1")
                process.send_signal(signal.SIGTERM)
                receive_until(notify, "STOPPING=1")
                _, said = process.communicate(timeout=WAIT_S_MAX)
            finally:
                process.kill()
        assert process.returncode == 0, said.decode()


def tidegate() -> Path:
    """The command as it is installed beside the Python that runs the tests."""
    return Path(sys.executable).with_name("tidegate")


@contextmanager
def notify_socket(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
        bound.settimeout(WAIT_S_MAX)
        yield bound


def receive_until(notify: socket.socket, message: str) -> None:
    """Take datagrams until one has this line.

    Raises:
        TimeoutError: nothing came for WAIT_S_MAX.
    """
    while message not in notify.recv(4096).decode().splitlines():
        pass
