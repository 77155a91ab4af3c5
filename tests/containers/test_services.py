"""docker-compose.yml's services as containers: Tidegate and Kafka by their own Dockerfiles, the others' programs in
images that are made here under the same names. Grafana is not run: Prometheus is asked what its panels ask. Spark's
job is run by the Spark of this machine.

What differs from the published file is docker-compose.override.yml beside this one.
"""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from tests.support.compose import ComposeService
from tests.support.composed_containers import ComposedContainers, build_image, build_stand_ins
from tests.support.containers import Containers
from tests.support.needs import ROOT, SPARK_JARS
from tests.support.prometheus import RunningPrometheus, copier_names, dashboard_queries, names_in
from tests.support.runnable_docs import read_guide, running
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.needs("containers", "docker-compose", "java", "kafka", "kcat", "prometheus", "versitygw"),
    pytest.mark.integration,
]

NOT_RUN = {"grafana", "spark"}
PAGE = ROOT / "docs" / "getting-started-containers.md"
PROMETHEUS = RunningPrometheus("127.0.0.1:9090")
SCRAPED_S_MAX = 120.0
WINDOW = "10m"
EMPTY_HERE = {"First certificate to expire A": "it speaks no TLS", "Indexes B": "no index is damaged"}
"""Panels, and why the demo has nothing for them; tests/integration/test_prometheus.py has."""


@pytest.fixture(scope="module")
def demo(
    containers: Containers,
    services: Mapping[str, ComposeService],
    tidegate_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ComposedContainers]:
    """All of them, with the topic filled."""
    composed = ComposedContainers(containers, {name: services[name] for name in services.keys() - NOT_RUN})
    build_stand_ins(containers, tmp_path_factory.mktemp("programs"))
    build_image(containers, services["kafka"])
    try:
        composed.up("prometheus", "fill")
        composed.wait_completed("fill")
        yield composed
    finally:
        composed.down()


def orders(demo: ComposedContainers) -> list[str]:
    """Every record of the topic, sorted, as the compose file's head reads it."""
    command = ["kcat", "-C", "-q", "-b", "127.0.0.1:19092", "-t", "orders", "-e", "-f", "%p:%o:%k:%s\\n"]
    done = demo.call(lambda: subprocess.run(command, capture_output=True, text=True, check=True))
    return sorted(done.stdout.splitlines())


def query(demo: ComposedContainers, expression: str) -> dict[str, float]:
    return demo.call(partial(PROMETHEUS.query, expression))


def test_services_start_in_the_order_that_they_need(demo: ComposedContainers) -> None:
    order = [demo.started.index(name) for name in ("loopback", "kafka", "s3", "tidegate", "prometheus")]
    assert order == sorted(order)


def test_every_panel_has_series_once_orders_is_read_from_the_tier(demo: ComposedContainers) -> None:
    """But for the panels that are empty where one process runs and does not copy."""
    wait_until(partial(query, demo, "tidegate_ready == 1"), "Prometheus has scraped", timeout_s=SCRAPED_S_MAX)
    assert len(orders(demo)) == int(demo.services["fill"].definition["environment"]["RECORDS"])
    read = "tidegate_served_tier_bytes_total > 0"
    wait_until(partial(query, demo, read), "it was the tier", timeout_s=SCRAPED_S_MAX)
    expressions = panel_expressions()

    def empty() -> set[str]:
        return demo.call(lambda: {title for title, asked in expressions.items() if not PROMETHEUS.query(asked)})

    wait_until(lambda: empty() <= EMPTY_HERE.keys(), "every panel has series", timeout_s=SCRAPED_S_MAX)
    assert empty() == EMPTY_HERE.keys()


def panel_expressions() -> dict[str, str]:
    values = {"$__rate_interval": WINDOW, "$job": "tidegate", "$instance": ".*"}
    found = {}
    for title, asked in dashboard_queries().items():
        if not title.startswith("Workers: ") and not names_in(asked) & copier_names():
            found[title] = functools.reduce(lambda text, name: text.replace(name, values[name]), values, asked)
    return found


def test_prometheus_has_the_rules_and_the_tier_cannot_be_written_to(demo: ComposedContainers) -> None:
    """Through the S3 server, which shows a volume that is Kafka's."""
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "tidegate-rules.yml").read_text("utf-8"))
    found = demo.call(partial(PROMETHEUS.get, "rules"))
    assert {group["name"] for group in found["groups"]} == {group["name"] for group in rules["groups"]}
    keys = demo.services["s3"].definition["environment"]

    def write() -> None:
        client = boto3.client(
            "s3",
            endpoint_url="http://127.0.0.1:7070",
            region_name="us-east-1",
            aws_access_key_id=keys["ROOT_ACCESS_KEY"],
            aws_secret_access_key=keys["ROOT_SECRET_KEY"],
        )
        with contextlib.closing(client):
            client.put_object(Bucket="kafka-tiered-storage", Key="of-mine", Body=b"x")

    with pytest.raises(ClientError, match="AccessDenied"):
        demo.call(write)


@pytest.mark.needs("spark")
def test_the_spark_example_reads_every_order(
    demo: ComposedContainers, services: Mapping[str, ComposeService], tmp_path: Path
) -> None:
    """By this machine's Spark, in the network that the service shares."""
    spark = services["spark"]
    submit, *words = [spark.mounts.get(word, word) for word in spark.command]
    assert submit == "/opt/spark/bin/spark-submit"
    connector = ",".join(str(jar) for jar in sorted(SPARK_JARS.glob("*.jar")))
    program = [Path(sys.executable).with_name("spark-submit"), "--jars", connector, *words]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    said = demo.call(partial(subprocess.check_output, program, env=environment, cwd=tmp_path, text=True))
    records = int(demo.services["fill"].definition["environment"]["RECORDS"])
    cents = sum(number * 7919 % 100_000 for number in range(1, records + 1))
    assert said.splitlines()[-1] == f"orders: {records}, cents: {cents}"


def test_commands_of_the_page_print_what_it_says(demo: ComposedContainers, tmp_path: Path) -> None:
    """Those that are not Docker's; what stands for them is the fixture."""
    page = read_guide(PAGE.read_text("utf-8"))
    own = replace(page, commands=tuple(each for each in page.commands if not each.text.startswith("docker ")))
    assert {each.text.split()[0] for each in own.commands} == {"curl", "kcat"}

    def follow() -> list[str]:
        with running(own, folder=tmp_path, values={}, environment=os.environ) as shell:
            return [printed for _, printed in shell.follow()]

    assert float(demo.call(follow)[-1].split()[-1]) > 0


def test_the_data_survive_a_restart(demo: ComposedContainers) -> None:
    before = orders(demo)
    assert demo.down()["tidegate"] == "0"
    demo.up("prometheus", "fill")
    assert "orders is there already" in demo.wait_completed("fill")
    assert orders(demo) == before
