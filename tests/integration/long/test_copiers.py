"""Copying for long: two copiers that are killed and paused many times, and a life through five restarts."""

from pathlib import Path

from tests.integration import test_two_copiers
from tests.integration.test_standalone_life import live
from tests.integration.test_two_copiers import copy_through
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = test_two_copiers.pytestmark


def test_the_tier_is_whole_whoever_is_killed_or_paused_many_times(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    copy_through(plain_kafka, tmp_path, kills=30, pauses=6)


def test_all_that_there_ever_was_is_read_in_order_after_five_restarts(
    plain_kafka: KafkaCluster, tmp_path: Path
) -> None:
    live(plain_kafka, tmp_path, restarts=5)
