"""docker-compose.yml, and the same services run as programs of this machine by tests/support/compose.py.

There is no Docker where this runs. Left unseen by that: the images themselves, the networks, and Grafana, whose program
is not to be had here (its files: test_dashboard.py). What is rewritten is in that module's docstring, and printed.
"""

import contextlib
import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from tests.deploy.test_containers_page import GUIDE
from tests.support.compose import ComposeRun, ComposeService, docker_instructions, load_compose
from tests.support.digests import read_with_confluent
from tests.support.needs import ROOT
from tests.support.runnable_docs import running
from tests.support.samples import Scrape
from tests.support.waiting import wait_until
from tidegate.config.load import load
from tools.demo.kafka_admin import PartitionOffsets, partition_offsets
from tools.demo.kafka_metrics import BrokerMetrics

pytestmark = pytest.mark.needs("docker-compose")

TOPIC = "orders"
DOCKERFILES = sorted((ROOT / "deploy").rglob("Dockerfile"))
IMAGE = re.compile(r"(?P<name>[a-z0-9-]+(?:/[a-z0-9-]+)?):v?(?P<version>\d+\.\d+\.\d+)(?:-[a-z0-9-]+)?")
"""A name without a registry's host, and a whole version."""

OUR_IMAGES = {"tidegate", "tidegate-demo-kafka", "tidegate-demo-spark"}


@pytest.fixture(scope="module")
def services() -> dict[str, ComposeService]:
    return load_compose()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeRun]:
    """Everything but Grafana and Spark, healthy, with the topic filled."""
    with ComposeRun(tmp_path_factory.mktemp("compose")) as started:
        print("\n".join(started.rewrites))
        started.up("prometheus", "fill")
        started.wait_completed("fill")
        yield started


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


def metric(run: ComposeRun, name: str, **labels: str) -> float:
    with urllib.request.urlopen(f"http://{run.address('tidegate', 9464)}/metrics", timeout=10) as answer:
        return Scrape.of(answer.read().decode()).sum(name, **labels)


def query(run: ComposeRun, expression: str) -> list[Any]:
    address = f"http://{run.address('prometheus', 9090)}/api/v1/query?"
    with urllib.request.urlopen(address + urllib.parse.urlencode({"query": expression}), timeout=10) as answer:
        result: list[Any] = json.load(answer)["data"]["result"]
    return result


@pytest.fixture(scope="module")
def offsets(run: ComposeRun) -> dict[int, PartitionOffsets]:
    """The topic's, when nothing of it waits to be copied any more and Tidegate knows all that is in the tier."""
    volumes = run.work / "volumes"

    def has_settled() -> bool:
        found = partition_offsets(run.address("kafka", 9092), TOPIC).values()
        local = list((volumes / "kafka-data").glob(f"{TOPIC}-*/*.log"))
        return len(local) == len(found) and all(
            partition.local_log_start_offset == partition.latest_tiered_offset + 1 for partition in found
        )

    wait_until(has_settled, "only the active segments are local", timeout_s=60)
    tiered = len(list((volumes / "objects" / "kafka-tiered-storage").glob(f"{TOPIC}-*/*.log")))
    wait_until(lambda: metric(run, "tidegate_catalog_segments") == tiered, f"the catalog has {tiered} segments")
    wait_until(lambda: metric(run, "tidegate_ready") == 1, "Tidegate is ready")
    return partition_offsets(run.address("kafka", 9092), TOPIC)


@pytest.mark.integration
@pytest.mark.needs("java", "kafka", "versitygw", "prometheus")
class TestPrograms:
    """Each service's real program, in front of one broker and one S3 server."""

    @pytest.mark.needs("curl", "kcat")
    def test_the_page_for_containers_does_what_it_says(
        self, run: ComposeRun, offsets: Mapping[int, PartitionOffsets], tmp_path: Path
    ) -> None:
        """But for Docker's own commands, which test_containers_page.py looks at."""
        ours = [command for command in GUIDE.commands if not command.text.startswith("docker ")]
        values = {"PROXY": run.address("tidegate", 19092), "ADMIN": run.address("tidegate", 9464)}
        guide = replace(GUIDE, commands=tuple(ours))
        with running(guide, folder=tmp_path, values=values, environment={"PATH": os.environ["PATH"]}) as shell:
            printed = [text for command, text in shell.follow() if "served_tier_bytes" in command.text]
        assert [float(text.split()[-1]) > 0 for text in printed] == [True]

    def test_the_topic_is_read_from_the_tier_without_the_broker(
        self, run: ComposeRun, offsets: Mapping[int, PartitionOffsets]
    ) -> None:
        broker = BrokerMetrics("java", run.processes["kafka"].pid)
        ends = {partition: found.high_watermark for partition, found in offsets.items()}
        assert sum(ends.values()) == int(run.services["fill"].definition["environment"]["RECORDS"])
        assert all(found.local_log_start_offset > 0 for found in offsets.values())
        try:
            through = read_with_confluent(run.address("tidegate", 19092), TOPIC, ends, "read_uncommitted")
            assert broker.broker_topic_count("RemoteFetchRequestsPerSec") == 0
            assert metric(run, "tidegate_gets_total", store="s3", outcome="ok") > 0
            assert metric(run, "tidegate_served_tier_bytes_total") > 0
            direct = read_with_confluent(run.address("kafka", 9092), TOPIC, ends, "read_uncommitted")
            assert broker.broker_topic_count("RemoteFetchRequestsPerSec") > 0
        finally:
            broker.close()
        assert through == direct
        assert {partition: found.records for partition, found in through.items()} == ends

    def test_prometheus_finds_tidegate_ready_and_has_the_rules(self, run: ComposeRun) -> None:
        ready = wait_until(lambda: query(run, "tidegate_ready == 1"), "Prometheus has scraped", timeout_s=60)
        assert [sample["metric"]["job"] for sample in ready] == ["tidegate"]
        with urllib.request.urlopen(f"http://{run.address('prometheus', 9090)}/api/v1/rules", timeout=10) as answer:
            groups = json.load(answer)["data"]["groups"]
        rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "tidegate-rules.yml").read_text("utf-8"))
        assert {group["name"] for group in groups} == {group["name"] for group in rules["groups"]}

    def test_the_tier_cannot_be_written_to_through_the_s3_server(self, run: ComposeRun) -> None:
        assert "objects:/objects:ro" in run.services["s3"].definition["volumes"]
        environment = run.services["s3"].definition["environment"]
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{run.address('s3', 7070)}",
            region_name="us-east-1",
            aws_access_key_id=environment["ROOT_ACCESS_KEY"],
            aws_secret_access_key=environment["ROOT_SECRET_KEY"],
        )
        with contextlib.closing(client), pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(Bucket="kafka-tiered-storage", Key="of-mine", Body=b"x")

    def test_filling_again_adds_nothing(self, run: ComposeRun, offsets: Mapping[int, PartitionOffsets]) -> None:
        said = run.run_again("fill")
        assert f"{TOPIC} is there already" in said
        assert partition_offsets(run.address("kafka", 9092), TOPIC) == offsets
