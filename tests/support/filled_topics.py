"""Topics that clients of all kinds read: every codec, every odd kind of record, transactions; mostly in the tier.

Each is filled once for the whole run (fixtures `codecs` and `transactions` of tests/integration/conftest.py), and
nobody adds to it. `direct` is what librdkafka reads of it at the broker.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from tests.support.digests import Digests, Isolation, read_with_confluent
from tests.support.kafka import TIERED, Record, fresh_name, orders, produce, small_segments, wait_settled
from tools.demo.kafka_cluster import KafkaCluster

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""One partition each."""
RECORDS_PER_PARTITION = 1500
FIRST_TIMESTAMP_MS = 1_700_000_000_000
TIMESTAMPS_SPAN_MS = 1_000_000
TIMESTAMP_STEP_MS = 10
TRANSACTIONS = 12
ABORTED_TRANSACTIONS = 4
RECORDS_PER_TRANSACTION = 20
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True)
class FilledTopic:
    """A topic that has settled, and what direct reads of it give."""

    name: str
    ends: dict[int, int]
    direct: dict[Isolation, Digests]
    tier_bytes: int

    def lasts(self, isolation: Isolation) -> dict[int, int]:
        """The last offset of each partition that a client sees."""
        return {partition: each.last for partition, each in self.direct[isolation].items()}


def fill_codecs(kafka: KafkaCluster) -> FilledTopic:
    """One codec a partition, and records of every odd kind."""
    name = fresh_name("clients-codecs")
    kafka.create_topic(name, len(CODECS), {**TIERED, **small_segments(batches=4)})
    for partition, codec in enumerate(CODECS):
        produce(kafka, name, odd_records(partition), compression_type=codec, batch_num_messages=100)
    return settled(kafka, name)


def fill_transactions(kafka: KafkaCluster, bootstrap_servers: str) -> FilledTopic:
    """Committed and aborted transactions, all but the last in the tier; every third is aborted."""
    name = fresh_name("clients-transactions")
    kafka.create_topic(name, 1, {**TIERED, **small_segments(batches=4)})
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "transactional.id": name})
    producer.init_transactions(30)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for record in orders(RECORDS_PER_TRANSACTION, 1):
            producer.produce(name, record.value, f"{number}", 0)
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    return settled(kafka, name)


def odd_records(partition: int) -> Iterator[Record]:
    """Null and empty keys and values, repeated, empty and null headers, timestamps that do not rise."""
    rng = random.Random(partition)
    keys = (None, b"", b"key", bytes(range(256)))
    header_lists: tuple[Any, ...] = (
        (),
        (("again", b"1"), ("again", b"2")),
        (("nothing", None), ("empty", b"")),
        (("", b"unnamed"),),
    )
    for number in range(RECORDS_PER_PARTITION):
        values = (None, b"", f"value {number}".encode(), rng.randbytes(rng.randrange(1, 400)))
        timestamp_ms = FIRST_TIMESTAMP_MS + rng.randrange(TIMESTAMPS_SPAN_MS)
        headers = header_lists[number // 5 % len(header_lists)]
        yield Record(partition, keys[number % 4], values[number // 4 % 4], headers, timestamp_ms)


def varied_records(name: str, count: int, value_bytes: tuple[int, int], partitions: int = 1) -> Iterator[Record]:
    """The same each time for a name. Timestamps go up by steps, one in ten is out of order; half a value compresses."""
    chance = random.Random(name)
    for number in range(count):
        size = chance.randrange(*value_bytes)
        value = chance.randbytes(size // 2) + b"." * (size - size // 2)
        timestamp_ms = FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * number
        if chance.random() < 0.1:
            timestamp_ms -= chance.randrange(500)
        key = None if number % 7 == 0 else b"key-%d" % (number % 31)
        yield Record(number % partitions, key, value or None, (("n", b"%d" % number),), timestamp_ms)


def settled(kafka: KafkaCluster, name: str) -> FilledTopic:
    """Wait for the tier, and read the topic directly."""
    offsets = wait_settled(kafka, name)
    ends = {partition: known.high_watermark for partition, known in offsets.items()}
    direct = {level: read_with_confluent(kafka.bootstrap_servers, name, ends, level) for level in ISOLATIONS}
    tier = sum(path.stat().st_size for path in kafka.tier_dir.glob(f"kafka-tiered-storage/{name}-*/*.log"))
    return FilledTopic(name, ends, direct, tier)
