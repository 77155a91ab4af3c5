"""Tidegate is killed while clients read, and started again: they go on, and in the end have what the broker has.

At each kill a topic is being read that nobody has read before, so that fills, writes of the disk cache and, as the tier
grows meanwhile, of the catalog's snapshot are under way. The clients hear nothing of it. The moments are drawn and tied
to how many records the clients have; `TIDEGATE_RESTART_SEED` draws the same again.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from tests.integration.reading import Reading
from tests.support.digests import Digests, read_with_confluent
from tests.support.kafka import TieredTopic, fresh_name, orders, tiered_topic
from tests.support.restarts import Kills, Moment, growing_tier, killable_tidegate
from tests.support.waiting import HANG_S_MAX, wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SEED = int(os.environ.get("TIDEGATE_RESTART_SEED") or random.SystemRandom().randrange(2**32))

READERS, PARTITIONS = 3, 4
TRANSPORT_ERRORS = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}
"""What librdkafka says of a Tidegate that is not there; it goes on by itself."""
VALUE_BYTES = 1000
RECORDS_PER_KILL = 3_000
"""In each partition: every kill finds as much that nobody has read yet."""
REREAD_RATIO_MIN = 0.5
"""Share of blocks found in the cache when all was read before; each kill loses what was on its way to the disk."""


@pytest.fixture
def kills(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Kills]:
    with killable_tidegate(kafka, tmp_path) as started:
        yield started


def test_clients_read_on_through_kills_and_get_every_record_once(
    kafka: KafkaCluster, kills: Kills, capsys: pytest.CaptureFixture[str]
) -> None:
    read_on_through(kafka, kills, capsys, [Moment.READING, Moment.SNAPSHOT], random.Random(f"{SEED} 0"))


def read_on_through(
    kafka: KafkaCluster,
    kills: Kills,
    capsys: pytest.CaptureFixture[str],
    moments: Sequence[Moment],
    draw: random.Random,
) -> None:
    topic = cold_topic(kafka, RECORDS_PER_KILL * len(moments))
    ends = {partition: offsets.high_watermark for partition, offsets in topic.offsets.items()}
    direct = read_with_confluent(kafka.bootstrap_servers, topic.name, ends, "read_uncommitted")
    total = READERS * sum(ends.values())
    try:
        with ExitStack() as stack:
            stack.enter_context(growing_tier(kafka))
            servers, settings = kills.tidegate.bootstrap_servers, {"reconnect.backoff.max.ms": 200}
            readings = [
                stack.enter_context(Reading(servers, topic.name, settings, partitions=tuple(ends)))
                for _ in range(READERS)
            ]
            pool = stack.enter_context(ThreadPoolExecutor(READERS))
            done = [pool.submit(each.read_on, partial(has_all, each, ends)) for each in readings]
            for number, moment in enumerate(moments):
                share = (number + draw.uniform(0.2, 1)) / (len(moments) + 0.2)
                wait_until(
                    partial(have_read, readings, int(share * total), done),
                    f"{share:.0%} to be read",
                    timeout_s=HANG_S_MAX,
                )
                kills.said.append(f"{read_by(readings):,} of {total:,} records read")
                kills.kill(moment)
                kills.start()
            for each in done:
                each.result()
        assert_read_again_from_the_cache(kills, topic, ends, direct)
    finally:
        with capsys.disabled():
            print(f"\nrestart: TIDEGATE_RESTART_SEED={SEED}\n  " + "\n  ".join(kills.said))
    for reading in readings:
        assert reading.digest.result() == direct
        assert set(reading.errors) <= TRANSPORT_ERRORS
        assert all(offsets == [*range(ends[partition])] for partition, offsets in reading.offsets.items())
    assert "Traceback" not in kills.tidegate.log()


def read_by(readings: Sequence[Reading]) -> int:
    return sum(len(offsets) for each in readings for offsets in each.offsets.values())


def have_read(readings: Sequence[Reading], records: int, done: Sequence["Future[None]"]) -> bool:
    for each in done:
        if each.done():
            each.result()  # raises what it has failed by
    return read_by(readings) >= records


def has_all(reading: Reading, ends: Mapping[int, int]) -> bool:
    return all(len(reading.offsets[partition]) >= end for partition, end in ends.items())


def cold_topic(kafka: KafkaCluster, records: int) -> TieredTopic:
    """Fill each partition with so many records, nearly all in the tier alone, in batches that small Fetches end at."""
    return tiered_topic(
        kafka,
        fresh_name("restarted"),
        partitions=PARTITIONS,
        records=orders(records * PARTITIONS, PARTITIONS, VALUE_BYTES),
        batch_size=16 * 1024,
    )


def assert_read_again_from_the_cache(kills: Kills, topic: TieredTopic, ends: dict[int, int], direct: Digests) -> None:
    """After one more kill, when nobody reads, all that was read lies on disk but for what was on its way there."""
    assert kills.snapshot.exists()
    kills.kill(Moment.READING)
    kills.start()
    assert kills.hits("disk") == 0
    again = read_with_confluent(kills.tidegate.bootstrap_servers, topic.name, ends, "read_uncommitted")
    assert again == direct
    kills.said.append(f"hit ratio of a read after the last restart {kills.hit_ratio():.2f}")
    assert kills.hits("disk") > 0
    assert kills.hit_ratio() > REREAD_RATIO_MIN
