"""Every single-bit flip of a segment's indexes, and what becomes of the answers that are made with them.

    flips = FlippedIndexes(nursery, segments)
    counts = await flips.outcomes(0, IndexType.TRANSACTION, range(8 * 34))

Answers are what consumers get to see: records of each segment read at once, READ_COMMITTED; records read from offsets
in the middle; and look-ups by time.
"""

import enum
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from functools import lru_cache

import trio

from protocol.record_batches import BatchHeader, read_header
from storage.errors import CorruptObjectError
from storage.log.transaction_marker import TransactionMarker, read_transaction_marker
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.reading.reader import TierRecords
from storage.steps import finish
from tests.support.tier import MemoryStore, Tier, lineage_of, open_reader

FAR = 2**62
MIB = 1024 * 1024


class Outcome(enum.StrEnum):
    FOUND = "refused, or found against the log"
    SAME = "nothing changes"
    LATER = "an answer changed, and the same reader came by what tells"
    CHANGED = "an answer changed"


class FlippedIndexes:
    """Segments of one partition, each with its objects by the suffix of LocalTieredStorage."""

    def __init__(
        self, nursery: trio.Nursery, segments: Sequence[tuple[RemoteLogSegmentMetadata, dict[str, bytes]]]
    ) -> None:
        self._metadatas = [metadata for metadata, _ in segments]
        self._store = MemoryStore({metadata.segment_id.id: objects for metadata, objects in segments})
        logs = [(metadata, objects["log"]) for metadata, objects in segments]
        self._tier: Tier = open_reader(nursery, self._store, logs, block_bytes=MIB)
        self._rebuilds = 0.0
        """So many until now. The registry collects all that it has for each look."""

    async def outcomes(self, number: int, index_type: IndexType, bits: Iterable[int]) -> Counter[Outcome]:
        """Return how often what became of it, of these bits flipped one by one in an index of the segment of that
        number."""
        objects = self._store.objects[self._metadatas[number].segment_id.id]
        right = objects[index_type.value]
        expected, _ = await self._answers(index_type)
        counts: Counter[Outcome] = Counter()
        for bit in bits:
            flipped = bytearray(right)
            flipped[bit // 8] ^= 1 << bit % 8
            objects[index_type.value] = bytes(flipped)
            answers, is_found = await self._answers(index_type)
            is_same = answers == expected[: len(answers)]
            if is_same:
                counts[Outcome.FOUND if is_found else Outcome.SAME] += 1
            else:
                counts[Outcome.LATER if is_found else Outcome.CHANGED] += 1
        objects[index_type.value] = right
        return counts

    async def _answers(self, index_type: IndexType) -> tuple[list[object], bool]:
        """In order, up to the first error; and whether there was one, or an index was made again."""
        tier = self._tier
        for metadata in self._metadatas:
            tier.storage.parts.drop_segment(metadata.segment_id.id)
        tier.lineage = lineage_of(self._metadatas)
        before = self._rebuilds
        answers: list[object] = []
        is_by_time = index_type is IndexType.TIMESTAMP
        try:
            for answer in self._by_time() if is_by_time else self._reads(index_type is IndexType.OFFSET):
                answers.append(await answer)
        except CorruptObjectError:
            return answers, True
        finally:
            self._rebuilds = tier.sample("tidegate_index_rebuilds_total")
        return answers, self._rebuilds > before

    def _reads(self, in_the_middle: bool) -> Iterable[Awaitable[object]]:
        for metadata, log in self._tier.logs:
            yield self._visible(metadata.start_offset)
            for header, _ in batches_of(log)[1::3] if in_the_middle else ():
                yield self._visible(header.last_offset, max_bytes=header.size_bytes)

    async def _visible(self, offset: int, max_bytes: int = 16 * MIB) -> object:
        tier, partition = self._tier, self._metadatas[0].topic_id_partition
        records = await finish(
            tier.reader.read(
                partition, offset, max_bytes=max_bytes, minimum_one_batch=True, lineage=tier.lineage, committed=True
            )
        )
        found = visible(records)
        records.release()
        return found

    def _by_time(self) -> Iterable[Awaitable[object]]:
        for _, log in self._tier.logs:
            for header, _ in batches_of(log):
                for shift_ms in (0, 1):
                    yield self._at(header.max_timestamp + shift_ms)

    async def _at(self, timestamp_ms: int) -> object:
        search, first = self._tier.storage.timestamps, self._metadatas[0]
        segment = search.candidate(
            first.topic_id_partition,
            timestamp_ms,
            log_start_offset=first.start_offset,
            local_log_start_offset=FAR,
            lineage=self._tier.lineage,
        )
        if segment is None:
            return None
        return await search.search(segment, timestamp_ms, log_start_offset=first.start_offset)


@lru_cache
def batches_of(log: bytes) -> Sequence[tuple[BatchHeader, TransactionMarker | None]]:
    """Return the whole batches."""
    position, found = 0, []
    while position + 61 <= len(log) and position + (header := read_header(log, position)).size_bytes <= len(log):
        batch = log[position : position + header.size_bytes]
        found.append((header, read_transaction_marker(header, batch)))
        position += header.size_bytes
    return found


def visible(records: TierRecords) -> list[int]:
    """The base offsets of the batches that a READ_COMMITTED consumer gives its user."""
    assert records.aborts is not None
    coming = sorted((first, producer) for producer, first in records.aborts.transactions)
    aborted: set[int] = set()
    shown = []
    for header, marker in batches_of(b"".join(records.buffers)):
        while coming and coming[0][0] <= header.last_offset:
            aborted.add(coming.pop(0)[1])
        if marker is not None and marker.is_abort:
            aborted.discard(header.producer_id)
        elif not header.is_control and not (header.is_transactional and header.producer_id in aborted):
            shown.append(header.base_offset)
    return shown
