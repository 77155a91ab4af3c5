"""docs/compatibility.md says what is run: its versions are those of the locks, its rows those of the tests."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from storage.errors import StorageConfigError
from storage.object_store.registry import open_object_store
from tests.integration.test_older_upstream import BEFORE_3_6
from tests.integration.test_versions import APIS
from tests.support.client_programs import CLIENTS, SIGNING_IN
from tests.support.filled_topics import CODECS
from tests.support.kio_frames import versions_of
from tests.support.kubernetes_schemas import VERSIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
INTEGRATION = ROOT / "tests" / "integration"


def rows(heading: str) -> list[list[str]]:
    """The cells of each row of a section's tables, without their heads."""
    section = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]
    assert section, heading
    lines = re.findall(r"^\| .*\|$(?!\n\|---)", section, re.MULTILINE)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def found(pattern: str, path: str) -> str:
    (version,) = set(re.findall(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE))
    return str(version)


def locked(package: str, path: str = "requirements/dev.txt") -> str:
    """The version that Python 3.11 gets."""
    return found(rf"^{package}==([\d.]+) (?!; python_full_version >=)", path)


def kafka_version() -> str:
    return found(r"<kafka\.version>([\d.]+)<", "tools/kafka/pom.xml")


def client_version(name: str) -> str:
    """Return the version of what `client_programs` starts under that name."""
    if name == "java":
        return kafka_version()
    if name.startswith("java-"):
        return found(rf"<version>({re.escape(name.removeprefix('java-'))}\.\d+)<", "tests/integration/java/pom.xml")
    if name in ("franz-go", "sarama"):
        return found(rf"^\t\S+/{name} v([\d.]+)$", "tests/integration/go/go.mod")
    if name == "kafkajs":
        package = json.loads((INTEGRATION / "node" / "kafkajs" / "package.json").read_text("utf-8"))
        return str(package["dependencies"]["kafkajs"])
    lock = INTEGRATION / "python" / "clients" / f"{name}.txt"
    if lock.exists():
        return locked(name.rpartition("-")[0], str(lock.relative_to(ROOT)))
    return locked("confluent-kafka" if name == "librdkafka" else name)


def test_the_brokers_are_those_that_run() -> None:
    brokers = [row for row in rows("Brokers") if row[0].startswith("Apache")]
    assert [row[1] for row in brokers] == [kafka_version()] * 3
    assert sorted(BEFORE_3_6.values()) == [7, 13]
    assert "ListOffsets 7 and Fetch 13 at most" in brokers[1][2]


def test_the_versions_of_requests_are_those_of_the_cases() -> None:
    names = {"Fetch": "fetch", "ListOffsets": "list_offsets", "OffsetForLeaderEpoch": "offset_for_leader_epoch"}
    said = {names[row[0]]: row[1] for row in rows("Brokers") if row[0] in names}
    versions = {name: versions_of(key, "request") for name, key in APIS.items()}
    assert said == {name: f"{each[0]} to {each[-1]}" for name, each in versions.items()}


def test_the_clients_are_those_that_the_scenarios_start() -> None:
    # Two tables of the programs have librdkafka's newest under two names.
    signing_in = {"librdkafka" if name == "confluent-kafka" else name for name in SIGNING_IN}
    expected = {
        (name, client_version(name), "yes" if name in CLIENTS else "", "yes" if name in signing_in else "")
        for name in CLIENTS.keys() | signing_in
    }
    assert {(row[0].partition(",")[0], *row[1:]) for row in rows("Clients")} == expected


def test_the_stores_servers_are_those_that_are_installed() -> None:
    azurite = json.loads((ROOT / "tests" / "support" / "azurite" / "package.json").read_text("utf-8"))
    servers = {
        f"versitygw {found(r'^VERSITYGW_VERSION := v(.*)$', 'tests/tools.mk')}",
        f"moto {locked('moto')}",
        f"fake-gcs-server {found(r'^FAKE_GCS_VERSION := v(.*)$', 'tests/tools.mk')}",
        f"Azurite {azurite['dependencies']['azurite']}",
    }
    stores = [row for row in rows("Tiers") if len(row) == 3]
    assert {server for row in stores for server in row[2].split(", ")} - {"the machine's own"} == servers


def test_the_stores_are_those_that_are_known() -> None:
    for row in rows("Tiers"):
        if len(row) == 3:
            name = f"io.aiven.kafka.tieredstorage.storage.{row[1].strip('`')}"
            # Known by its class, it misses its own keys.
            with pytest.raises(StorageConfigError) as caught:
                open_object_store({"storage.backend.class": name})
            assert "storage.backend.class" not in str(caught.value)
    assert f"every codec: {', '.join(CODECS)};" in PAGE


def test_where_it_runs_is_what_the_project_declares() -> None:
    said: dict[str, str] = {}
    for name, version, _ in rows("Where it runs"):
        said[name] = f"{said[name]}, {version}" if name in said else version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    python = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert said["Python"] == ", ".join(python)
    assert project["requires-python"] == f">={python[0]},<3.{int(python[-1].partition('.')[2]) + 1}"
    assert said["Kubernetes"] == ", ".join(version.removesuffix(".0") for version in VERSIONS)
    modules = {
        "Gateway API": "gateway-api",
        "cert-manager": "cert-manager",
        "Prometheus's operator": "prometheus-operator",
    }
    for name, module in modules.items():
        assert said[name] == found(rf"/{module}@v([\d.]+):", "tests/tools.mk")
    assert said["Helm"] == found(r"^HELM_VERSION := v(.*)$", "tests/tools.mk")
    assert said["Strimzi"] == found(r"<version>(0[\d.]+)<", "tests/deploy/strimzi/pom.xml")
    spark = (locked("pyspark", "requirements/spark.txt"), locked("pyspark", "tests/spark/pyspark-4.3.txt"))
    assert said["Spark"] == ", ".join(spark)
