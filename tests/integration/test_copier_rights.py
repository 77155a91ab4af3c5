"""The rights of docs/standalone.md, at a broker with an authorizer: with them a copier copies, deletes and lists. Each
that is missing is named by `check`."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its re-exports are not marked as such
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.integration.test_tier_deletion import fill
from tests.support.kafka import fresh_name, own_cluster
from tests.support.needs import ROOT
from tests.support.plain_kafka import JVM_OPTIONS, WITHOUT_TIER, run_standalone
from tests.support.tier_proofs import files_of, segments_of
from tests.support.waiting import wait_until
from tidegate import exit_codes
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

USER, PASSWORD = "copier", "copier-secret"
METADATA_TOPIC = "__remote_log_metadata"
LONG_AGO_MS, RECORDS = 1_700_000_000_000, 1500
OPERATIONS = {
    name: getattr(AclOperation, words)
    for name, words in {
        "Create": "CREATE",
        "Describe": "DESCRIBE",
        "DescribeConfigs": "DESCRIBE_CONFIGS",
        "Read": "READ",
        "Write": "WRITE",
    }.items()
}
Right = tuple[str, str, str]
"""Operation, kind of resource, its name."""


@pytest.fixture(scope="module")
def guarded_plain() -> Iterator[KafkaCluster]:
    with own_cluster(properties=WITHOUT_TIER, jvm_options=JVM_OPTIONS, sasl_plain_users={USER: PASSWORD}) as cluster:
        yield cluster


def documented(topic: str) -> list[Right]:
    """The page's table for the brokers of today."""
    page = (ROOT / "docs" / "standalone.md").read_text("utf-8")
    row = r"^\| ([A-Z][A-Za-z, ]+) \| (each copied topic|topic|group|cluster)([^|]*) \|"
    rights = []
    for operations, kind, name in re.findall(row, page, re.MULTILINE):
        named = re.findall(r"`(_[a-z_]+|tidegate[a-z.-]+)`", name)
        resource = named[0] if named else {"cluster": "kafka-cluster"}.get(kind, topic)
        kind_name = {"each copied topic": "Topic"}.get(kind, kind.title())
        rights += [(each, kind_name, resource) for each in operations.split(", ") if each != "IdempotentWrite"]
    return rights


def allow(kafka: KafkaCluster, right: Right, *, takes_back: bool = False) -> None:
    operation, kind, name = right
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    resource = {"Topic": ResourceType.TOPIC, "Group": ResourceType.GROUP, "Cluster": ResourceType.BROKER}[kind]
    rule = (resource, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", OPERATIONS[operation])
    allowed = AclPermissionType.ALLOW
    asked = (
        admin.delete_acls([AclBindingFilter(*rule, allowed)])
        if takes_back
        else admin.create_acls([AclBinding(*rule, allowed)])
    )
    for future in asked.values():
        future.result(60)
    wanted = AclBindingFilter(*rule, allowed)
    wait_until(lambda: bool(admin.describe_acls(wanted).result(60)) is not takes_back, f"the broker to know of {right}")


def test_the_rights_of_the_page_are_enough_and_each_is_needed(guarded_plain: KafkaCluster, tmp_path: Path) -> None:
    kafka, topic = guarded_plain, fresh_name("guarded")
    kafka.create_topic(topic, 1, {"retention.ms": "-1"})
    fill(kafka, topic, RECORDS, LONG_AGO_MS)
    properties = {
        "upstream.bootstrap.servers": kafka.sasl_bootstrap_servers,
        "upstream.security.protocol": "SASL_PLAINTEXT",
        "upstream.sasl.mechanism": "PLAIN",
        "upstream.sasl.username": USER,
        "upstream.sasl.password": PASSWORD,
        "copy.topics": topic,
        "copy.segment.bytes": "64 KiB",
        "copy.segment.ms": "1000",
    }

    def run(command: str, *words: str, **more: str) -> str:
        own = {key.replace("_", "."): value for key, value in more.items()}
        done = run_standalone(kafka, tmp_path, command, *words, properties=properties | own)
        assert done.returncode == exit_codes.DONE, done.stdout + done.stderr
        return done.stdout

    def checked() -> str:
        return run_standalone(kafka, tmp_path, "check", properties=properties).stdout

    rights = documented(topic)
    assert len(rights) == 12
    for right in rights:
        allow(kafka, right)
    run("copy", "--once")
    copied = len(segments_of(kafka, topic)[0])
    assert copied > 5
    run("deletions hold", topic)
    run("copy", "--once", copy_retention_ms="1000", copy_delete_grace_ms="0")
    assert "an operator holds it" in run("deletions list", topic)
    assert len(files_of(kafka, topic)) == copied
    run("deletions release", topic)
    run("copy", "--once", copy_retention_ms="1000", copy_delete_grace_ms="0")
    assert files_of(kafka, topic) == {}
    assert "ACL" not in checked()
    for right in rights:
        operation, kind, name = right
        if operation == "Create" or (operation == "Describe" and kind == "Topic"):
            continue  # the topic is there; Read has Describe with it
        allow(kafka, right, takes_back=True)
        said = f"ACL {operation} on {kind}" + (f" {name} is missing" if kind != "Cluster" else "")
        wait_until(lambda said=said: said in checked(), f"`{said}` to be reported")  # type: ignore[misc]  # late
        allow(kafka, right)
