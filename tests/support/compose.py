"""What docker-compose.yml and Dockerfiles say, read by docker-compose itself (variables filled in)."""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.needs import ROOT

COMPOSE_FILE: Final = ROOT / "docker-compose.yml"

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


def load_compose(*overrides: Path) -> dict[str, ComposeService]:
    """Return the services of all profiles, read by docker-compose without any variable of the environment.

    Raises:
        subprocess.CalledProcessError: docker-compose refuses the file; its words are in `stderr`.
    """
    variables = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"}
    with tempfile.NamedTemporaryFile(suffix=".env") as nothing:
        # Else a developer's own .env would count.
        files = [word for each in (COMPOSE_FILE, *overrides) for word in ("--file", str(each))]
        command = ["docker-compose", "--env-file", nothing.name, *files, "--profile", "spark", "config"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables, cwd=ROOT)
    services = yaml.safe_load(done.stdout)["services"]
    return {name: ComposeService(name, _unescaped(definition)) for name, definition in services.items()}


def docker_instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile and their arguments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.strip().partition(" ") for line in lines) if word]


def _unescaped(value: Any) -> Any:
    """docker-compose doubles every dollar sign in what it prints."""
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, dict):
        return {key: _unescaped(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unescaped(inner) for inner in value]
    return value
