"""The status page in front of real brokers: what is in trouble stands at its top."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from tests.support.hostile_clients import crowd, fetch_v4
from tests.support.kafka import fresh_name, own_cluster, tiered_topic
from tests.support.raw_client import RawClient
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tidegate.status.model import (
    BrokerStatus,
    CacheStatus,
    ErrorStatus,
    FallbackStatus,
    LimitStatus,
    MetadataPartitionStatus,
    PartitionStatus,
    Status,
    StreamStatus,
)
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "linux")]

LIMIT = "proxy.connections.max.per.ip"

FETCHES = 24
"""1 MiB each: more than the system's buffers hold for a client that reads nothing."""


@pytest.fixture(scope="module")
def pair() -> Iterator[KafkaCluster]:
    """Start a cluster of its own, whose tier has only what is looked at here."""
    with own_cluster(brokers=2) as started:
        yield started


@pytest.fixture(scope="module")
def topic(pair: KafkaCluster) -> str:
    return tiered_topic(pair, fresh_name("shown")).name


def wait_at_top(page: Callable[[str], str], words: str) -> Status:
    """The document once its first trouble says so."""
    status: Status

    def is_at_top() -> bool:
        nonlocal status
        status = json.loads(page("/status.json"))
        return any(words in trouble["what"] for trouble in status["troubles"][:1])

    wait_until(is_at_top, f"`{words}` at the top")
    assert page("/").partition("</li>")[0].count("<li") == 1
    return status


def test_a_stuck_client_stands_at_the_top_and_the_document_is_whole(pair: KafkaCluster, topic: str) -> None:
    with own_tidegate(pair) as tidegate:
        before: Status = json.loads(tidegate.page("/status.json"))
        assert (before["ready"], before["troubles"]) == (True, [])
        with crowd(leader_of(tidegate, topic), 1) as (client,):
            for _ in range(FETCHES):
                client.send_bytes(fetch_v4([(topic, 1)]))
            host, port = client.socket.getsockname()
            status = wait_at_top(tidegate.page, f"{host}:{port} is stuck")
            assert "is stuck" in tidegate.page("/").partition("</li>")[0]
        check_document(status, topic)
        wait_until(lambda: not json.loads(tidegate.page("/status.json"))["troubles"], "it to be well again")


def leader_of(tidegate: RunningTidegate, topic: str) -> tuple[str, int]:
    with RawClient(*tidegate.address) as client:
        found = client.metadata([topic])
        leader = found.topics[0].partitions[0].leader_id
        return next((each.host, each.port) for each in found.brokers if each.node_id == leader)


def check_document(status: Status, topic: str) -> None:
    """It has the fields of docs/status.md, and the broker's numbers."""

    def has_fields(kind: Any, row: Any) -> None:
        assert row.keys() == kind.__annotations__.keys()

    has_fields(Status, status)
    for kind, rows in (
        (BrokerStatus, status["brokers"]),
        (CacheStatus, status["cache"]),
        (LimitStatus, status["limits"]),
        (ErrorStatus, status["errors"]),
        (PartitionStatus, status["partitions"]["rows"]),
        (StreamStatus, status["streams"]["rows"]),
        (MetadataPartitionStatus, status["catalog"]["metadata_partitions"]),
    ):
        for row in rows:
            has_fields(kind, row)
    assert status["failed_sections"] == []
    assert [broker["reachable"] for broker in status["brokers"]] == [True, True]
    assert status["catalog"]["last_applied"] is not None
    assert {row["lag_records"] for row in status["catalog"]["metadata_partitions"]} == {0}
    (row,) = (row for row in status["partitions"]["rows"] if row["topic"] == topic)
    assert row["problem"] is None
    assert row["log_start_offset"] == row["cloud_log_start_offset"] == 0
    assert row["log_end_offset"] == 10_000
    assert row["local_log_last_offset"] == 9_999
    assert row["cloud_log_last_offset"] == (row["local_log_start_offset"] or 0) - 1
    assert row["high_watermark"] == 10_000
    (stream,) = status["streams"]["rows"]
    assert (stream["topic"], stream["log_end_offset"]) == (topic, 10_000)


def test_what_is_left_to_brokers_and_who_is_at_a_limit_are_told(pair: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """The log objects of one topic are missing where this Tidegate looks; the broker has them."""
    healthy = tiered_topic(pair, fresh_name("aside")).name
    shutil.copytree(pair.tier_dir, tmp_path / "tier")
    for path in (tmp_path / "tier" / ROOT_DIRECTORY_NAME).glob(f"{topic}-0-*/*.log"):
        path.unlink()
    properties = {"rsm.config.dir": str(tmp_path / "tier"), LIMIT: "2"}
    with own_tidegate(pair, properties) as tidegate, ExitStack() as stack:
        leader = leader_of(tidegate, topic)
        wait_until(lambda: tidegate.metric("tidegate_connections_active") == 0, "who asked for the leader has left")
        asker, _idle = stack.enter_context(crowd(leader, 2))
        asker.patient_fetch(4, [(topic, None, 0, 0, 1 << 20)])
        status = wait_at_top(tidegate.page, "tier reads of 1 partitions are left to the brokers (not_found) for ")
        (spell,) = status["fallbacks"]
        assert spell.keys() == FallbackStatus.__annotations__.keys()
        assert (spell["reason"], spell["partitions"], spell["examples"]) == ("not_found", 1, [f"{topic}-0"])
        assert ".log" in spell["detail"]
        first, second = status["partitions"]["rows"]
        assert (first["topic"], first["left_to_broker"]) == (topic, "not_found")
        assert (second["topic"], second["left_to_broker"]) == (healthy, None)
        at_limit = f"127.0.0.1 has all of {LIMIT}: 2 of 2"
        (limit,) = [each for each in status["troubles"] if each["id"] == "limit_reached"]
        assert limit["what"].startswith(f"{at_limit}; ")
        assert {"key": LIMIT, "client": "127.0.0.1", "used": 2, "max": 2} in status["limits"]
        page = tidegate.page("/")
        assert "left to the broker" in page
        assert at_limit in page
