"""An unmodified consumer (librdkafka through confluent-kafka), timed once its records flow.

Connecting, metadata and the first answers are left out: the clock starts at the first batch of records, whose bytes do
not count.
"""

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from benchmarks.support.bare_fetch import Transfer

_BATCH_RECORDS = 2_000
_POLL_S = 1.0
_STALL_S = 30.0


def consume(bootstrap_servers: str, topic: str, ends: Mapping[int, int]) -> Transfer:
    """Read every partition from offset 0 to `ends`; the bytes are those of the values.

    Raises:
        RuntimeError: the client reports an error, or brings nothing for half a minute.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            # Its default, 1000, makes a client that is slower than its fetches sleep for most of the time.
            "fetch.queue.backoff.ms": 1,
            # A read that jumps must fail, not pass for a fast one.
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        return _read(consumer, ends)
    finally:
        consumer.close()


def consume_for(bootstrap_servers: str, topic: str, ends: Mapping[int, int], seconds: float) -> Transfer:
    """`consume` with fresh consumers until they have read for so long.

    Raises:
        ValueError: there is too little to read: one batch is all of it.
    """
    total = Transfer(0, 0.0)
    while total.seconds < seconds:
        one = consume(bootstrap_servers, topic, ends)
        if not one.read_bytes:
            raise ValueError(f"{topic}: no more than {_BATCH_RECORDS} records")
        total = Transfer(total.read_bytes + one.read_bytes, total.seconds + one.seconds)
    return total


def _read(consumer: Consumer, ends: Mapping[int, int]) -> Transfer:
    left = sum(ends.values())
    read_bytes, started_s = 0, 0.0
    heard_s = ended_s = time.perf_counter()
    while left > 0:
        # No more than there are: `consume` waits until it has as many as it was asked for.
        messages = consumer.consume(min(_BATCH_RECORDS, left), _POLL_S)
        ended_s = time.perf_counter()
        if not messages:
            if ended_s - heard_s > _STALL_S:
                raise RuntimeError(f"no record for {_STALL_S:g} s, {left} left")
            continue
        heard_s = ended_s
        if started_s:
            read_bytes += sum(map(len, messages))
        else:
            started_s = ended_s
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if partition is None or offset is None:
                raise RuntimeError(str(message.error()))
            # A record past its partition's end is not among those wanted.
            left -= offset < ends[partition]
    return Transfer(read_bytes, ended_s - started_s)
