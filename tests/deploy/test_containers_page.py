"""docs/getting-started-containers.md: Docker's own commands, held against our files.

What can be run: tests/containers/test_services.py. Docker's own commands: their services are the compose file's, which
docker-compose itself has read, their paths and ports are the image's and the configuration's.
"""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.compose import docker_instructions, load_compose
from tests.support.needs import ROOT
from tests.support.runnable_docs import read_guide
from tidegate.config.load import load
from tidegate.config.model import Config

PAGE = ROOT / "docs" / "getting-started-containers.md"
GUIDE = read_guide(PAGE.read_text("utf-8"))
DOCKER = [shlex.split(command.text)[1:] for command in GUIDE.commands if command.text.startswith("docker ")]
COMPOSE = [command[1:] for command in DOCKER if command[0] == "compose"]
RUNS = [command[1:] for command in DOCKER if command[0] == "run"]
COMPOSE_OPTIONS = {"up": {"--build", "--detach", "--wait"}, "down": {"--volumes"}, "logs": set(), "stop": set()}
"""What the page uses of Docker Compose 2; `--wait` is not known to version 1."""


def options(command: list[str], name: str) -> list[str]:
    return [value for option, value in pairwise(command) if option == name]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (properties,) = re.findall(r"^```properties\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    server = tmp_path / "server.properties"
    server.write_text(
        "remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage\n"
        "rsm.config.dir=/tier\n"
    )
    path = tmp_path / "tidegate.properties"
    path.write_text(properties.replace("/etc/tidegate/server.properties", str(server)))
    return load(path, {})


@pytest.mark.needs("docker-compose")
def test_services_and_options_of_compose_are_there() -> None:
    services = load_compose()
    assert {command[0] for command in COMPOSE} == COMPOSE_OPTIONS.keys()
    for action, *arguments in COMPOSE:
        flags = {argument for argument in arguments if argument.startswith("-")}
        assert flags <= COMPOSE_OPTIONS[action]
        assert set(arguments) - flags <= services.keys()
        if "--wait" in flags:
            # It would take a service that ends by itself for one that has failed.
            assert all(services[name].definition["restart"] != "no" for name in set(arguments) - flags)


def test_the_image_is_built_and_run_as_its_file_says(config: Config) -> None:
    instructions = docker_instructions(ROOT / "deploy" / "Dockerfile")
    (build,) = (command[1:] for command in DOCKER if command[0] == "build")
    assert (ROOT / build[build.index("--file") + 1]).is_file()
    (tag,) = options(build, "--tag")
    assert ("ARG", f"VERSION={tag.partition(':')[2]}") in instructions
    check, serve = RUNS
    assert check[-3:] == [tag, "check", "/etc/tidegate/tidegate.properties"]
    assert serve[-1] == tag, "served is what the image serves by default"
    for command in (check, serve):
        assert {"./tidegate.properties:/etc/tidegate/tidegate.properties:ro"} < set(options(command, "--volume"))
    assert f"tidegate-cache:{config.cache.path}" in options(serve, "--volume")
    assert options(serve, "--memory") == [f"{config.memory_bytes_max // 2**20 + 150}m"]


def test_ports_are_published_under_the_numbers_that_clients_are_told(config: Config) -> None:
    proxy = config.proxy
    brokers = f"{proxy.listen.port}-{proxy.broker_port_start + 2}"
    admin = config.admin.listen.port
    assert options(RUNS[1], "--publish") == [f"{brokers}:{brokers}", f"127.0.0.1:{admin}:{admin}"]
    assert config.warnings == ()
