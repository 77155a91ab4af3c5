"""Which metadata partition holds a user partition's records (docs/kafka-tier.md#metadata-partitioner).

Java's Objects.hash over (least significant half of the topic id, most significant half, partition), then Kafka's
murmur2 of those four bytes. The topic's name plays no part.
"""

import functools
import struct

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
