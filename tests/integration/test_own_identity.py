"""Tidegate's own identity: by SCRAM and over TLS it gets ready and serves; what it lacks, `check` says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.process import exit_codes
from tests.support.digests import read_with_confluent
from tests.support.needs import ROOT
from tests.support.raw_client import RawClient
from tests.support.secured_kafka import READ, SecuredKafka, password
from tests.support.tidegate import own_tidegate
from tools.demo.kafka_properties import properties_text

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

CHECK_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def reader(guarded: SecuredKafka) -> Iterator[str]:
    guarded.allow("reader", READ, guarded.topic.name)
    yield "reader"
    guarded.withdraw("reader", READ, guarded.topic.name)


@pytest.mark.parametrize(("mechanism", "protocol"), [("SCRAM-SHA-256", "SASL_PLAINTEXT"), ("PLAIN", "SASL_SSL")])
def test_it_becomes_ready_and_serves_the_tier_over_tls(
    mechanism: str, protocol: str, guarded: SecuredKafka, reader: str
) -> None:
    """The clients' side is TLS each time, the brokers' side as the listener is; the client's sign-in is its own."""
    properties = guarded.identity("tidegate", mechanism, protocol)
    properties["proxy.tls.certificate.file"] = str(guarded.certificate)
    properties["proxy.tls.key.file"] = str(guarded.key)
    name, ends = guarded.topic.name, {0: guarded.topic.records}
    with own_tidegate(guarded.cluster, properties, bootstrap_servers=guarded.address(protocol)) as running:
        with RawClient(*running.address, ssl_context=guarded.trusting) as client:
            assert client.sasl_plain(reader, password(reader)) == 0
            result = client.fetch(13, [(name, client.topic_id(name), 0, 0, 1 << 20)])
            assert (result.partitions[0].error_code, bool(result.partitions[0].records)) == (0, True)
            assert running.metric("tidegate_served_tier_bytes_total") == len(result.partitions[0].records)
        signing_in = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": reader,
            "sasl.password": password(reader),
            "ssl.ca.location": str(guarded.certificate),
        }
        through = read_with_confluent(running.bootstrap_servers, name, ends, "read_uncommitted", signing_in)
        assert password("tidegate") not in running.log()
    assert through == read_with_confluent(guarded.cluster.bootstrap_servers, name, ends, "read_uncommitted")


def test_checks_exit_code_is_the_commands(guarded: SecuredKafka, tmp_path: Path) -> None:
    for user, code in (("tidegate", exit_codes.DONE), ("outsider", exit_codes.FOUND_WRONG)):
        file = properties_file(guarded, tmp_path, user, "SCRAM-SHA-256", "SASL_SSL")
        command = [sys.executable, "-m", "proxy", "check", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=CHECK_TIMEOUT_S, check=False)
        assert done.returncode == code, done.stdout.decode() + done.stderr.decode()


def properties_file(guarded: SecuredKafka, folder: Path, user: str, mechanism: str, protocol: str) -> Path:
    properties = guarded.identity(user, mechanism, protocol)
    properties["broker.config"] = str(guarded.cluster.server_properties_path(1))
    file = folder / "tidegate.properties"
    file.write_text(properties_text(properties), encoding="utf-8")
    return file
