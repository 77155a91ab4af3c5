"""A copier over a folder, which has no clock of its own, on a machine whose clock is wrong."""

from pathlib import Path

import pytest

from tests.support.kafka import fresh_name
from tests.support.plain_kafka import before_plain_kafka
from tests.support.serving import serving
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

TWO_HOURS_AHEAD = """
import sys, time
wall = time.time
time.time = lambda: wall() + 7200
from tidegate.cli import main
sys.exit(main())
"""


def test_a_clock_is_held_against_the_brokers(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Failed before: over a folder nothing was known of the clock, and retention went by it."""
    topic = fresh_name("clock")
    plain_kafka.create_topic(topic)
    names = {"copy.topics": topic, "copy.group.id": topic}
    properties = before_plain_kafka(plain_kafka, tmp_path, names)
    with serving(tmp_path, properties, program=("-c", TWO_HOURS_AHEAD), command="copy") as copier:
        copier.wait_log("ready: copying")
        said = "nothing is deleted from the tier: this machine's clock is 120 minutes ahead of the brokers'"

        def is_said() -> bool:
            return said in "; ".join(copier.copy_problems())

        wait_until(is_said, "the clock to be found wrong")
        assert copier.metric("tidegate_copy_clock_offset_seconds") == pytest.approx(-7200, abs=60)
