"""A real Prometheus, with the configuration and rules that are shipped, before a Tidegate at work: every query of the
dashboard has an answer, every rule can be evaluated, and nothing fires."""

import math
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from tests.support.certificates import server_certificate
from tests.support.digests import read_with_confluent
from tests.support.kafka import TieredTopic, orders, segmented_topic
from tests.support.prometheus import (
    RunningPrometheus,
    copier_names,
    dashboard_queries,
    metric_complaints,
    names_in,
    rules,
    running_prometheus,
)
from tests.support.raw_client import FetchedPartition, RawClient
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "prometheus")]

SCRAPED_S_MAX = 60.0
WINDOW = "10m"
"""For $__rate_interval: the load is within it whenever a test of this file asks."""

FIRST_MS = 1_700_000_000_000
BATCH_RECORDS = 100
BATCHES_PER_SEGMENT = 4
FETCH_VERSION = 17


@dataclass(frozen=True, slots=True)
class Watched:
    """A Tidegate that has worked, and the Prometheus that has watched it."""

    tidegate: RunningTidegate
    prometheus: RunningPrometheus


@pytest.fixture(scope="module")
def damaged(kafka: KafkaCluster) -> Iterator[TieredTopic]:
    """Two segments in the tier alone: the first one's offset index is away, and the second one's log."""
    # Times that differ, since a segment is rolled when its time index is full.
    records = (replace(order, timestamp_ms=FIRST_MS + number) for number, order in enumerate(orders(1000, 1)))
    topic = segmented_topic(kafka, "damaged", records, batches=BATCHES_PER_SEGMENT, batch_records=BATCH_RECORDS)
    (folder,) = kafka.tier_dir.glob(f"kafka-tiered-storage/{topic.name}-0-*")
    first, second, *_ = sorted(folder.glob("*.log"))
    lost = (first.with_suffix(".index"), second)
    for file in lost:
        file.rename(file.with_suffix(".away"))
    yield topic
    for file in lost:  # the broker is everybody's
        file.with_suffix(".away").rename(file)


@pytest.fixture(scope="module")
def watched(
    kafka: KafkaCluster, tiered: TieredTopic, damaged: TieredTopic, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("prometheus")
    certificate, key = server_certificate(folder)
    properties = {
        "proxy.tls.certificate.file": str(certificate),
        "proxy.tls.key.file": str(key),
        "cache.path": str(folder / "cache"),
        "expert.catalog.snapshot.interval.ms": "200",
    }
    with (
        own_tidegate(kafka, properties) as tidegate,
        running_prometheus(folder, tidegate.process.admin_address) as prometheus,
    ):
        # Rates need the series of before the load.
        wait_until(lambda: prometheus.query("tidegate_ready == 1"), "Tidegate scraped", timeout_s=SCRAPED_S_MAX)
        for _ in ("cold", "warm"):
            read_all(tidegate.bootstrap_servers, certificate, tiered)
        read_damaged(tidegate.address, certificate, damaged, tiered)
        yield Watched(tidegate, prometheus)


def read_all(bootstrap_servers: str, certificate: Path, topic: TieredTopic) -> None:
    ends = {partition: offsets.high_watermark for partition, offsets in topic.offsets.items()}
    trusting = {"security.protocol": "ssl", "ssl.ca.location": str(certificate)}
    digests = read_with_confluent(bootstrap_servers, topic.name, ends, "read_uncommitted", trusting)
    assert sum(each.records for each in digests.values()) == topic.records


def read_damaged(address: tuple[str, int], certificate: Path, topic: TieredTopic, whole: TieredTopic) -> None:
    """Read what has no index, and fail at what has no log; in the other topic look up a time."""
    trusting = ssl.create_default_context(cafile=str(certificate))
    with RawClient(*address, ssl_context=trusting, server_hostname="localhost") as client:
        (broker,) = client.metadata([topic.name]).brokers
        topic_id = client.topic_id(topic.name)
    with RawClient(broker.host, broker.port, ssl_context=trusting, server_hostname="localhost") as client:

        def answer(offset: int) -> FetchedPartition:
            return client.patient_fetch(FETCH_VERSION, [(topic.name, topic_id, 0, offset, 1024 * 1024)]).partitions[0]

        assert not answer(BATCH_RECORDS + 50).error_code, "the segment without an index"
        assert answer(BATCH_RECORDS * BATCHES_PER_SEGMENT).error_code, "the segment without a log"
        (found,) = client.list_offsets(9, [(whole.name, 0, 1)])
        assert (found.error_code, found.offset) == (0, 0)


def test_prometheus_scrapes_what_the_page_says(watched: Watched, tiered: TieredTopic) -> None:
    address = watched.tidegate.process.admin_address
    (target,) = watched.prometheus.get("targets")["activeTargets"]
    assert target["labels"] == {"instance": address, "job": "tidegate"}
    assert (target["health"], target["lastError"]) == ("up", "")
    for label, value in target["labels"].items():  # the dashboard's variables
        query = {"match[]": 'tidegate_build_info{job=~"tidegate"}'}
        assert watched.prometheus.get(f"label/{label}/values", **query) == [value]
    bytes_read = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
    counted = watched.tidegate.metric(bytes_read, topic=tiered.name)
    assert counted > 0
    wait_until(
        lambda: list(watched.prometheus.query(f'{bytes_read}{{topic="{tiered.name}"}}').values()) == [counted],
        "the last scrape",
    )
    # Kafka's own label, which Strimzi's rules keep, so that dashboards fit as they are.
    purgatory, why = "kafka_server_delayedoperationpurgatory_", "should be written in 'snake_case' not 'camelCase'"
    names = (f"{purgatory}{name}" for name in ("numdelayedoperations", "purgatorysize"))
    assert metric_complaints(watched.tidegate.page("/metrics")) == {f"{name} label names {why}" for name in names}


def test_every_query_of_the_dashboard_has_an_answer(watched: Watched) -> None:
    """But for the panels that are empty where one process runs and does not copy."""
    for title, query in dashboard_queries().items():
        if title.startswith("Workers: ") or names_in(query) & copier_names():
            continue
        expression = query.replace("$__rate_interval", WINDOW)
        expression = expression.replace("$job", "tidegate").replace("$instance", ".*")
        assert "$" not in expression
        # A rate takes two scrapes.
        wait_until(
            partial(has_numbers, watched.prometheus, expression), f"{title}: {expression}", timeout_s=SCRAPED_S_MAX
        )


def has_numbers(prometheus: RunningPrometheus, expression: str) -> bool:
    return any(map(math.isfinite, prometheus.query(expression).values()))


def test_every_rule_is_evaluated_and_nothing_fires(watched: Watched) -> None:
    def evaluated() -> bool:
        groups = watched.prometheus.get("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        assert not [rule["name"] for rule in found if rule.get("lastError")]
        assert len(found) == len(rules())
        return all(rule["health"] == "ok" for rule in found)

    wait_until(evaluated, "all rules evaluated")
    assert watched.prometheus.query('ALERTS{alertstate="firing"}') == {}
    for name in [rule["record"] for rule in rules() if "record" in rule]:
        # The ratios are of the last minutes, and end with the load.
        wait_until(partial(watched.prometheus.query, f"last_over_time({name}[1h])"), name)
