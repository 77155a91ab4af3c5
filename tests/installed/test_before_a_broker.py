"""The installed Tidegate before a real broker: a handful of the tests that the tree's own passes."""

import json
import re
from pathlib import Path

import pytest

from tests.integration.test_copy_command import (
    test_check_tells_what_a_copier_needs,
    test_once_copies_all_that_is_there_and_ends,
)
from tests.support.built import Installed
from tests.support.digests import read_with_confluent
from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import drop_all, ends_of, run_standalone, standalone
from tools.demo.kafka_cluster import KafkaCluster

__all__ = ["test_check_tells_what_a_copier_needs", "test_once_copies_all_that_is_there_and_ends"]

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


def test_what_the_broker_has_lost_is_served_and_printed(
    installed: Installed, plain_kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Given records that are in the tier and no more at the broker, then `serve` answers a Fetch with them, as a
    process of the installed package, and `cat` prints them."""
    topic = fresh_name("installed")
    plain_kafka.create_topic(topic, configs={"segment.bytes": str(1024 * 1024)})
    produce(plain_kafka, topic, orders(500, 1))
    properties = {"copy.topics": topic, "copy.group.id": topic}
    ends = ends_of(plain_kafka, topic)
    written = read_with_confluent(plain_kafka.bootstrap_servers, topic, ends, "read_uncommitted")
    copied = run_standalone(plain_kafka, tmp_path, "copy", "--once", properties=properties)
    assert copied.returncode == 0, copied.stderr
    # Loggers, by which operators filter, are called as in the tree.
    loggers = {name.partition(".")[0] for name in re.findall(r'"logger": "([^"]+)"', copied.stderr)}
    assert loggers >= {"standalone", "tidegate"}
    assert '"tidegate.standalone' not in copied.stderr
    drop_all(plain_kafka, topic, ends)
    with standalone(plain_kafka, tmp_path, {"copy.topics": topic}) as served:
        served.wait_log("ready: bootstrap")
        assert Path(f"/proc/{served.process.pid}/cmdline").read_text().startswith(f"{installed.python}\0")
        assert read_with_confluent(served.bootstrap, topic, ends, "read_uncommitted") == written
    printed = run_standalone(plain_kafka, tmp_path, "cat", f"{topic}:0", "--json")
    assert printed.returncode == 0, printed.stderr
    assert [json.loads(line)["offset"] for line in printed.stdout.splitlines()] == list(range(500))
