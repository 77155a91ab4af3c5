"""The example files of deploy/: each is a configuration that `tidegate serve` takes, and manifests agree with it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.load import load
from proxy.config.model import SERVE_KEYS, Config
from storage.registry import open_remote_storage_manager
from tests.support.compose import docker_instructions
from tests.support.needs import ROOT

DEPLOY = ROOT / "deploy"
EXAMPLES = sorted((DEPLOY / "examples").glob("*.properties"))
ENVIRON = {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret", "AZURE_SAS_TOKEN": "sv=1&sig=x"}
"""Variables that examples refer to."""
SNAPSHOT_S = 10
"""What operations says that the last snapshot may take."""


def manifests() -> dict[str, list[Any]]:
    """Kind -> documents of the Kubernetes manifest."""
    found: dict[str, list[Any]] = {}
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / "tidegate.yaml").read_text("utf-8")):
        found.setdefault(document["kind"], []).append(document)
    return found


@pytest.fixture(scope="module")
def stateful_set() -> Any:
    return manifests()["StatefulSet"][0]["spec"]


@pytest.fixture(scope="module")
def container(stateful_set: Any) -> Any:
    return stateful_set["template"]["spec"]["containers"][0]


@pytest.fixture
def kubernetes_config(tmp_path: Path) -> Config:
    path = tmp_path / "tidegate.properties"
    path.write_text(manifests()["ConfigMap"][0]["data"]["tidegate.properties"], "latin-1")
    return load(path, ENVIRON)


def test_there_is_an_example_of_every_format() -> None:
    names = {load(path, ENVIRON).remote_storage_manager_class_name.rpartition(".")[2] for path in EXAMPLES}
    assert names == {"LocalTieredStorage", "PlainObjects", "RemoteStorageManager"}


def test_there_is_an_example_of_every_store_in_a_cloud() -> None:
    configs = [load(path, ENVIRON).remote_storage_config for path in EXAMPLES]
    names = {config.get("storage.backend.class", "").rpartition(".")[2] for config in configs}
    assert names >= {"AzureBlobStorage", "GcsStorage", "S3Storage"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_taken_without_a_warning_and_opens_its_store(path: Path) -> None:
    check_opens(load(path, ENVIRON))


def test_kubernetes_configuration_is_taken_without_a_warning_and_opens_its_store(kubernetes_config: Config) -> None:
    check_opens(kubernetes_config)


def check_opens(config: Config) -> None:
    assert config.warnings == ()
    manager = open_remote_storage_manager(config.remote_storage_manager_class_name, config.remote_storage_config)
    manager.close()


def test_kubernetes_ports_are_those_of_the_configuration(container: Any, kubernetes_config: Config) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    proxy = kubernetes_config.proxy
    assert ports["bootstrap"] == proxy.listen.port
    assert ports["admin"] == kubernetes_config.admin.listen.port
    brokers = {name: port for name, port in ports.items() if name.startswith("broker-")}
    assert brokers == {f"broker-{number}": proxy.listen.port + 1 + number for number in range(3)}
    public, _ = manifests()["Service"]
    served = {port["name"]: (port["port"], port["targetPort"]) for port in public["spec"]["ports"]}
    assert served == {name: (port, name) for name, port in ports.items() if name != "admin"}
    # What clients are told is the Service's name.
    assert f"{public['metadata']['name']}.{public['metadata']['namespace']}.svc" == "tidegate.kafka.svc"


def test_kubernetes_probes_and_annotations_name_the_admin_listener(stateful_set: Any, container: Any) -> None:
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "admin"}
    assert container["startupProbe"]["httpGet"] == {"path": "/livez", "port": "admin"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    annotations = stateful_set["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9464"
    assert annotations["prometheus.io/path"] == "/metrics"


def test_kubernetes_waits_longer_than_the_drain(stateful_set: Any, container: Any, kubernetes_config: Config) -> None:
    grace_s = stateful_set["template"]["spec"]["terminationGracePeriodSeconds"]
    proxy = kubernetes_config.proxy
    assert grace_s >= SNAPSHOT_S + (proxy.drain_delay_ms + proxy.drain_timeout_ms) / 1000
    # A sleep in preStop would leave /readyz at 200: the delay stands in for it.
    assert "lifecycle" not in container
    assert proxy.drain_delay_ms >= 5000


def test_kubernetes_spreads_replicas_and_stops_one_at_a_time(stateful_set: Any) -> None:
    labels = stateful_set["selector"]["matchLabels"]
    assert stateful_set["template"]["metadata"]["labels"] == labels
    (budget,) = manifests()["PodDisruptionBudget"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["maxUnavailable"] < stateful_set["replicas"]
    wanted = stateful_set["template"]["spec"]["affinity"]["podAntiAffinity"]
    terms = [each["podAffinityTerm"] for each in wanted["preferredDuringSchedulingIgnoredDuringExecution"]]
    assert [term["topologyKey"] for term in terms] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(term["labelSelector"]["matchLabels"] == labels for term in terms)


def test_kubernetes_runs_the_image_as_its_own_user_on_a_read_only_root(stateful_set: Any, container: Any) -> None:
    instructions = docker_instructions(DEPLOY / "Dockerfile")
    user = next(rest for word, rest in instructions if word == "USER")
    security = stateful_set["template"]["spec"]["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/var/cache/tidegate", "/etc/tidegate", "/tmp"} == mounted
    assert container["args"] == yaml.safe_load(dict(instructions)["CMD"])


def test_the_default_drain_is_below_every_grace_period() -> None:
    drain_s = SERVE_KEYS.by_name["proxy.drain.timeout.ms"].default_value / 1000
    unit = (DEPLOY / "systemd" / "tidegate.service").read_text("utf-8")
    stop_s = next(line.partition("=")[2] for line in unit.splitlines() if line.startswith("TimeoutStopSec="))
    assert int(stop_s) > drain_s
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert int(compose["services"]["tidegate"]["stop_grace_period"].removesuffix("s")) > drain_s
