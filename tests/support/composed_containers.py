"""The services of a compose file as containers, in the order that the file asks for.

docker-compose reads the file and what overrides it; podman runs what it says. All services share one network, so ports
are not published; intervals of health checks are the waiting test's.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.support.compose import KAFKA_CLASSES, QUICK_JAVA, ComposeService
from tests.support.containers import Containers
from tests.support.needs import JARS, ROOT, TOOLS
from tests.support.waiting import wait_until

HEALTHY_S_MAX: Final = 120.0
STAND_INS: Final = ROOT / "tests" / "containers" / "images"

_CLONE_NEWNET: Final = 0x40000000
_OF_ONE: Final = {"mem_limit": "memory", "network_mode": "network", "restart": "restart", "user": "user"}
_OF_MANY: Final = {"cap_drop": "cap-drop", "tmpfs": "tmpfs", "volumes": "volume"}
_OTHER_KEYS: Final = {"environment", "healthcheck", "read_only", "security_opt", "stop_grace_period"}
_NO_OPTIONS: Final = {"build", "command", "depends_on", "expose", "image", "ports"}

Given = TypeVar("Given")


class ComposedContainers:
    """Services of one compose file; a container is named as its service is."""

    def __init__(self, containers: Containers, services: Mapping[str, ComposeService]) -> None:
        self._containers = containers
        self.services: Final = services
        self.started: Final[list[str]] = []
        """In this order."""

    def up(self, *names: str) -> None:
        """Start services and what they depend on, each when its conditions hold, and wait until all are healthy."""
        for name in names:
            if name in self.started:
                continue
            self.up(*self._needed(name))
            definition = self.services[name].definition
            command = (*podman_options(definition), str(definition["image"]), *self.services[name].command)
            self._containers.podman("run", "--detach", "--pull", "never", "--name", name, *command)
            self.started.append(name)
            if definition.get("restart", "no") != "no":
                self._wait_healthy(name)

    def wait_completed(self, name: str) -> str:
        """Wait for a service that ends by itself, and give what it said."""
        code = self._containers.end_of(name)
        said = self._containers.log(name)
        assert code == "0", f"{name} ended with {code}:\n{said[-4000:]}"
        return said

    def down(self) -> dict[str, str]:
        """Stop and remove all, the last one first, and leave the volumes. Return exit codes of those that served."""
        codes = {}
        for name in reversed(self.started):
            self._containers.podman("stop", name)
            codes[name] = self._containers.end_of(name)
            self._containers.podman("rm", name)
        self.started.clear()
        return codes

    def call(self, function: Callable[[], Given]) -> Given:
        """Call it in a thread that is in the services' network; programs that it starts are there too."""
        process = self._containers.podman("inspect", "--format", "{{.State.Pid}}", "loopback").strip()
        with ThreadPoolExecutor(1, initializer=_enter_network, initargs=(process,)) as inside:
            return inside.submit(function).result()

    def _needed(self, name: str) -> Iterator[str]:
        mode = str(self.services[name].definition.get("network_mode", ""))
        if mode.startswith("service:"):
            yield mode.removeprefix("service:")
        for needed, condition in self.services[name].conditions.items():
            self.up(needed)
            if condition == "service_completed_successfully":
                self.wait_completed(needed)

    def _wait_healthy(self, name: str) -> None:
        def is_healthy() -> bool:
            state = self._containers.podman("inspect", "--format", "{{.State.Status}}", name).strip()
            assert state == "running", f"{name} is {state}:\n{self._containers.log(name)[-4000:]}"
            return not self._containers.fails("healthcheck", "run", name)

        wait_until(is_healthy, f"{name} is healthy", timeout_s=HEALTHY_S_MAX)


def build_image(containers: Containers, service: ComposeService) -> str:
    """Make a service's image as the compose file says, and return its name."""
    build, image = service.definition["build"], str(service.definition["image"])
    containers.build(ROOT / build["dockerfile"], image, arguments=build.get("args", {}))
    return image


def podman_options(definition: Mapping[str, Any]) -> list[str]:
    """A service's keys as `podman run` takes them.

    Raises:
        AssertionError: it has a key that nothing is made of here.
    """
    known = {*_OF_ONE, *_OF_MANY, *_OTHER_KEYS, *_NO_OPTIONS}
    assert definition.keys() <= known, definition.keys() - known
    options = [f"--{_OF_ONE[key]}={definition[key]}" for key in _OF_ONE if key in definition]
    options += [f"--{option}={value}" for key, option in _OF_MANY.items() for value in definition.get(key, ())]
    options = [option.replace("--network=service:", "--network=container:") for option in options]
    options += [f"--env={key}={value}" for key, value in definition.get("environment", {}).items()]
    options += [f"--security-opt={value.replace(':', '=')}" for value in definition.get("security_opt", ())]
    if definition.get("read_only"):
        options.append("--read-only")
    if check := definition.get("healthcheck"):
        how, *test = check["test"]
        assert how == "CMD", check
        options.append(f"--health-cmd={' '.join(test)}")
    if period := re.fullmatch(r"(\d+)s", str(definition.get("stop_grace_period", ""))):
        options.append(f"--stop-timeout={period[1]}")
    return options


def _enter_network(process: str) -> None:
    """Move this thread, and nothing else of the process, into the network of that one."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{process}/ns/net").open("rb") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def build_stand_ins(containers: Containers, folder: Path) -> None:
    """Make images under the names of public ones. `folder` takes what has to be put together for them."""
    names = {
        "kafka": "docker.io/apache/kafka:4.3.0",
        "maven": "docker.io/library/maven:3.9.9-eclipse-temurin-17",
        "s3": "docker.io/versity/versitygw:v1.8.0",
        "prometheus": "docker.io/prom/prometheus:v3.5.0",
    }
    prometheus = shutil.which("prometheus")
    assert prometheus is not None
    _write_programs(folder)
    contexts = {
        "java": folder / "java",
        "jars": JARS,
        "made": folder,
        "tools": TOOLS,
        "programs": Path(prometheus).parent,
    }
    for file, image in names.items():
        containers.build(STAND_INS / file, image, contexts=contexts)


def _write_programs(folder: Path) -> None:
    """Java whole, Kafka's scripts, and a `mvn` that copies the jar that it is asked for."""
    said = subprocess.run(
        ("java", "-XshowSettings:properties", "-version"), stderr=subprocess.PIPE, text=True, check=True
    ).stderr
    (home,) = re.findall(r"java\.home = (.*)", said)
    left_out = shutil.ignore_patterns("jmods", "legal", "man", "src.zip", "ct.sym")
    shutil.copytree(home, folder / "java", ignore=left_out, ignore_dangling_symlinks=True)
    (folder / "scripts").mkdir()
    for name, main_class in KAFKA_CLASSES.items():
        java = f"exec java $KAFKA_HEAP_OPTS {QUICK_JAVA} -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        _write_script(folder / "scripts" / name, f"{java} -cp '/opt/kafka/libs/*' {main_class} \"$@\"")
    copy = 'mkdir -p "${each#*=}" && cp /jars/* "${each#*=}"'
    _write_script(folder / "mvn", f'for each; do case "$each" in -DoutputDirectory=*) {copy};; esac; done')


def _write_script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    os.chmod(path, 0o755)
