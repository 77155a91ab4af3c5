"""docker-compose.yml and the Dockerfiles that it builds. Its services run in tests/containers/test_services.py."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.compose import ComposeService, docker_instructions, load_compose
from tests.support.needs import ROOT
from tidegate.config.load import load

pytestmark = pytest.mark.needs("docker-compose")

DOCKERFILES = sorted((ROOT / "deploy").rglob("Dockerfile"))
IMAGE = re.compile(r"(?P<name>[a-z0-9-]+(?:/[a-z0-9-]+)?):v?(?P<version>\d+\.\d+\.\d+)(?:-[a-z0-9-]+)?")
"""A name without a registry's host, and a whole version."""

OUR_IMAGES = {"tidegate", "tidegate-demo-kafka", "tidegate-demo-spark"}


@pytest.fixture(scope="module")
def services() -> dict[str, ComposeService]:
    return load_compose()


def images(services: Mapping[str, ComposeService]) -> list[str]:
    """Every image that a service or a stage of a Dockerfile is made from."""
    found = [str(service.definition["image"]) for service in services.values()]
    for path in DOCKERFILES:
        instructions = docker_instructions(path)
        arguments = dict(rest.split("=", 1) for word, rest in instructions if word == "ARG" and "=" in rest)
        for source in (rest.split()[0] for word, rest in instructions if word == "FROM"):
            found.append(arguments[source.strip("${}")] if source.startswith("$") else source)
    return found


def test_every_image_has_a_whole_version_and_no_registry(services: Mapping[str, ComposeService]) -> None:
    assert len(images(services)) > len(services)
    for image in images(services):
        assert IMAGE.fullmatch(image), image


def test_what_is_built_is_named_by_the_version_of_what_is_in_it(services: Mapping[str, ComposeService]) -> None:
    built = {name: service for name, service in services.items() if "build" in service.definition}
    assert {str(service.definition["image"]).partition(":")[0] for service in built.values()} == OUR_IMAGES
    for service in built.values():
        assert (ROOT / service.definition["build"]["dockerfile"]).is_file()
        assert service.definition["build"]["context"] == str(ROOT)
    tags = {name: str(service.definition["image"]).partition(":")[2] for name, service in built.items()}
    kafka = (ROOT / "tools" / "kafka" / "pom.xml").read_text("utf-8")
    spark = (ROOT / "tools" / "spark" / "pom.xml").read_text("utf-8")
    assert f"<kafka.version>{tags['kafka']}</kafka.version>" in kafka
    assert f"<spark.version>{tags['spark']}</spark.version>" in spark
    assert f"\nFROM apache/kafka:{tags['kafka']}\n" in (ROOT / "deploy/compose/kafka/Dockerfile").read_text("utf-8")
    assert f"\nFROM apache/spark:{tags['spark']}\n" in (ROOT / "deploy/compose/spark/Dockerfile").read_text("utf-8")
    assert f'\nversion = "{tags["tidegate"]}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
    # The S3 server's version is the one that tests run.
    version = str(services["s3"].definition["image"]).partition(":")[2]
    assert f"\nVERSITYGW_VERSION := {version}\n" in (ROOT / "tests/tools.mk").read_text("utf-8")


def test_what_is_mounted_exists(services: Mapping[str, ComposeService]) -> None:
    missing = [str(path) for service in services.values() for path in service.bound_paths if not path.exists()]
    assert missing == []


def test_dockerfiles_copy_only_what_exists_and_is_let_in() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    for path in DOCKERFILES:
        copied = [rest.split()[:-1] for word, rest in docker_instructions(path) if word == "COPY"]
        for name in (name for names in copied for name in names if not names[0].startswith("--from")):
            assert (ROOT / name).exists(), f"{path}: {name}"
            assert {name, name.partition("/")[0]} & allowed, f"{path}: {name} is kept out by .dockerignore"


def test_no_service_has_too_many_rights_and_what_stays_is_checked(services: Mapping[str, ComposeService]) -> None:
    for name, service in services.items():
        definition = service.definition
        assert not definition.get("privileged"), name
        assert definition["cap_drop"] == ["ALL"], name
        assert definition["security_opt"] == ["no-new-privileges:true"], name
        assert definition["mem_limit"], name
        published = [str(port) for port in definition.get("ports", ())]
        assert all(port.startswith("127.0.0.1:") for port in published), name
        # What stays has a health check.
        if service.definition["restart"] != "no" and "healthcheck" not in service.definition:
            dockerfile = ROOT / service.definition["build"]["dockerfile"]
            assert "HEALTHCHECK" in dict(docker_instructions(dockerfile)), name


def test_tidegates_ports_are_published_under_the_numbers_that_clients_are_told(
    services: Mapping[str, ComposeService],
) -> None:
    config = load(ROOT / "deploy" / "compose" / "tidegate.properties", {"S3_ACCESS_KEY": "k", "S3_SECRET_KEY": "s"})
    ports = {19092, 19093, 9464}
    assert ports == set(services["tidegate"].ports)
    assert services["tidegate"].definition["ports"] == [f"127.0.0.1:{port}:{port}/tcp" for port in (19092, 19093, 9464)]
    assert config.proxy.listen.port == 19092
    assert config.admin.listen.port == 9464
    assert config.warnings == ()


def test_the_jar_of_the_image_is_one_that_kafkas_script_puts_on_the_path() -> None:
    """`kafka-run-class.sh` leaves out names that end with -test.jar and the like."""
    copied = dict(docker_instructions(ROOT / "deploy/compose/kafka/Dockerfile"))["COPY"].split()
    assert copied[-1].startswith("/opt/kafka/libs/")
    assert not re.search(r"-(test|test-sources|src|scaladoc|javadoc)\.jar$", copied[-1])


@pytest.mark.needs("maven")
@pytest.mark.parametrize(
    ("image", "jar"),
    [
        pytest.param("kafka", "kafka-storage-4.3.0-test.jar", marks=pytest.mark.needs("kafka")),
        pytest.param("spark", "spark-sql-kafka-0-10_2.13-4.0.0.jar", marks=pytest.mark.needs("spark")),
    ],
    ids=["kafka", "spark"],
)
def test_the_jars_of_an_image_are_fetched_by_its_own_command(image: str, jar: str, tmp_path: Path) -> None:
    """Offline: what `make setup` and `make spark` have fetched is enough."""
    instructions = docker_instructions(ROOT / "deploy" / "compose" / image / "Dockerfile")
    command = next(rest for word, rest in instructions if word == "RUN" and rest.startswith("mvn "))
    pom = ROOT / "tools" / image / "pom.xml"
    here = command.replace("/build/pom.xml", str(pom)).replace("/build/jars", str(tmp_path))
    subprocess.run([*here.split(), "--offline"], check=True, capture_output=True)
    assert (tmp_path / jar).is_file()
