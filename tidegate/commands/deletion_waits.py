"""What copiers have noted of deletions that wait, as the tools show it (standalone.copier.waits)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from standalone.copier.config import CopyConfig
from standalone.copier.waits import Noted, wait_ms, why_nothing_goes
from standalone.serving.deletion_notes import DELETIONS_GROUP, DeletionNotes
from standalone.serving.group_offsets import GroupOffsets
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, uuid_to_text
from tidegate.commands.output import iso_time
from tidegate.commands.selection import finished
from tidegate.commands.tier import OpenTier
from tidegate.commands.tier_lineage import TierLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What of a partition waits. `until_ms` None: for an operator, or what `why` says."""

    partition: TopicIdPartition
    segments: int
    size_bytes: int
    until_ms: int | None
    why: str

    def shown(self) -> str:
        """For people, in a few words."""
        end = self.why if self.until_ms is None else f"until {iso_time(self.until_ms)}"
        return f"{self.segments} segments: {end}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            **names_of(self.partition),
            "segments": self.segments,
            "bytes": self.size_bytes,
            "until_ms": self.until_ms,
            "why": self.why,
        }


async def waits_of(tier: OpenTier, partitions: Iterable[TopicIdPartition]) -> list[Waits]:
    """Return what is noted of partitions whose topics there are.

    Raises:
        RemoteStorageError: no answer, a missing right, or a note that cannot be read.
    """
    copy = tier.config.copy
    notes = await notes_of(tier).read(partitions)
    return [
        _waits(partition, noted, finished(tier.segments(partition)), copy)
        for partition, noted in notes.items()
        if noted.waves or noted.is_held or noted.cut is not None
    ]


def _waits(
    partition: TopicIdPartition, noted: Noted, segments: Sequence[RemoteLogSegmentMetadata], copy: CopyConfig
) -> Waits:
    live_before = max((wave.live_before for wave in noted.waves), default=-1)
    dead_before = max((wave.dead_before for wave in noted.waves), default=-1)
    lineage = TierLineage(segments)
    asked = []
    for segment in segments:
        is_dead = lineage.is_dead(segment)
        is_cut = is_dead and noted.cut is not None
        if is_cut or segment.end_offset < (dead_before if is_dead else live_before):
            asked.append(segment)
    why, until_ms = why_nothing_goes(noted), None
    if why is None:
        since_ms = noted.waves[-1].since_ms
        is_approved = since_ms <= noted.approved_ms
        why = "the copier's next look" if is_approved else "copy.delete.grace.ms"
        until_ms = None if is_approved else since_ms + wait_ms(copy)
    return Waits(
        partition=partition,
        segments=len(asked),
        size_bytes=sum(segment.segment_size_bytes for segment in asked),
        until_ms=until_ms,
        why=why,
    )


def notes_of(tier: OpenTier) -> DeletionNotes:
    """Return where they are."""
    return DeletionNotes(GroupOffsets(tier.upstream, DELETIONS_GROUP))


def names_of(partition: TopicIdPartition) -> dict[str, Any]:
    """The partition as JSON has it."""
    return {"topic": partition.topic, "topic_id": uuid_to_text(partition.topic_id), "partition": partition.partition}
