"""docs/getting-started.md and docs/getting-started-secured.md, run command by command against real brokers.

Replaced are only the values that the guide has its reader fill in. The package is a wheel of this tree, installed by
the guide's own command into the guide's own environment; its dependencies are those of the running tests, so that
nothing is fetched. Kafka's tools are started by scripts that run what Kafka's own scripts run.
"""

import os
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.test_operations_acls import RIGHTS
from tests.support.built import wheel_of_the_tree
from tests.support.kafka import TieredTopic
from tests.support.needs import JARS, ROOT
from tests.support.runnable_docs import read_guide, running
from tests.support.secured_kafka import READ, SecuredKafka, password
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST, SUPER_USER

pytestmark = [pytest.mark.integration, pytest.mark.needs("curl", "java", "kafka", "kcat")]

GUIDE = ROOT / "docs" / "getting-started.md"
SECURED = GUIDE.with_name("getting-started-secured.md")
NODE_ID = 1
KAFKA_TOOLS = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


def test_every_command_does_what_the_guide_says(kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path) -> None:
    guide = read_guide(GUIDE.read_text("utf-8"))
    values = {
        "BOOTSTRAP": kafka.bootstrap_servers,
        "SERVER_PROPERTIES": str(kafka.server_properties_path(NODE_ID)),
        "TOPIC": tiered.name,
        "PACKAGE": str(wheel_of_the_tree(tmp_path)),
        "KAFKA": str(_kafka_tools(tmp_path / "kafka")),
        "PROXY": f"{HOST}:{_port_before_those_of([NODE_ID])}",
        "ADMIN": f"{HOST}:{free_port()}",
    }
    assert values.keys() == guide.variables.keys()
    before = kafka.broker(NODE_ID).remote_fetch_requests(tiered.name)
    with running(guide, folder=_reader(tmp_path), values=values, environment=_environment(tmp_path)) as shell:
        for command, printed in shell.follow():
            if "served_tier_bytes" in command.text:
                assert min(_numbers(printed)) > 0, printed
            if "tidegate_gets_total" in command.text:
                assert sum(_numbers(printed)) > 0, printed
                # Here the guide says that the brokers were not asked; what follows reads from them on purpose.
                assert kafka.broker(NODE_ID).remote_fetch_requests(tiered.name) == before
    assert len((_reader(tmp_path) / "records.txt").read_bytes().splitlines()) == 1000


@pytest.fixture
def administrator(operators: SecuredKafka, tmp_path: Path) -> Path:
    """A super user's properties for Kafka's tools."""
    operators.set_scram_password(SUPER_USER, password(SUPER_USER))
    path = tmp_path / "admin.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="{SUPER_USER}" password="{password(SUPER_USER)}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={operators.certificate}\n"
    )
    return path


def test_the_page_for_secured_clusters_does_what_it_says(
    operators: SecuredKafka, administrator: Path, tmp_path: Path
) -> None:
    """Three brokers, ids from 1 on. Their own file has stores of Java's and a super user for its metadata clients."""
    guide = read_guide(SECURED.read_text("utf-8"))
    values = {
        "BOOTSTRAP": operators.address("SASL_SSL"),
        "BROKERS_CA": str(operators.certificate),
        "SERVER_PROPERTIES": str(operators.cluster.server_properties_path(NODE_ID)),
        "ADMIN_PROPERTIES": str(administrator),
        "KAFKA": str(_kafka_tools(tmp_path / "kafka")),
        "TOPIC": operators.topic.name,
        "HOST": HOST,
        "PORT": str(_port_before_those_of([broker.node_id for broker in operators.cluster.brokers])),
        "ADMIN": f"{HOST}:{free_port()}",
        "CERTIFICATE": str(operators.certificate),
        "KEY": str(operators.key),
        "CLIENTS_CA": str(operators.certificate),
        "PRINCIPAL": "checker",
        "UPSTREAM_PASSWORD": password("checker"),
        "READER": "reader",
        "READER_PASSWORD": password("reader"),
        "OUTSIDER": "outsider",
        "OUTSIDER_PASSWORD": password("outsider"),
    }
    assert values.keys() == guide.variables.keys()
    _link_command(_reader(tmp_path))
    operators.allow("reader", READ, operators.topic.name)
    environment = _environment(tmp_path)
    try:
        with running(guide, folder=_reader(tmp_path), values=values, environment=environment) as shell:
            for command, printed in shell.follow():
                if "served_tier_bytes" in command.text:
                    assert min(_numbers(printed)) > 0, printed
    finally:
        operators.withdraw("reader", READ, operators.topic.name)
        for operation, topic in RIGHTS:
            operators.withdraw("checker", operation, topic)


def _reader(folder: Path) -> Path:
    """Return where the guide's reader works."""
    reader = folder / "reader"
    reader.mkdir(exist_ok=True)
    return reader


def _link_command(folder: Path) -> None:
    """The command of the running tests, where the guide installs it."""
    command = folder / "venv" / "bin" / "tidegate"
    command.parent.mkdir(parents=True)
    command.symlink_to(Path(sys.executable).with_name("tidegate"))


def _numbers(printed: str) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in printed.splitlines()]


def _port_before_those_of(node_ids: Sequence[int]) -> int:
    """By default broker N listens at port + 1 + N."""
    while True:
        port = free_port()
        try:
            for node_id in node_ids:
                _claim(port + 1 + node_id)
        except OSError:
            continue
        return port


def _claim(port: int) -> None:
    """Fails if somebody listens there now; nobody else of this run is given a port next to a claimed one for sure."""
    with socket.socket() as probe:
        probe.bind((HOST, port))


def _kafka_tools(folder: Path) -> Path:
    """Kafka's `bin` with the scripts that the guides name."""
    (folder / "bin").mkdir(parents=True)
    for name, tool in KAFKA_TOOLS.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -Xmx128m -cp "{JARS}/*" {tool} "$@"\n')
        script.chmod(0o755)
    return folder


def _environment(folder: Path) -> dict[str, str]:
    """Return what a reader's shell has; pip finds the dependencies of the running tests and no index."""
    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "tidegate" not in entry.name.lower():
            (dependencies / entry.name).symlink_to(entry)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(_reader(folder)),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PYTHONPATH": str(dependencies),
        "PIP_NO_INDEX": "1",
    }
