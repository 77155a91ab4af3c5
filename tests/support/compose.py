"""docker-compose.yml run without Docker: each service's real program, with what the compose file gives it.

    with ComposeRun(work, environ={}) as run:
        run.up("spark")               # and what it depends on, each when its condition holds
        run.wait_completed("spark")

docker-compose itself reads the file (variables filled in). What a container has of its own is put in its place:

- a container's root folder is `work/<service>`: every mounted path of commands and files gets that in front;
- a bound file is copied there with this rewritten, a volume is a link to `work/volumes/<name>`;
- a service's name, 0.0.0.0 and 127.0.0.1 before a port are 127.0.0.1, and the port is a free one of this machine;
- `*.port.start` of Tidegate's file is a port, too;
- the images' programs come from this machine: Kafka's scripts are scripts that start the same Java class.

Everything else is taken as it stands: commands, arguments, environment, files, the order of starting, health checks.
`rewrites` tells what was put in whose place.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.support.needs import JARS, ROOT, SPARK_JARS, VERSITYGW
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_process import JavaProcess

COMPOSE_FILE: Final = ROOT / "docker-compose.yml"
HOST: Final = "127.0.0.1"
HEALTHY_S_MAX: Final = 90.0
COMPLETED_S_MAX: Final = 180.0

KAFKA_CLASSES: Mapping[str, str] = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
"""What Kafka's own scripts of these names start."""

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Starts twice as fast, at the cost of top speed."""

PROGRAM_FOLDERS: Final = ("/opt/kafka", "/opt/spark")
"""Folders of images whose programs commands name."""

_ADDRESS = r"(?<![\w.-])(?P<host>{hosts})(?=:(?P<port>\d+)\b)"
_TEXT_SUFFIXES = (".properties", ".sh", ".yml", ".yaml", ".py")


@dataclass(frozen=True, slots=True)
class ComposeService:
    """One service as docker-compose understands it."""

    name: str
    definition: Mapping[str, Any]

    @property
    def ports(self) -> tuple[int, ...]:
        """The container's ports, published or exposed."""
        published = [str(port).partition("/")[0].rpartition(":")[2] for port in self.definition.get("ports", ())]
        return tuple(int(port) for port in [*published, *self.definition.get("expose", ())])

    @property
    def mounts(self) -> dict[str, str]:
        """Path in the container -> file or folder of this repository, or a volume's name."""
        parts = [str(volume).split(":") for volume in self.definition.get("volumes", ())]
        return {target: source for source, target, *_ in parts}

    @property
    def bound_paths(self) -> list[Path]:
        return [Path(source) for source in self.mounts.values() if source.startswith("/")]

    @property
    def command(self) -> list[str]:
        return [str(part) for part in self.definition.get("command", ())]

    @property
    def conditions(self) -> dict[str, str]:
        """Service -> what must hold of it before this one is started."""
        return {name: needed["condition"] for name, needed in self.definition.get("depends_on", {}).items()}


def load_compose(
    path: Path = COMPOSE_FILE, environ: Mapping[str, str] | None = None, *, overrides: Sequence[Path] = ()
) -> dict[str, ComposeService]:
    """The services of all profiles, read by docker-compose with these variables and no others.

    Raises:
        subprocess.CalledProcessError: docker-compose refuses the file; its words are in `stderr`.
    """
    variables = {"PATH": _path(), "HOME": "/nonexistent", **(environ or {})}
    with tempfile.NamedTemporaryFile(suffix=".env") as nothing:
        # Else a developer's own .env would count.
        files = [word for each in (path, *overrides) for word in ("--file", str(each))]
        command = ["docker-compose", "--env-file", nothing.name, *files, "--profile", "spark", "config"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables, cwd=path.parent)
    services = yaml.safe_load(done.stdout)["services"]
    return {name: ComposeService(name, _unescaped(definition)) for name, definition in services.items()}


def docker_instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile and their arguments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.strip().partition(" ") for line in lines) if word]


class ComposeRun:
    """The services of a compose file as processes of this machine, below one folder; they end with the block."""

    def __init__(self, work: Path, *, path: Path = COMPOSE_FILE, environ: Mapping[str, str] | None = None) -> None:
        self.work: Final = work
        self.services: Final = load_compose(path, environ)
        self.processes: Final[dict[str, JavaProcess]] = {}
        self._ports = {port: free_port() for service in self.services.values() for port in service.ports}
        hosts = "|".join(re.escape(name) for name in (*self.services, "0.0.0.0", HOST))
        self._address = re.compile(_ADDRESS.format(hosts=hosts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in reversed(self.processes.values()):
            process.kill()

    @property
    def rewrites(self) -> list[str]:
        """Everything that was put in place of something else, a line each."""
        hosts = [f"{name}: -> {HOST}:" for name in (*self.services, "0.0.0.0")]
        ports = [f":{port} -> :{free}" for port, free in self._ports.items()]
        paths = [
            f"{path} -> {self.work / name}{path}" for name in self.services for path in self._container_paths(name)
        ]
        return [*hosts, *ports, *paths]

    def up(self, *names: str) -> None:
        """Start services and what they depend on, each when its conditions hold, and wait until all are healthy."""
        for name in names:
            if name in self.processes:
                continue
            for needed, condition in self.services[name].conditions.items():
                self.up(needed)
                if condition == "service_completed_successfully":
                    self.wait_completed(needed)
            self._start(name)
            if self.services[name].definition.get("restart") != "no":
                self._wait_healthy(name)

    def wait_completed(self, name: str) -> str:
        """Wait for a service that ends by itself, and give what it said.

        Raises:
            AssertionError: it failed, or took too long.
        """
        process = self.processes[name]
        wait_until(lambda: not process.is_running, f"{name} has ended", timeout_s=COMPLETED_S_MAX)
        said = process.log_path.read_text("utf-8", "replace")
        assert process.exit_code == 0, f"{name} ended with {process.exit_code}:\n{said[-4000:]}"
        return said

    def rewritten(self, name: str, text: str) -> str:
        """A command's part or a file's content, for this machine.

        Raises:
            KeyError: it names a port of a service that the compose file does not declare.
        """
        text = re.sub(self._address.pattern + r":\d+", lambda found: f"{HOST}:{self._ports[int(found['port'])]}", text)
        text = re.sub(r"(\.port\.start=)(\d+)", lambda found: f"{found[1]}{self._ports[int(found[2])]}", text)
        folders = "|".join(re.escape(path) for path in self._container_paths(name))
        return re.sub(rf"(?<![\w./-])(?:{folders})(?![\w-])", lambda found: f"{self.work / name}{found[0]}", text)

    def _container_paths(self, name: str) -> list[str]:
        return [*sorted(self.services[name].mounts, key=len, reverse=True), *PROGRAM_FOLDERS]

    def _start(self, name: str) -> None:
        self._make_root(self.services[name])
        self._launch(name)

    def _launch(self, name: str) -> None:
        service = self.services[name]
        command = [*_entrypoint(name), *(self.rewritten(name, part) for part in service.command)]
        environment = service.definition.get("environment", {})
        variables = [f"{key}={self.rewritten(name, str(value))}" for key, value in environment.items()]
        program = ["/usr/bin/env", "-i", f"PATH={_path()}", f"HOME={self.work / name}", *variables, *command]
        self.processes[name] = JavaProcess(name, program, self.work / f"{name}.log")

    def _make_root(self, service: ComposeService) -> None:
        root = self.work / service.name
        _write_programs(root)
        for target, source in service.mounts.items():
            inside = root / target.lstrip("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            if not source.startswith("/"):
                (self.work / "volumes" / source).mkdir(parents=True, exist_ok=True)
                inside.symlink_to(self.work / "volumes" / source, target_is_directory=True)
            else:
                self._copy(service.name, Path(source), inside)

    def _copy(self, name: str, source: Path, target: Path) -> None:
        paths = [source] if source.is_file() else [path for path in sorted(source.rglob("*")) if path.is_file()]
        for path in paths:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in _TEXT_SUFFIXES:
                place.write_text(self.rewritten(name, path.read_text("utf-8")), "utf-8")
            else:
                shutil.copyfile(path, place)

    def _wait_healthy(self, name: str) -> None:
        process = self.processes[name]
        test = self.health_check(name)

        def is_healthy() -> bool:
            assert process.is_running, f"{name} ended:\n{process.log_tail()}"
            return _passes(test)

        wait_until(is_healthy, f"{name} is healthy: {shlex.join(test)}", timeout_s=HEALTHY_S_MAX)

    def health_check(self, name: str) -> list[str]:
        """The command of the compose file's health check, or else of the image that we build."""
        definition = self.services[name].definition
        if "healthcheck" in definition:
            test = [str(part) for part in definition["healthcheck"]["test"]][1:]
        else:
            instructions = dict(docker_instructions(ROOT / definition["build"]["dockerfile"]))
            test = list(yaml.safe_load(instructions["HEALTHCHECK"].partition("CMD ")[2]))
        if test[:2] == ["nc", "-z"]:
            return [*test[:2], *self.rewritten(name, ":".join(test[2:])).split(":")]
        return [self.rewritten(name, part) for part in test]


def _unescaped(value: Any) -> Any:
    """docker-compose doubles every dollar sign in what it prints."""
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, dict):
        return {key: _unescaped(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unescaped(inner) for inner in value]
    return value


def _passes(test: Sequence[str]) -> bool:
    """Run a health check; `nc` and `wget`, which images have and this machine may not, are done by hand."""
    if test[0] == "nc":
        try:
            socket.create_connection((test[2], int(test[3])), 3).close()
        except OSError:
            return False
        return True
    if test[0] == "wget":
        try:
            with urllib.request.urlopen(test[-1], timeout=3) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, OSError):
            return False
    program = [str(Path(sys.executable).with_name("tidegate")), *test[1:]] if test[0] == "tidegate" else list(test)
    return subprocess.run(program, capture_output=True, check=False).returncode == 0


def _entrypoint(name: str) -> list[str]:
    """Return what the service's image starts; nothing for images that start the command itself."""
    if name == "s3":
        return [str(VERSITYGW)]
    if name == "prometheus":
        return [shutil.which("prometheus") or "prometheus"]
    if name == "tidegate":
        return [str(Path(sys.executable).with_name("tidegate"))]
    return []


def _write_programs(root: Path) -> None:
    kafka, spark = root / "opt" / "kafka" / "bin", root / "opt" / "spark" / "bin"
    java = f"{QUICK_JAVA} -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    for script, main_class in KAFKA_CLASSES.items():
        _write_script(kafka / script, f"exec java $KAFKA_HEAP_OPTS {java} -cp '{JARS}/*' {main_class} \"$@\"")
    connector = ",".join(str(jar) for jar in sorted(SPARK_JARS.glob("*.jar")))
    submit = f"{Path(sys.executable).with_name('spark-submit')} --jars {connector}"
    _write_script(
        spark / "spark-submit",
        f"export PYSPARK_PYTHON={sys.executable} SPARK_LOCAL_IP={HOST} SPARK_LOCAL_HOSTNAME={HOST}",
        f"exec {submit} --conf spark.ui.enabled=false --driver-java-options '{QUICK_JAVA}' \"$@\"",
    )


def _write_script(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), "utf-8")
    path.chmod(0o755)


def _path() -> str:
    return os.environ.get("PATH", os.defpath)
