"""The page for Strimzi: its resources are Strimzi's, and the chart's values say the same as they do."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.support.needs import ROOT, STRIMZI_JARS
from tools.kubernetes_manifests import CHART

PAGE = (ROOT / "docs" / "operate" / "strimzi.md").read_text("utf-8")
VALUES: Any = yaml.safe_load((CHART / "ci" / "strimzi-values.yaml").read_text("utf-8"))
RIGHTS = {("__remote_log_metadata", "Read"), ("__remote_log_metadata", "DescribeConfigs"), ("*", "Describe")}


def resources() -> dict[str, Any]:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return {found["kind"]: found for block in blocks for found in yaml.safe_load_all(block)}


def complaints(documents: list[Any]) -> list[str]:
    source = ROOT / "tests" / "deploy" / "strimzi" / "Conforms.java"
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{STRIMZI_JARS}/*", str(source)]
    done = subprocess.run(command, input=json.dumps(documents), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.needs("java", "strimzi")
def test_the_resources_are_as_strimzis_model_has_them_and_wrong_ones_are_seen() -> None:
    user = json.dumps(resources()["KafkaUser"])
    acls = json.dumps(resources()["KafkaUser"]["spec"]["authorization"]["acls"])
    wrong = {
        ('"acls"', '"rules"'): 'Unrecognized field "rules"',
        ('"Describe"', '"Descibe"'): '"Descibe" is not taken',
        ('"scram-sha-512"', '"scram"'): "Could not resolve type id 'scram'",
        ('/v1"', '/v0"'): "no version kafka.strimzi.io/v0",
        ('"resource": {"type": "topic", ', '"resource": {'): "missing type id property 'type'",
        (f', "acls": {acls}', ""): "acls: is required",
    }
    assert all(old in user for old, _ in wrong)
    right = [*resources().values()]
    found = complaints([*right, *(json.loads(user.replace(*change)) for change in wrong)])
    assert len(found) == len(wrong), found
    for line, message in zip(found, wrong.values(), strict=True):
        assert message in line


def test_values_say_what_the_cluster_says() -> None:
    cluster, pool, user = (resources()[kind] for kind in ("Kafka", "KafkaNodePool", "KafkaUser"))
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    (listener,) = cluster["spec"]["kafka"]["listeners"]
    properties = VALUES["properties"]
    host = f"{name}-kafka-bootstrap.{namespace}.svc:{listener['port']}"
    assert properties["upstream.bootstrap.servers"] == host
    manager = cluster["spec"]["kafka"]["tieredStorage"]["remoteStorageManager"]
    assert properties["remote.log.storage.manager.class.name"] == manager["className"]
    tier = {key.removeprefix("rsm.config."): value for key, value in properties.items() if key.startswith("rsm.")}
    assert tier == manager["config"]
    assert VALUES["fileSecrets"] == [f"{name}-cluster-ca-cert", user["metadata"]["name"]]
    assert properties["upstream.sasl.username"] == user["metadata"]["name"]
    assert properties["upstream.sasl.mechanism"].lower() == user["spec"]["authentication"]["type"]
    first = int(pool["metadata"]["annotations"]["strimzi.io/next-node-ids"].strip("[]").partition("-")[0])
    assert VALUES["brokers"] == [first + number for number in range(pool["spec"]["replicas"])]


def test_the_user_has_the_rights_that_the_page_about_rights_names() -> None:
    acls = resources()["KafkaUser"]["spec"]["authorization"]["acls"]
    assert {(acl["resource"]["name"], each) for acl in acls for each in acl["operations"]} == RIGHTS
    secure = (ROOT / "docs" / "operate" / "secure.md").read_text("utf-8")
    lines = re.findall(r"kafka-acls\.sh .*User:tidegate --operation (\w+) --topic '?([\w*]+)", secure)
    assert {(topic, operation) for operation, topic in lines} == RIGHTS
