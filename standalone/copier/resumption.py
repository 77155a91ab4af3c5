"""Where copying goes on: from what the tier's segments say, held against upstream's leader epochs.

The newest finished segment has the partition's whole lineage and its producers at its end beside it, in
`.leader_epoch_checkpoint` and `.snapshot`. After an unclean leader election upstream's log may part from what was
copied: it goes on from the last offset that both have (KIP-101). There is no snapshot for that offset, so producers are
taken from the last segment that ends before it, and the batches in between are replayed. So it is where the newest
segment's snapshot is lost. If the one before is lost too, no producer is known, which is said: a transaction that was
open there then begins with its next batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from standalone.copier.ledger import Ledger
from standalone.copier.producers import ProducerStates
from standalone.copier.seams import BrokerLog
from standalone.copier.staging import PartitionState
from standalone.copier.tools import CopierTools
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError, RemoteStoreNotFoundError
from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.model import IndexType, RemoteLogSegmentMetadata, TopicIdPartition
from storage.remote_storage_manager import RemoteStorageManager

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def resume(ledger: Ledger, tools: CopierTools) -> PartitionState:
    """The state from which batches are to be taken. The ledger learns which of its segments are on upstream's lineage.

    A `next_offset` of 0 with no lineage is a partition of which nothing was copied: it begins wherever upstream's log
    does.

    Raises:
        RemoteStorageError: the store or upstream does not answer.
        TopicGoneError: upstream has no such topic any more.
    """
    ledger.follow_lineage(())
    newest_first = sorted(ledger.finished(), key=_recency, reverse=True)
    if not newest_first:
        return PartitionState(next_offset=0)
    lineage = await _read_lineage(newest_first, tools)
    ledger.follow_lineage(lineage)
    next_offset = ledger.end_offset() + 1
    common = await common_offset(ledger.partition, tools.brokers, lineage, next_offset, known_epoch=lineage[-1][0])
    if common < next_offset:
        _log.warning(
            "copied_records_not_upstreams", partition=str(ledger.partition), from_offset=common, to_offset=next_offset
        )
        ledger.cut(lineage[-1][0], common)
    whole = [segment for segment in ledger.finished() if 0 <= segment.end_offset == ledger.live_end(segment) < common]
    if not whole:
        return PartitionState(next_offset=0, replay_until=common)
    last, producers = await _last_producers(whole, tools)
    return PartitionState(
        next_offset=last.end_offset + 1,
        lineage=[(epoch, start) for epoch, start in lineage if start <= last.end_offset],
        producers=producers,
        replay_until=common,
    )


async def read_unless_lost(tools: CopierTools, segment: RemoteLogSegmentMetadata, read: Callable[[], T]) -> T | None:
    """Return what is read of the segment in the tier; None, and log it, if that is there no more, or damaged.

    Raises:
        RemoteStorageError: the store does not answer.
    """
    try:
        return await tools.threads.run(read)
    except RemoteStoreNotFoundError:
        raise
    except (RemoteResourceNotFoundError, CorruptObjectError) as error:
        _log.error("copy_index_lost", segment=str(segment.segment_id), reason=str(error))
        return None


async def _last_producers(
    whole: Sequence[RemoteLogSegmentMetadata], tools: CopierTools
) -> tuple[RemoteLogSegmentMetadata, ProducerStates]:
    """The segment behind which batches are replayed, and the producers at its end."""
    newest, *before = sorted(whole, key=lambda segment: segment.end_offset, reverse=True)
    for last in (newest, *before[:1]):
        producers = await read_unless_lost(tools, last, partial(_read_producers, tools.storage, last))
        if producers is not None:
            return last, producers
    return newest, ProducerStates()


def _read_producers(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> ProducerStates:
    snapshot = storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
    return ProducerStates(parse_producer_snapshot(snapshot, f"{segment.segment_id}: producer snapshot"))


async def common_offset(
    partition: TopicIdPartition,
    brokers: BrokerLog,
    lineage: Sequence[tuple[int, int]],
    next_offset: int,
    *,
    known_epoch: int,
) -> int:
    """Return where a log of this lineage, which ends at `next_offset`, and upstream's part.

    Epochs are compared from the newest down to the first one that is whole, but at least down to `known_epoch`. One
    that upstream has forgotten, because it has deleted its records, it answers as if it ended later.
    """
    common = next_offset
    for at in reversed(range(len(lineage))):
        epoch, start_offset = lineage[at]
        own_end = min(common, lineage[at + 1][1]) if at + 1 < len(lineage) else common
        found_epoch, found_end = await brokers.epoch_end(partition, epoch)
        if found_epoch < 0:
            return common  # an empty log tells nothing
        if found_epoch != epoch:
            common = min(common, start_offset)
            continue
        if found_end < own_end:
            common = found_end
        if found_end > start_offset and epoch <= known_epoch:
            return common
    return common


async def _read_lineage(newest_first: Sequence[RemoteLogSegmentMetadata], tools: CopierTools) -> list[tuple[int, int]]:
    segment = newest_first[0]

    def read() -> Sequence[tuple[int, int]]:
        checkpoint = tools.storage.fetch_index(segment, IndexType.LEADER_EPOCH)
        return parse_leader_epochs(checkpoint, f"{segment.segment_id}: leader epoch checkpoint")

    return list(await read_unless_lost(tools, segment, read) or _described_lineage(newest_first))


def _described_lineage(newest_first: Sequence[RemoteLogSegmentMetadata]) -> list[tuple[int, int]]:
    """Return what the segments' metadata say of it. Some may be of branches that were lost: on a lineage epochs and
    offsets descend together."""
    lineage: list[tuple[int, int]] = []
    for segment in newest_first:
        for epoch, start_offset in sorted(segment.segment_leader_epochs.items(), reverse=True):
            if lineage and epoch == lineage[-1][0]:
                lineage[-1] = epoch, min(start_offset, lineage[-1][1])
            elif not lineage or (epoch < lineage[-1][0] and start_offset < lineage[-1][1]):
                lineage.append((epoch, start_offset))
    return lineage[::-1]


def _recency(segment: RemoteLogSegmentMetadata) -> tuple[int, int]:
    """Leaders' epochs only grow: whichever has the highest is on the newest lineage."""
    return max(segment.segment_leader_epochs), segment.end_offset
