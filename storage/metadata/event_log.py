"""The seam between what follows the metadata topic and Kafka: an ordered, partitioned log of metadata records.

`storage.metadata.topic_log` is the topic itself; tests have a log in memory (tests/support/metadata_event_log.py).

Rules that every implementation keeps:

1. Everything is called, and delivers, in the trio thread; nothing is delivered before `subscribe` has returned.
2. For one subscription and one partition, records are delivered in offset order, each once. The position never goes
   backwards.
3. After a subscription was closed, nothing more of it is delivered.
4. `progress` follows `deliver`: when it names a position, every record below it has been delivered. It is also
   called once when the log's end is known, so an empty partition is known to be read at once.
5. A `deliver` or `progress` that raises is logged; reading goes on behind that slice.
"""

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, Protocol

import structlog

from storage.metadata.reading import MetadataEvent, PartitionReading

DELIVERY_RECORDS_MAX = 256
"""Records in one call of `deliver`. About 5 ms of decoding and applying: what the trio thread may spend in one go."""

P = ParamSpec("P")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


Deliver = Callable[[PartitionReading, Sequence[MetadataEvent]], None]
"""Takes up to DELIVERY_RECORDS_MAX records of one partition; the reading stands before them."""

Progress = Callable[[PartitionReading], None]
"""Takes the reading each time that it has moved."""

Close = Callable[[], None]
"""Ends a subscription. A second call has no effect."""


class MetadataEventLog(Protocol):
    """Errors: MetadataLogError (no later attempt will succeed), MetadataNotReadyError (not described yet)."""

    def partition_count(self) -> int:
        """Return how many partitions there are; MetadataNotReadyError while that is not known yet."""
        ...

    def subscribe(self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress) -> Close:
        """Follow these partitions, each from its offset on, or from the log's start if that is higher.

        Raises:
            MetadataLogError: there is no such partition, or nothing reads the log any more.
        """
        ...

    def failure(self) -> str | None:
        """Why nothing that was read from this log can be trusted any more (the topic grew or was replaced), or None."""
        ...


def call_receiver(receiver: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a subscriber's callback; what it raises is logged and goes no further (rule 5)."""
    try:
        receiver(*args, **kwargs)
    except Exception as error:
        _log.exception("metadata_receiver_failed", error=repr(error))


# Which metadata partition holds a user partition's records (docs/kafka-tier.md#metadata-partitioner).
#
# Java's Objects.hash over (least significant half of the topic id, most significant half, partition), then Kafka's
# murmur2 of those four bytes. The topic's name plays no part.


_HALVES = struct.Struct(">QQ")
_MASK = 0xFFFF_FFFF

_SEED = 0x9747_B28C
_M = 0x5BD1_E995
_R = 24
"""Kafka's murmur2 constants (org.apache.kafka.common.utils.Utils)."""

_CACHED_MAX = 65_536
"""Answers kept, about 15 MB when full; lookups ask for the same partitions again and again."""


@functools.lru_cache(maxsize=_CACHED_MAX)
def metadata_partition(topic_id: bytes, partition: int, partition_count: int) -> int:
    """The metadata partition, of partition_count, for a partition of the topic with this 16-byte id.

    Raises:
        ValueError: the id is not 16 bytes, or partition_count is not positive.
    """
    if len(topic_id) != 16 or partition_count < 1:
        raise ValueError(f"no metadata partition for a {len(topic_id)}-byte topic id among {partition_count}")
    most_significant, least_significant = _HALVES.unpack(topic_id)
    object_hash = ((31 + _fold(least_significant)) * 31 + _fold(most_significant)) * 31 + partition
    # The input is the hash as four big-endian bytes; murmur2 reads blocks little-endian.
    block = int.from_bytes((object_hash & _MASK).to_bytes(4, "big"), "little")
    return (_murmur2_of_one_block(block) & 0x7FFF_FFFF) % partition_count


def _fold(half: int) -> int:
    """Java's Long.hashCode."""
    return (half ^ (half >> 32)) & _MASK


def _murmur2_of_one_block(block: int) -> int:
    """Murmur2 of an input of exactly four bytes; its tail step has nothing to do then."""
    mixed = (block * _M) & _MASK
    mixed ^= mixed >> _R
    mixed = (mixed * _M) & _MASK
    digest = (((_SEED ^ 4) * _M) & _MASK) ^ mixed
    digest ^= digest >> 13
    digest = (digest * _M) & _MASK
    return digest ^ (digest >> 15)
