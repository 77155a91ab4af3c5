"""The systemd unit: read by systemd where that is installed, and its command as it is documented.

What systemd hears of start, life and stop: tests/integration/test_life_cycle.py.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from storage.config.sources import Values, gather
from tests.support.needs import ROOT
from tidegate.config.model import SERVE_KEYS

UNIT = ROOT / "deploy" / "systemd" / "tidegate.service"
DROP_IN = UNIT.with_name("credentials.conf")
SECTIONS = {
    "Unit": "After Description StartLimitBurst StartLimitIntervalSec Wants",
    "Service": """
        AmbientCapabilities CacheDirectory CacheDirectoryMode CapabilityBoundingSet ConfigurationDirectory
        DynamicUser Environment EnvironmentFile ExecReload ExecStart KillMode LimitNOFILE LoadCredential
        LockPersonality LogsDirectory LogsDirectoryMode MemoryMax NoNewPrivileges NotifyAccess PrivateDevices
        PrivateTmp ProtectClock
        ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs ProtectKernelModules
        ProtectKernelTunables ProtectProc ProtectSystem RemoveIPC Restart RestartPreventExitStatus RestartSec
        RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID StateDirectory
        SystemCallArchitectures SystemCallErrorNumber SystemCallFilter TimeoutStartSec TimeoutStopSec Type UMask
        WatchdogSec
    """,
    "Install": "WantedBy",
}
"""Directives that systemd.unit(5), systemd.service(5), systemd.exec(5) and systemd.resource-control(5) have there."""


def directives(path: Path = UNIT) -> list[tuple[str, str, str]]:
    """Section, name and value of every line that is neither empty nor a comment."""
    found, section = [], ""
    for line in path.read_text("utf-8").splitlines():
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
    both = [*directives(), *directives(DROP_IN)]
    assert [(section, name) for section, name, _ in both if name not in SECTIONS[section].split()] == []


def test_a_file_that_all_may_read_holds_no_secret() -> None:
    """The user of DynamicUser= owns no file: 0600 would keep the configuration from the service itself."""
    assert value_of("DynamicUser") == "yes"
    modes = set(re.findall(r"install -D -m (0\d+) \S+ (/etc/tidegate/\S+)", UNIT.read_text("utf-8")))
    assert modes == {("0644", "/etc/tidegate/tidegate.properties"), ("0600", "/etc/tidegate/environment")}
    assert value_of("EnvironmentFile") == "-/etc/tidegate/environment"


def test_credentials_are_where_the_properties_look(tmp_path: Path) -> None:
    handed_over = dict(value.split(":") for _, name, value in directives(DROP_IN) if name == "LoadCredential")
    lines = re.findall(r"^#   (\S+=\S+)$", DROP_IN.read_text("utf-8"), re.MULTILINE)
    for name, content in {"server.properties": "", "upstream-password": "secret"}.items():
        assert handed_over.pop(name) == f"/etc/tidegate/{name}"
        (tmp_path / name).write_text(content)
    assert handed_over == {}
    text = "\n".join(lines).replace("/run/credentials/tidegate.service", str(tmp_path))
    path = tmp_path / "tidegate.properties"
    path.write_text(text)
    problems: list[str] = []
    settings = gather(path, {}, SERVE_KEYS, problems)
    assert Values(SERVE_KEYS, settings, problems)["upstream.sasl.password"] == "secret"


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """Where systemd is installed; elsewhere the names above have to do."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    # It looks whether the program is there.
    text = UNIT.read_text("utf-8").replace("/opt/tidegate/bin/tidegate", str(tidegate()))
    (tmp_path / UNIT.name).write_text(text, "utf-8")
    (tmp_path / f"{UNIT.name}.d").mkdir()
    shutil.copy(DROP_IN, tmp_path / f"{UNIT.name}.d")
    done = subprocess.run([program, "verify", tmp_path / UNIT.name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_command_reload_and_stop_are_those_that_tidegate_knows() -> None:
    assert value_of("ExecStart") == "/opt/tidegate/bin/tidegate serve /etc/tidegate/tidegate.properties"
    assert value_of("ExecReload") == "/bin/kill -HUP $MAINPID"
    assert not [name for _, name, _ in directives() if name == "KillSignal"], "SIGTERM is systemd's own default"


def tidegate() -> Path:
    """The command as it is installed beside the Python that runs the tests."""
    return Path(sys.executable).with_name("tidegate")
