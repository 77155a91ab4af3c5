"""Many kills of Tidegate under clients that read, at drawn moments."""

import random

import pytest

from tests.integration import test_restart
from tests.integration.test_restart import SEED, read_on_through
from tests.support.restarts import Kills, Moment
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = test_restart.pytestmark
kills = test_restart.kills

PARTS, KILLS = 4, 5
"""In parts, as each must end before the run is taken to hang."""


@pytest.mark.parametrize("part", [None, *range(PARTS)])
def test_clients_read_on_through_many_kills(
    kafka: KafkaCluster, kills: Kills, capsys: pytest.CaptureFixture[str], part: int | None
) -> None:
    """First once while it drains, then by chance."""
    draw = random.Random(f"{SEED} {part}")
    drawn = [Moment.DRAIN, Moment.READING] if part is None else draw.choices(list(Moment), weights=(3, 1, 1), k=KILLS)
    read_on_through(kafka, kills, capsys, drawn, draw)
