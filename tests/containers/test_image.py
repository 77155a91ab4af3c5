"""The image of deploy/Dockerfile as a container: who it runs as, what it can write, and how it ends."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from protocol.client.messages import PRODUCE, Values
from tests.support.containers import Containers
from tests.support.fake_kafka import FakeKafka
from tests.support.raw_client import RawClient
from tests.support.segments import topic_partition
from tests.support.serving import without_kafka
from tests.support.socket_broker import socket_broker
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import properties_text

pytestmark = [pytest.mark.needs("containers", "docker-compose"), pytest.mark.integration]

FILE = "/etc/tidegate/tidegate.properties"
UID = "10001"


@dataclass(frozen=True, slots=True)
class Served:
    """A container that serves in front of one broker of the test's."""

    name: str
    admin: str
    broker_port: int
    asked: threading.Event
    """The broker has a Produce request."""
    let_go: threading.Event
    """It answers once this is set."""

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
        return text


@contextmanager
def served(containers: Containers, image: str, folder: Path) -> Iterator[Served]:
    """Read-only, in this machine's network, as the page for containers starts it."""
    kafka = FakeKafka()
    broker = kafka.add(1, "127.0.0.1")
    kafka.add_log(topic_partition("orders"))
    with socket_broker(broker) as listening:
        kafka.addresses[1] = listening.address
        one = Served("served", f"127.0.0.1:{free_port()}", free_port(), threading.Event(), threading.Event())

        def produced(request: Any) -> Values:
            one.asked.set()
            one.let_go.wait()
            return kafka.produce(1, request)

        broker.on(PRODUCE, produced)
        properties = {
            **without_kafka(Path("/")),
            "upstream.bootstrap.servers": "{}:{}".format(*listening.address),
            "proxy.listen": f"127.0.0.1:{free_port()}",
            "proxy.broker.ports": f"1:{one.broker_port}",
            "admin.listen": one.admin,
            "cache.path": "/var/cache/tidegate",
        }
        file = folder / "tidegate.properties"
        file.write_text(properties_text(properties))
        file.chmod(0o644)
        plain = ("--detach", "--name", one.name, "--network", "host", "--read-only", "--tmpfs", "/tmp")
        (folder / "tier" / "kafka-tiered-storage").mkdir(parents=True)
        mounts = ("--volume", f"{file}:{FILE}:ro", "--volume", f"{folder / 'tier'}:/tier:ro")
        containers.podman("run", *plain, *mounts, image)
        try:
            wait_until(lambda: "ready: " in containers.log(one.name), "ready", timeout_s=60)
            yield one
        finally:
            one.let_go.set()
            containers.podman("rm", "--force", "--time", "0", one.name)


def test_it_serves_as_nobody_in_particular_and_writes_to_its_cache_alone(
    containers: Containers, tidegate_image: str, tmp_path: Path
) -> None:
    with served(containers, tidegate_image, tmp_path) as one:
        assert one.page("/livez")
        assert json.loads(one.page("/readyz"))["ready"]
        status = containers.podman("exec", one.name, "cat", "/proc/1/status")
        ids = {line.split(":")[0]: set(line.split()[1:]) for line in status.splitlines() if line[:3] in {"Uid", "Gid"}}
        assert ids == {"Uid": {UID}, "Gid": {UID}}
        containers.podman("healthcheck", "run", one.name)
        for folder, code in (("/", "1"), ("/opt/tidegate", "1"), ("/etc/tidegate", "1"), ("/var/cache/tidegate", "0")):
            tried = f"touch {folder}/of-mine 2>/dev/null; echo $?"
            assert containers.podman("exec", one.name, "sh", "-c", tried).strip() == code, folder


def test_a_stop_lets_an_answer_under_way_arrive(containers: Containers, tidegate_image: str, tmp_path: Path) -> None:
    with served(containers, tidegate_image, tmp_path) as one, RawClient("127.0.0.1", one.broker_port) as client:
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(client.produce("orders", 0, b"")))
        asking.start()
        one.asked.wait()
        stopping = containers.start("stop", "--time", "60", one.name)
        wait_until(lambda: '"draining"' in containers.log(one.name), "the drain has begun")
        assert not answers
        one.let_go.set()
        asking.join()
        assert answers == [(0, 0)]
        assert stopping.wait() == 0
        assert containers.end_of(one.name) == "0"


def test_pips_settings_of_this_machine_are_in_no_layer(containers: Containers, tidegate_image: str) -> None:
    find = ["/", "-xdev", "(", "-name", "pip.conf", "-o", "-path", "*/run/secrets/*", ")", "-size", "+0"]
    run = ("run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "find")
    assert not containers.podman(*run, tidegate_image, *find)
    assert str(containers.folder) not in containers.podman("history", "--no-trunc", tidegate_image)


def test_it_has_every_stores_client_and_neither_tests_nor_an_installer(
    containers: Containers, tidegate_image: str
) -> None:
    """It had that of S3 alone, and nothing in it can install another."""
    clients = "azure.identity, azure.storage.blob, boto3, confluent_kafka, google.cloud.storage, requests, socks"
    unwanted = ("tests", "benchmarks", "tools", "pip", "setuptools", "pytest")
    program = f"import {clients}, importlib.util as u; print([n for n in {unwanted} if u.find_spec(n)])"
    run = ("run", "--rm", "--network", "none", "--workdir", "/tmp", "--entrypoint", "python")
    assert containers.podman(*run, tidegate_image, "-c", program).strip() == "[]"
