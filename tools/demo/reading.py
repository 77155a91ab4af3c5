"""One whole read of a topic with an unmodified client (librdkafka), reduced to what two reads are compared by.

The digest covers partition, offset, key, value and headers of each record. Records of a partition come in order, those
of different partitions do not: so there is one hash a partition, and the digest is the hash of these.
"""

import hashlib
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from tools.demo.kafka_cluster import PartitionOffsets
from tools.demo.steps import StepFailed

STALL_TIMEOUT_S: Final = 30.0
_BATCH_RECORDS: Final = 5_000
_POLL_S: Final = 0.5

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one read brought. `record_bytes` are keys, values and headers; `seconds` begin before the first request."""

    records: int
    records_only_in_tier: int
    """Those below the broker's local log start: no broker can give them without its remote tier."""
    record_bytes: int
    seconds: float
    digest: str

    @property
    def megabytes_per_s(self) -> float:
        return self.record_bytes / self.seconds / 1e6


class TopicDigest:
    """The records of one read, counted and hashed."""

    def __init__(self, local_log_start_offsets: Mapping[int, int]) -> None:
        self.records = 0
        self.records_only_in_tier = 0
        self.record_bytes = 0
        self._local_log_start_offsets = local_log_start_offsets
        self._hashes = {partition: hashlib.sha256() for partition in local_log_start_offsets}

    def add(self, partition: int, offset: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        fields: list[bytes | None] = [key, value]
        for name, content in headers:
            fields += (name.encode(), content)
        lengths = [-1 if field is None else len(field) for field in fields]
        # The lengths first: without them a byte could move from one field to the next unseen.
        parts = [struct.pack(f">qi{len(lengths)}i", offset, len(lengths), *lengths)]
        parts += [field for field in fields if field is not None]
        self._hashes[partition].update(b"".join(parts))
        self.records += 1
        self.records_only_in_tier += offset < self._local_log_start_offsets[partition]
        self.record_bytes += sum(len(part) for part in parts) - len(parts[0])

    def hexdigest(self) -> str:
        whole = hashlib.sha256()
        for partition, partition_hash in sorted(self._hashes.items()):
            whole.update(struct.pack(">i", partition) + partition_hash.digest())
        return whole.hexdigest()


def read_topic(
    bootstrap_servers: str, topic: str, offsets: Mapping[int, PartitionOffsets], progress: Callable[[int], None]
) -> Reading:
    """Read every partition from its beginning to the high watermark that `offsets` gives.

    Raises:
        StepFailed: an error from the client, or no record for STALL_TIMEOUT_S.
    """
    started_s = time.monotonic()
    digest = TopicDigest({partition: known.local_log_start_offset for partition, known in offsets.items()})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "tidegate-demo",
            "enable.auto.commit": False,
            "check.crcs": True,
            # A read that jumps must fail here, not pass for a short one.
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in offsets])
        _read_to_end(consumer, digest, {p: known.high_watermark for p, known in offsets.items()}, progress)
        seconds = time.monotonic() - started_s
    except KafkaException as error:
        raise StepFailed(f"the client gave up: {error}") from error
    finally:
        consumer.close()
    return Reading(
        records=digest.records,
        records_only_in_tier=digest.records_only_in_tier,
        record_bytes=digest.record_bytes,
        seconds=seconds,
        digest=digest.hexdigest(),
    )


def _read_to_end(
    consumer: Consumer, digest: TopicDigest, ends: Mapping[int, int], progress: Callable[[int], None]
) -> None:
    unfinished = {partition for partition, end in ends.items() if end > 0}
    deadline_s = time.monotonic() + STALL_TIMEOUT_S
    while unfinished:
        messages = consumer.consume(_BATCH_RECORDS, _POLL_S)
        for message in messages:
            partition, offset = _add(digest, message)
            if offset + 1 >= ends[partition]:
                unfinished.discard(partition)
        progress(digest.records)
        if messages:
            deadline_s = time.monotonic() + STALL_TIMEOUT_S
        elif time.monotonic() > deadline_s:
            raise StepFailed(f"no record for {STALL_TIMEOUT_S:g} s after {digest.records:,} of {sum(ends.values()):,}")


def _add(digest: TopicDigest, message: Message) -> tuple[int, int]:
    error = message.error()
    if error is not None:
        raise StepFailed(f"the client reports after {digest.records:,} records: {error}")
    partition, offset = message.partition(), message.offset()
    if partition is None or offset is None:
        raise StepFailed("the client gave a record without partition or offset")
    digest.add(partition, offset, _bytes(message.key()), _bytes(message.value()), _headers(message))
    return partition, offset


def _headers(message: Message) -> Headers:
    # Produced ones may be given as a mapping, consumed ones are always a list of pairs.
    return [
        (name, _bytes(value)) for name, value in cast("list[tuple[str, str | bytes | None]]", message.headers() or [])
    ]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
