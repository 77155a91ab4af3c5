"""The Spark job of docker-compose.yml, run as a program of this machine like its other services."""

from pathlib import Path

import pytest

from tests.support.compose import ComposeRun

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("docker-compose", "java", "kafka", "versitygw", "prometheus", "spark"),
]


def test_the_spark_example_reads_every_order(tmp_path: Path) -> None:
    with ComposeRun(tmp_path) as run:
        run.up("prometheus", "fill")
        run.wait_completed("fill")
        records = int(run.services["fill"].definition["environment"]["RECORDS"])
        cents = sum(number * 7919 % 100_000 for number in range(1, records + 1))
        run.up("spark")
        assert f"orders: {records}, cents: {cents}\n" in run.wait_completed("spark")
