"""Tidegate is killed while clients read, and started again: they go on, and in the end have what the broker has.

At each kill a topic is being read that nobody has read before, so that fills, writes of the disk cache and, as the tier
grows meanwhile, of the catalog's snapshot are under way. The clients are real ones that are told nothing; each sees for
itself that it gets every record once. The moments are drawn and tied to how many records the clients have;
`TIDEGATE_RESTART_SEED` draws the same again.
"""

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.backfill_clients import Backfills
from tests.support.digests import Digests, read_with_confluent
from tests.support.kafka import TieredTopic, fresh_name, orders, tiered_topic
from tests.support.restarts import Kills, Moment, growing_tier, killable_tidegate
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SEED = int(os.environ.get("TIDEGATE_RESTART_SEED") or random.SystemRandom().randrange(2**32))

PARTITIONS = 4
VALUE_BYTES = 1000
RECORDS_PER_KILL = 3_000
"""Of each partition: every kill finds as much that nobody has read yet."""
REREAD_RATIO_MIN = 0.5
"""Of blocks found in the cache when all was read before; what was on its way to the disk is lost with each kill."""


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
    try:
        with growing_tier(kafka), Backfills(kills.tidegate.bootstrap_servers, topic.name, ends) as backfills:
            for number, moment in enumerate(moments):
                share = (number + draw.uniform(0.2, 1)) / (len(moments) + 0.2)
                backfills.wait_records(int(share * backfills.total_records))
                kills.said.append(f"{backfills.records:,} of {backfills.total_records:,} records read")
                kills.kill(moment)
                kills.start()
            digests = backfills.finish()
            errors = sum(client.transport_errors for client in backfills.clients)
            kills.said.append(f"{errors} transport errors, as librdkafka told")
        assert_read_anew_from_the_cache(kills, topic, ends, direct)
    finally:
        with capsys.disabled():
            print(f"\nrestart: TIDEGATE_RESTART_SEED={SEED}\n  " + "\n  ".join(kills.said))
    assert digests == dict.fromkeys(digests, direct)
    assert "Traceback" not in kills.tidegate.log()


def cold_topic(kafka: KafkaCluster, records: int) -> TieredTopic:
    """So many records in each partition, nearly all in the tier alone, in batches that small Fetches end at."""
    return tiered_topic(
        kafka,
        fresh_name("restarted"),
        partitions=PARTITIONS,
        records=orders(records * PARTITIONS, PARTITIONS, VALUE_BYTES),
        batch_size=16 * 1024,
    )


def assert_read_anew_from_the_cache(kills: Kills, topic: TieredTopic, ends: dict[int, int], direct: Digests) -> None:
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
