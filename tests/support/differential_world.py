"""A broker with all that the differential test has topics for, and a Tidegate before it; nothing moves any more.

A cluster of its own, as it is restarted. `TIDEGATE_DIFFERENTIAL_SEED` repeats a run's schedule and questions.
"""

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.differential_known import KnownPartition
from tests.support.differential_schedule import Schedule, draw_schedule
from tests.support.differential_topics import CLUSTER_PROPERTIES, differential_topics
from tests.support.kafka import own_cluster
from tests.support.raw_client import address_of
from tests.support.tidegate import RunningTidegate, own_tidegate
from tools.demo.kafka_cluster import KafkaCluster

QUESTIONS = int(os.environ.get("TIDEGATE_DIFFERENTIAL_QUESTIONS") or 5000)
SEED = int(os.environ.get("TIDEGATE_DIFFERENTIAL_SEED") or random.SystemRandom().randrange(2**32))

LONG_QUESTIONS_MIN = 50_000
"""From here on the run is a long one, and has more topics and restarts."""

TIDEGATE_PROPERTIES = {
    # Every tier read has its own probe, so answers are the broker's of that very moment.
    "authority.max.age.ms": "0",
    # A broker waits for all tier reads of a request. By default Tidegate waits less for the last of them.
    "expert.tier.linger.ms": "5000",
}

SHORT_TOPICS, SHORT_RESTARTS = 4, 1
LONG_TOPICS, LONG_RESTARTS = 6, 2


@dataclass(frozen=True, slots=True)
class DifferentialWorld:
    """Both sides, and what is known of the broker's logs."""

    cluster: KafkaCluster
    tidegate: RunningTidegate
    partitions: Sequence[KnownPartition]
    schedule: Schedule
    prepared_s: float

    @property
    def broker_address(self) -> tuple[str, int]:
        return address_of(self.cluster.bootstrap_servers)


@contextmanager
def differential_world() -> Iterator[DifferentialWorld]:
    started_s = time.monotonic()
    is_long = QUESTIONS >= LONG_QUESTIONS_MIN
    sizes = (LONG_TOPICS, LONG_RESTARTS) if is_long else (SHORT_TOPICS, SHORT_RESTARTS)
    schedule = draw_schedule(SEED, *sizes)
    with ExitStack() as stack:
        cluster = stack.enter_context(own_cluster(properties=CLUSTER_PROPERTIES))
        partitions = stack.enter_context(differential_topics(cluster, schedule))
        tidegate = stack.enter_context(own_tidegate(cluster, TIDEGATE_PROPERTIES))
        yield DifferentialWorld(cluster, tidegate, partitions, schedule, time.monotonic() - started_s)
