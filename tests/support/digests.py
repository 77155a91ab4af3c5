"""Whole reads of a topic by clients of all kinds, reduced to what two reads are compared by.

    assert read_with_kcat(through_tidegate, topic, ends, "read_committed") == direct

A digest covers partition, offset, timestamp, key, value and headers of each record; null differs from empty. Records of
a partition come in order, those of different partitions do not: so each partition has its own. A reader starts at the
beginning, ends at `ends` (high watermarks), and never resets its position: a client that gets OFFSET_OUT_OF_RANGE
fails. `settings` are the client's own, for signing in.
"""

import hashlib
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

Isolation = Literal["read_uncommitted", "read_committed"]
Headers = Iterable[tuple[str, bytes | None]]
Settings = Mapping[str, Any]

READ_TIMEOUT_S = 30.0

_POLL_S = 0.2
_KCAT_FORMAT = "%p %o %T %K %S\n%k%s%h\n"


@dataclass(frozen=True, slots=True)
class PartitionDigest:
    """One partition's records, counted and hashed. Offsets are -1 where there is no record."""

    records: int
    first: int
    last: int
    sha256: str


Digests = dict[int, PartitionDigest]
Read = Callable[[str, str, Mapping[int, int], Isolation], Digests]
"""Bootstrap servers, topic, high watermark by partition, isolation level."""


class TopicDigest:
    """Takes the records of one read. The clients that are not Python's compute the same."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._hashes = {partition: hashlib.sha256() for partition in partitions}
        self._records = dict.fromkeys(self._hashes, 0)
        self._firsts = dict.fromkeys(self._hashes, -1)
        self._lasts = dict.fromkeys(self._hashes, -1)

    def add(
        self, partition: int, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        fields = [key, value]
        for name, content in headers:
            fields += (name.encode(), content)
        # Lengths before bytes: else a byte could move from one field to the next unseen.
        lengths = [-1 if field is None else len(field) for field in fields]
        head = struct.pack(f">qqi{len(lengths)}i", offset, timestamp_ms, len(lengths), *lengths)
        self._hashes[partition].update(b"".join([head, *(field for field in fields if field is not None)]))
        if self._records[partition] == 0:
            self._firsts[partition] = offset
        self._records[partition] += 1
        self._lasts[partition] = offset

    def add_message(self, message: Message) -> tuple[int, int]:
        """Take a record of confluent-kafka's; its partition and offset."""
        fields = fields_of(message)
        self.add(*fields)
        return fields[:2]

    def result(self) -> Digests:
        return {
            partition: PartitionDigest(
                self._records[partition], self._firsts[partition], self._lasts[partition], each.hexdigest()
            )
            for partition, each in sorted(self._hashes.items())
        }


def fields_of(message: Message) -> tuple[int, int, int, bytes | None, bytes | None, Headers]:
    """Return a consumed record of confluent-kafka's as what `TopicDigest.add` takes."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    # Produced ones may hold text or a mapping, consumed ones are bytes and a list of pairs.
    key, value = message.key(), message.value()
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return partition, offset, message.timestamp()[1], key, value, headers


def confluent_consumer(bootstrap_servers: str, isolation: Isolation, settings: Settings | None = None) -> Consumer:
    """A librdkafka consumer that fails rather than jumps, and says where a partition ends."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "not-used",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            **(settings or {}),
        }
    )


def read_with_confluent(
    bootstrap_servers: str, topic: str, ends: Mapping[int, int], isolation: Isolation, settings: Settings | None = None
) -> Digests:
    """librdkafka, assigned."""
    with closing(confluent_consumer(bootstrap_servers, isolation, settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        return drain_confluent(consumer, ends)


def drain_confluent(consumer: Consumer, ends: Mapping[int, int]) -> Digests:
    """Read until every partition has said that it ended.

    Raises:
        AssertionError: the client reports an error, or time is up.
    """
    digest, unfinished = TopicDigest(ends), set(ends)
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    while unfinished:
        assert time.monotonic() < deadline_s, f"no end of partitions {unfinished} in {READ_TIMEOUT_S:g} s"
        for message in consumer.consume(2000, _POLL_S):
            error = message.error()
            if error is None:
                digest.add_message(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, str(error)
                unfinished.discard(message.partition() or 0)
    return digest.result()


def scanned(batches: "Iterable[pa.RecordBatch]", ends: Mapping[str, Mapping[int, int]]) -> dict[str, Digests]:
    """The rows of a scan, by topic."""
    found = {topic: TopicDigest(partitions) for topic, partitions in ends.items()}
    for batch in batches:
        for row in batch.to_pylist():
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            timestamp_ms = round(row["timestamp"].timestamp() * 1000)
            digest = found[row["topic"]]
            digest.add(row["partition"], row["offset"], timestamp_ms, row["key"], row["value"], headers)
    return {topic: digest.result() for topic, digest in found.items()}


def read_with_kcat(
    bootstrap_servers: str, topic: str, ends: Mapping[int, int], isolation: Isolation, settings: Settings | None = None
) -> Digests:
    """kcat. Header names and values must be free of its separators, and no value may be the text NULL."""
    # fmt: off
    command = [
        "kcat", "-C", "-q", "-b", bootstrap_servers, "-t", topic, "-o", "beginning", "-e", "-f", _KCAT_FORMAT,
        "-X", f"isolation.level={isolation}", "-X", "check.crcs=true", "-X", "auto.offset.reset=error",
    ]
    # fmt: on
    command += [word for name, value in (settings or {}).items() for word in ("-X", f"{name}={value}")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KCAT_")}
    done = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, check=False, env=environ)
    assert done.returncode == 0, done.stderr.decode()
    digest, output, position = TopicDigest(ends), done.stdout, 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        partition, offset, timestamp_ms, key_bytes, value_bytes = map(int, output[position:line_end].split())
        key_end = line_end + 1 + max(key_bytes, 0)
        value_end = key_end + max(value_bytes, 0)
        headers_end = output.index(b"\n", value_end)
        key = None if key_bytes < 0 else output[line_end + 1 : key_end]
        value = None if value_bytes < 0 else output[key_end:value_end]
        headers = _kcat_headers(output[value_end:headers_end])
        digest.add(partition, offset, timestamp_ms, key, value, headers)
        position = headers_end + 1
    return digest.result()


def _kcat_headers(text: bytes) -> Headers:
    for pair in text.split(b",") if text else ():
        name, _, content = pair.partition(b"=")
        yield name.decode(), None if content == b"NULL" else content
