"""Five failovers with every role, by one worker and by two."""

from pathlib import Path

import pytest

from tests.integration import test_failover
from tests.integration.test_failover import STEPS, End, fail_over
from tests.support.kafka import TieredTopic
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = test_failover.pytestmark


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_go_on_at_the_other_replica_five_times(
    kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    ends = [End.KILL, End.KILL, End.DRAIN, End.DRAIN, End.KILL]
    roles = {name: list(STEPS) for name in ("librdkafka", "java")}
    said = fail_over(kafka, tiered, tmp_path, ends, roles, workers)
    with capsys.disabled():
        print(said)
