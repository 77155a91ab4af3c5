"""The Helm chart, and the manifests that are made from it.

There is no Kubernetes where this runs. Helm renders, kubeconform holds what was rendered against the schemas of the
first and the last Kubernetes that the chart is for, and Tidegate loads the configuration that the pods would have.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from storage.config.registry import open_remote_storage_manager
from tests.support.certificates import server_certificate
from tests.support.compose import docker_instructions
from tests.support.kubernetes_schemas import VERSIONS
from tests.support.needs import KUBECONFORM, KUBERNETES_SCHEMAS, ROOT
from tidegate.config.load import load
from tidegate.config.model import Config
from tools.kubernetes_manifests import CHART, FOLDER, manifests, template

MANIFESTS = sorted(FOLDER.glob("tidegate*.yaml"))
SNAPSHOT_S = 10
"""What operations says that the last snapshot may take."""

BESIDE_MIB = 150
BROKERS = (1, 2, 3)
CERTIFICATE, KEY = "a certificate", "its key"
SECRETS = {
    "tidegate-s3": {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret"},
    "tidegate-kafka": {"password": "secret"},
    "kafka-cluster-ca": {"ca.crt": CERTIFICATE},
    "my-cluster-cluster-ca-cert": {"ca.crt": CERTIFICATE},
    "tidegate": {"password": "secret"},
    "tidegate-tls": {"tls.crt": CERTIFICATE, "tls.key": KEY},
}
"""What is in the Secrets that the values name; a certificate and a key where the texts stand for one."""

Resources = Mapping[str, list[Any]]
"""Kind -> what there is of it."""


def resources_of(text: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for document in filter(None, yaml.load_all(text, yaml.CSafeLoader)):
        found.setdefault(document["kind"], []).append(document)
    return found


def pod_of(resources: Resources) -> Any:
    return resources["StatefulSet"][0]["spec"]["template"]["spec"]


def container_of(resources: Resources) -> Any:
    (container,) = pod_of(resources)["containers"]
    return container


def loaded(resources: Resources, folder: Path) -> Config:
    """The configuration as a pod has it: its file, the environment and the files of its Secrets."""
    pod, container = pod_of(resources), container_of(resources)
    assert pod["enableServiceLinks"] is False, "or the Service's variables would be in the environment"
    environ: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environ |= SECRETS[source["secretRef"]["name"]]
    environ |= {each["name"]: each["value"] for each in container.get("env", ())}
    certificate, key = server_certificate(folder)
    files = {CERTIFICATE: certificate.read_text(), KEY: key.read_text()}
    text: str = resources["ConfigMap"][0]["data"]["tidegate.properties"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for volume in pod["volumes"]:
        if "secret" in volume:
            place = folder / volume["name"]
            place.mkdir(exist_ok=True)
            for name, content in SECRETS[volume["secret"]["secretName"]].items():
                (place / name).write_text(files.get(content, content))
            text = text.replace(mounts[volume["name"]], str(place))
    assert "/run/" not in text, "every file is one of a Secret that is mounted"
    path = folder / "tidegate.properties"
    path.write_text(text, "ascii")
    config = load(path, environ)
    assert config.warnings == ()
    return config


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.stem)
def resources(request: pytest.FixtureRequest) -> Resources:
    return resources_of(request.param.read_text("utf-8"))


@pytest.mark.needs("helm")
def test_manifests_are_what_the_chart_renders() -> None:
    rendered = dict(manifests())
    assert sorted(rendered) == MANIFESTS
    for path, text in rendered.items():
        assert path.read_text("utf-8") == text, "run `python -m tools.kubernetes_manifests`"


def test_the_configuration_is_taken_and_opens_its_store(resources: Resources, tmp_path: Path) -> None:
    config = loaded(resources, tmp_path)
    open_remote_storage_manager(config.remote_storage_manager_class_name, config.remote_storage_config).close()


def test_ports_are_those_of_the_configuration(resources: Resources, tmp_path: Path) -> None:
    config = loaded(resources, tmp_path)
    proxy = config.proxy
    ports = {port["name"]: port["containerPort"] for port in container_of(resources)["ports"]}
    assert ports.pop("admin") == config.admin.listen.port
    assert ports.pop("bootstrap") == proxy.listen.port
    if proxy.tls_sni_pattern is None:
        first = proxy.broker_id_min
        assert ports == {f"broker-{number}": proxy.broker_port_start + number - first for number in BROKERS}
    else:
        assert ports == {}, "one port for all brokers"
    public, headless = resources["Service"]
    named = {port["name"]: (port["port"], port["targetPort"]) for port in public["spec"]["ports"]}
    assert named == {name: (port, name) for name, port in {"bootstrap": proxy.listen.port, **ports}.items()}
    assert resources["StatefulSet"][0]["spec"]["serviceName"] == headless["metadata"]["name"]


def test_clients_in_the_cluster_are_told_the_service(tmp_path: Path) -> None:
    resources = resources_of((FOLDER / "tidegate.yaml").read_text("utf-8"))
    service = resources["Service"][0]["metadata"]
    assert loaded(resources, tmp_path).proxy.advertised_host == f"{service['name']}.{service['namespace']}.svc"


def test_each_name_that_clients_are_told_has_a_route_and_a_certificate(tmp_path: Path) -> None:
    resources = resources_of((FOLDER / "tidegate-sni.yaml").read_text("utf-8"))
    proxy = loaded(resources, tmp_path).proxy
    assert proxy.tls_sni_pattern is not None
    (gateway,), (certificate,) = resources["Gateway"], resources["Certificate"]
    (listener,) = gateway["spec"]["listeners"]
    assert (listener["port"], listener["tls"]) == (proxy.advertised_port_start, {"mode": "Passthrough"})
    hosts = {"tidegate.example.org", *(proxy.tls_sni_pattern.replace("$(nodeId)", str(number)) for number in BROKERS)}
    assert set(certificate["spec"]["dnsNames"]) == hosts
    backend = {"name": resources["Service"][0]["metadata"]["name"], "port": proxy.listen.port}
    routes = [route["spec"] for route in resources["TLSRoute"]]
    assert {host for route in routes for host in route["hostnames"]} == hosts
    assert all(len(route["hostnames"]) == 1 for route in routes)
    assert all(route["rules"] == [{"backendRefs": [backend]}] for route in routes)
    parent = {"name": gateway["metadata"]["name"], "sectionName": listener["name"]}
    assert all(route["parentRefs"] == [parent] for route in routes)


def test_it_waits_longer_than_the_drain(resources: Resources, tmp_path: Path) -> None:
    proxy = loaded(resources, tmp_path).proxy
    drain_s = (proxy.drain_delay_ms + proxy.drain_timeout_ms) / 1000
    assert pod_of(resources)["terminationGracePeriodSeconds"] >= SNAPSHOT_S + drain_s
    # A sleep in preStop would leave /readyz at 200: the delay stands in for it.
    assert "lifecycle" not in container_of(resources)
    assert proxy.drain_delay_ms >= 5000


def test_it_runs_the_image_as_its_own_user_on_a_read_only_root(resources: Resources) -> None:
    instructions = docker_instructions(ROOT / "deploy" / "Dockerfile")
    user = next(rest for word, rest in instructions if word == "USER")
    security, container = pod_of(resources)["securityContext"], container_of(resources)
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/var/cache/tidegate", "/tmp"}
    assert container["args"] == yaml.safe_load(dict(instructions)["CMD"])


# --- the values that CI has ---

CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


@pytest.fixture(scope="module")
def rendered_ci() -> Mapping[str, str]:
    return {
        path.stem.removesuffix("-values"): template("tidegate", CHART, "--namespace", "kafka", "--values", str(path))
        for path in CI_VALUES
    }


@pytest.mark.needs("helm", "kubeconform")
def test_ci_values_conform_and_are_loaded(rendered_ci: Mapping[str, str], tmp_path: Path) -> None:
    assert rendered_ci
    for version in VERSIONS:
        conforms("\n---\n".join(rendered_ci.values()), version)
    for text in rendered_ci.values():
        loaded(resources_of(text), tmp_path)


@pytest.mark.needs("helm")
def test_a_pod_asks_for_a_core_for_each_worker_and_has_what_is_added(rendered_ci: Mapping[str, str]) -> None:
    plain, placed = (resources_of(rendered_ci[name]) for name in ("plain", "placed"))
    assert container_of(plain)["resources"]["requests"]["cpu"] == "1"
    assert container_of(placed)["resources"]["requests"]["cpu"] == "4"
    assert set(pod_of(placed)["affinity"]) == {"nodeAffinity"}
    assert {each["name"] for each in container_of(placed)["env"]} == {"HTTPS_PROXY", "TIDEGATE_LOG_LEVEL"}
    mounts = {mount["name"] for mount in container_of(placed)["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in placed["StatefulSet"][0]["spec"]["volumeClaimTemplates"]}
    assert mounts == {volume["name"] for volume in pod_of(placed)["volumes"]} | claims


@pytest.mark.needs("helm")
def test_rules_and_dashboard_are_those_of_the_tree(rendered_ci: Mapping[str, str]) -> None:
    resources = resources_of(rendered_ci["monitored"])
    text = (ROOT / "deploy/prometheus/tidegate-rules.yml").read_text("utf-8")
    # A ServiceMonitor's job is the name of its Service.
    (job,) = (each["metadata"]["name"] for each in resources["Service"] if each["spec"].get("clusterIP") == "None")
    assert resources["PrometheusRule"][0]["spec"] == yaml.safe_load(text.replace('job="tidegate"', f'job="{job}"'))
    (found,) = (each for each in resources["ConfigMap"] if each["metadata"]["labels"].get("grafana_dashboard") == "1")
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/tidegate-dashboard.json").read_text("utf-8"))
    assert [json.loads(content) for content in found["data"].values()] == [dashboard]


class Peer(NamedTuple):
    """A pod that connects; outside of the cluster there is no namespace."""

    namespace: str | None
    labels: Mapping[str, str] = {}


def admits(policy: Any, port: str, peer: Peer) -> bool:
    """Return whether the policy lets the peer connect to the port. A rule without peers is for everyone."""
    return any(
        port in (each["port"] for each in rule["ports"])
        and ("from" not in rule or any(_is_meant(each, policy["metadata"]["namespace"], peer) for each in rule["from"]))
        for rule in policy["spec"]["ingress"]
    )


def _is_meant(selector: Any, own_namespace: str, peer: Peer) -> bool:
    assert set(selector) <= {"podSelector", "namespaceSelector"}
    if peer.namespace is None:
        return False
    if "namespaceSelector" in selector:
        named = selector["namespaceSelector"]["matchLabels"].items()
        if not named <= {"kubernetes.io/metadata.name": peer.namespace}.items():
            return False
    elif peer.namespace != own_namespace:
        return False
    wanted: dict[str, str] = selector.get("podSelector", {}).get("matchLabels", {})
    return wanted.items() <= peer.labels.items()


@pytest.mark.needs("helm")
@pytest.mark.parametrize(("name", "prometheus"), [("plain", "monitoring"), ("monitored", "observability")])
def test_the_network_has_kafka_for_all_and_metrics_for_few(
    rendered_ci: Mapping[str, str], name: str, prometheus: str
) -> None:
    resources = resources_of(rendered_ci[name])
    (policy,), container = resources["NetworkPolicy"], container_of(resources)
    labels = resources["StatefulSet"][0]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress"], "brokers, the store and DNS are reached as before"
    own, scraper, other, outside = Peer("kafka"), Peer(prometheus), Peer("shop", {"app": "x"}), Peer(None)
    for port in (each["name"] for each in container["ports"]):
        admitted = [admits(policy, port, peer) for peer in (own, scraper, other, outside)]
        assert admitted == ([True, True, False, False] if port == "admin" else [True] * 4), port


@pytest.mark.needs("helm")
def test_probes_come_from_the_node_which_no_policy_keeps_out(rendered_ci: Mapping[str, str]) -> None:
    """A kubelet asks pods of its own node alone, at the pod's address unless a probe names a host. What comes from a
    pod's own node is let in whatever policies say: Kubernetes's "Network Policies" has it so."""
    for text in rendered_ci.values():
        resources = resources_of(text)
        assert "hostNetwork" not in pod_of(resources)
        probes = [probe for name, probe in container_of(resources).items() if name.endswith("Probe")]
        assert len(probes) == 3
        for probe in probes:
            assert probe["httpGet"].keys() == {"path", "port"}
            assert probe["httpGet"]["port"] in {port["name"] for port in container_of(resources)["ports"]}


# --- every combination of values ---

ISSUER = {"enabled": True, "issuer": {"name": "1"}}
GATEWAYS: tuple[dict[str, object], ...] = (
    {"name": "n", "namespace": "y", "sectionName": "0x1"},  # what YAML would take for something else than text
    {"name": "edge"},
    {"name": "edge", "className": "1e3"},
)
PEERS = {"clients": [{"podSelector": {}}], "monitoring": [{"namespaceSelector": {}}], "egress": [{}]}
TLS: tuple[Mapping[str, object], ...] = (
    {},
    {"tls": {"enabled": True, "secretName": "tidegate-tls"}},
    {"tls": ISSUER},
    {"tls": ISSUER, "sni": {"enabled": True}},
    *({"tls": ISSUER, "sni": {"enabled": True, "gateway": gateway}} for gateway in GATEWAYS),
)
CHOICES: tuple[tuple[Mapping[str, object], ...], ...] = (
    TLS,
    tuple({"cache": {"volume": volume, "storageClassName": "1"}} for volume in ("claim", "emptyDir", "none")),
    tuple({"antiAffinity": kind, "zoneSpread": kind != "none"} for kind in ("preferred", "required", "none")),
    ({"networkPolicy": {"enabled": False}}, {}, {"networkPolicy": PEERS}),
    (
        {"serviceMonitor": {"enabled": True, "labels": {"release": "1"}}},
        {"podMonitor": {"enabled": True, "labels": {"release": "1"}}, "workers": 4},
    ),
    (
        {"podDisruptionBudget": {"enabled": False}, "serviceAccount": {"create": True, "annotations": {"a/b": "1"}}},
        {
            "serviceAccount": {"name": "1"},
            "image": {"repository": "r:1/t", "tag": "1", "pullSecrets": ["1"]},
            "nodeSelector": {"a": "1"},
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "1",
            "service": {"type": "LoadBalancer", "annotations": {"a/b": "1"}},
            "listener": {"port": 443, "advertisedHost": "tidegate.example.org"},
            "podLabels": {"a": "1"},
            "podAnnotations": {"a": "1"},
            "brokers": [103, 101, 200],
            "memory": {"maxMiB": 4096},
            "restartOnChange": False,
            "extraEnv": [{"name": "LANG", "value": "1"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "affinity": {"podAffinity": {}},
            "resources": {"cpu": "1500m"},
        },
    ),
)
"""One of each row; all products of these are rendered."""


def combinations() -> Iterator[dict[str, Any]]:
    example = yaml.safe_load((FOLDER / "values.yaml").read_text("utf-8"))
    properties = {**example["properties"], "catalog.segments.max": 12345678, "proxy.protocol": False}
    for chosen in product(*CHOICES):
        values: dict[str, Any] = {"properties": properties, "environmentSecrets": ["tidegate-s3"]}
        for part in chosen:
            values |= part
        yield values


def rendered_together(values: Mapping[str, object], folder: Path) -> str:
    """One run of Helm for many values: the chart is another's part under many names."""
    part = {"name": "tidegate", "version": yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["version"]}
    whole = {"apiVersion": "v2", "name": "all", "version": "0.1.0"}
    parts = [{**part, "alias": name} for name in values]
    (folder / "charts").mkdir()
    (folder / "charts" / "tidegate").symlink_to(CHART)
    (folder / "Chart.yaml").write_text(json.dumps({**whole, "dependencies": parts}))
    (folder / "values.yaml").write_text(json.dumps(values))
    return template("tidegate", folder, "--namespace", "kafka")


def conforms(text: str, version: str) -> None:
    """Nothing is skipped: a kind without a schema is an error."""
    command = [str(KUBECONFORM), "-strict", "-kubernetes-version", version]
    for folder in (f"v{version}", "custom"):
        command += ["-schema-location", f"{KUBERNETES_SCHEMAS / folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:2000], done.stderr[:2000]) == (0, "", "")


def check_combinations(chosen: list[dict[str, Any]], folder: Path) -> None:
    values = {f"c{number}": each for number, each in enumerate(chosen)}
    text = rendered_together(values, folder)
    for version in VERSIONS:
        conforms(text, version)
    by_name: dict[str, list[str]] = {name: [] for name in values}
    for document in f"\n{text}".split("\n---\n# Source: all/charts/")[1:]:
        by_name[document.partition("/")[0]].append("# " + document)
    for name, documents in by_name.items():
        check_one(values[name], resources_of("\n---\n".join(documents)), folder)


def check_one(values: dict[str, Any], resources: Resources, folder: Path) -> None:
    """The resources that were asked for are there and agree with the configuration."""
    kinds = {"ConfigMap", "Service", "StatefulSet"}
    kinds |= {kind for kind, key in SWITCHES.items() if values.get(key, {}).get("enabled", key in SWITCHED_ON)}
    gateway = values.get("sni", {}).get("gateway", {})
    kinds |= {kind for kind, key in (("TLSRoute", "name"), ("Gateway", "className")) if key in gateway}
    kinds |= {"Certificate"} if "issuer" in values.get("tls", {}) else set()
    kinds |= {"ServiceAccount"} if values["serviceAccount"].get("create") else set()
    assert set(resources) == kinds
    config = loaded(resources, folder)
    workers = values.get("workers", 1)
    limit_mib = config.memory_bytes_max // 2**20 + BESIDE_MIB * (workers + 1 if workers > 1 else 1)
    assert container_of(resources)["resources"]["limits"] == {"memory": f"{limit_mib}Mi"}
    cpu = values.get("resources", {}).get("cpu", str(workers))
    assert container_of(resources)["resources"]["requests"] == {"cpu": cpu, "memory": f"{limit_mib}Mi"}
    assert (config.cache.path is None) == (values["cache"]["volume"] == "none")
    ports = {port["name"]: port["containerPort"] for port in container_of(resources)["ports"]}
    start, first = config.proxy.broker_port_start, config.proxy.broker_id_min
    brokers = {} if "sni" in values else {f"broker-{n}": start + n - first for n in values.get("brokers", BROKERS)}
    assert ports == {"admin": 9464, "bootstrap": config.proxy.listen.port, **brokers}


SWITCHES = {
    "NetworkPolicy": "networkPolicy",
    "PodDisruptionBudget": "podDisruptionBudget",
    "PodMonitor": "podMonitor",
    "ServiceMonitor": "serviceMonitor",
}
SWITCHED_ON = ("networkPolicy", "podDisruptionBudget")


@pytest.mark.needs("helm", "kubeconform")
def test_combinations_conform_and_are_loaded(tmp_path: Path) -> None:
    """A few of them, in which every two choices meet."""
    check_combinations(list(combinations())[::19], tmp_path)


WRONG = {
    "replica=3": "additional properties 'replica' not allowed",
    "properties.upstream\\.bootstrap\\.servers=null": "/properties/upstream.bootstrap.servers': got null",
    "properties.proxy\\.listen=0.0.0.0:1": "proxy.listen is made from the chart's other values",
    "properties.log\\.level=ä": "log.level holds a line end or a character beyond ASCII",
    "sni.enabled=true": "sni.enabled needs tls.enabled",
    "sni.brokerHost=broker": "does not match pattern",
    "tls.enabled=true": "tls.enabled needs tls.secretName or tls.issuer.name",
    "sni.gateway.name=edge": "a port for each broker does not fit Gateway API",
    "cache.sizeGiB=40": "cache.sizeGiB: too small for cache.diskGiB",
    "brokers={1,60000}": "brokers: broker-60000 would have port 79092",
    "listener.port=9462": "listener.port: broker-2 would have port 9464",
    "properties.audit\\.log=/var/log/audit.jsonl": "audit.log: /var/log/audit.jsonl is on the pod's read-only",
    "extraEnv[0].name=TIDEGATE_PROXY_LISTEN": "TIDEGATE_PROXY_LISTEN is made from the chart's other values",
    "prometheusRule.enabled=true": "prometheusRule.enabled needs podMonitor or serviceMonitor",
    "podMonitor.enabled=true,serviceMonitor.enabled=true": "each would be there twice",
}


@pytest.mark.needs("helm")
def test_wrong_values_are_refused_by_name() -> None:
    for setting, message in WRONG.items():
        with pytest.raises(subprocess.CalledProcessError) as caught:
            template("tidegate", CHART, "--values", str(FOLDER / "values.yaml"), "--set", setting)
        assert message in caught.value.stderr, setting


@pytest.mark.needs("helm")
def test_an_audit_log_is_rendered_where_it_can_be_written() -> None:
    # Failed before: any path was rendered, and no pod started.
    for place in ("stdout", "/var/cache/tidegate/audit.jsonl", "/tmp/audit.jsonl"):
        values = ("--values", str(FOLDER / "values.yaml"), "--set", f"properties.audit\\.log={place}")
        assert f"audit.log={place}" in template("tidegate", CHART, *values)


def test_the_charts_versions_are_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert f'\nversion = "{chart["appVersion"]}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert chart["kubeVersion"] == f">={VERSIONS[0]}-0"
