"""Whose identity reads the metadata topic, with a broker that has an authorizer: `metadata.identity`, and what `check`
says of it. `tidegate` may read that topic, `checker` may not."""

import io
from pathlib import Path

import pytest

from storage.config.security import PLAIN_MODULE
from tests.support.secured_kafka import METADATA_TOPIC, READ, WRITE, SecuredKafka, password
from tests.support.tidegate import own_tidegate
from tests.support.waiting import wait_until
from tidegate import exit_codes
from tidegate.commands import check
from tidegate.config import load
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST, properties_text

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

COMMON = "remote.log.metadata.common.client."
PRODUCER = "remote.log.metadata.producer."


def java_identity(prefix: str, user: str) -> dict[str, str]:
    return {
        f"{prefix}security.protocol": "SASL_PLAINTEXT",
        f"{prefix}sasl.mechanism": "PLAIN",
        f"{prefix}sasl.jaas.config": f'{PLAIN_MODULE} required username="{user}" password="{password(user)}";',
    }


def broker_file(guarded: SecuredKafka, folder: Path) -> Path:
    """The broker's own, with an identity of another user for its metadata clients."""
    file = folder / "server.properties"
    text = guarded.cluster.server_properties_path(1).read_text() + properties_text(java_identity(COMMON, "checker"))
    file.write_text(text)
    return file


def checked(guarded: SecuredKafka, folder: Path, **more: str) -> tuple[int, str]:
    properties = {
        **guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT"),
        "broker.config": str(broker_file(guarded, folder)),
        "proxy.listen": f"{HOST}:0",
        "admin.listen": f"{HOST}:{free_port()}",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    file = folder / "tidegate.properties"
    file.write_text(properties_text(properties))
    out = io.StringIO()
    code = check.run(load(file, {}), out)
    return code, out.getvalue()


def test_check_tests_the_identity_that_was_chosen(guarded: SecuredKafka, tmp_path: Path) -> None:
    # Failed before: the rights of the broker's identity alone were tested, and nothing named it.
    code, text = checked(guarded, tmp_path, metadata_identity="upstream")
    assert code == exit_codes.DONE, text
    assert f"ok      {METADATA_TOPIC} is read as User:tidegate, by SASL_PLAINTEXT and PLAIN (upstream.sasl.user" in text
    for chosen in ({"metadata_identity": "broker"}, {}):
        code, text = checked(guarded, tmp_path, **chosen)
        assert code == exit_codes.FOUND_WRONG, text
        assert f"{METADATA_TOPIC} is read as User:checker" in text
        assert f"{COMMON}sasl.jaas.config, broker.config server.properties:" in text
        assert "--allow-principal User:checker --operation" in text
        assert ("warning metadata.identity is not set" in text) == (not chosen)


def test_a_serve_whose_identity_nobody_chose_complains_and_goes_on(guarded: SecuredKafka, tmp_path: Path) -> None:
    guarded.allow("checker", READ, METADATA_TOPIC)
    try:
        identity = guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT")
        properties = identity | {"broker.config": str(broker_file(guarded, tmp_path))}
        with own_tidegate(
            guarded.cluster, properties, bootstrap_servers=identity["upstream.bootstrap.servers"]
        ) as gate:
            wait_until(lambda: "metadata.identity is not set" in gate.page("/readyz"), "it says so")
    finally:
        guarded.withdraw("checker", READ, METADATA_TOPIC)


def test_who_writes_the_metadata_topic_needs_write(guarded: SecuredKafka, tmp_path: Path) -> None:
    """Failed before: the consumer's identity was asked for Write."""
    own = {"mode": "standalone", "copy.topics": guarded.topic.name, "copy.staging.path": str(tmp_path / "staging")}
    folder = tmp_path / "tier"
    folder.mkdir()
    own |= {"rsm.config.dir": str(folder), "metadata.identity": "broker"}
    own |= java_identity(COMMON, "tidegate") | java_identity(PRODUCER, "checker")
    line = f"--allow-principal User:checker --operation Write --topic {METADATA_TOPIC}"
    guarded.allow("checker", READ, METADATA_TOPIC)
    try:
        _, text = checked(guarded, tmp_path, **own)
        assert line in text, text
        guarded.allow("checker", WRITE, METADATA_TOPIC)
        assert line not in checked(guarded, tmp_path, **own)[1]
    finally:
        guarded.withdraw("checker", READ, METADATA_TOPIC)
        guarded.withdraw("checker", WRITE, METADATA_TOPIC)
