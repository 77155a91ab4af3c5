"""What a check has found: one kind, one place, one sentence. Plain values, so that they travel and can be written."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from storage.model import RemoteLogSegmentId, TopicIdPartition, uuid_to_text


class FindingKind(StrEnum):
    """Values are what tables and reports show."""

    OBJECT_MISSING = "object missing"
    SEGMENT_MISSING = "segment missing"
    """The metadata says that the segment was copied, and none of its objects is there."""
    OBJECT_SIZE = "object size"
    MANIFEST = "manifest"
    """It breaks its format, or is not what the metadata says."""
    OBJECT_CORRUPT = "object corrupt"
    """What the format itself checks does not hold: a tag, a frame, a range."""
    BATCH_CORRUPT = "batch corrupt"
    """The log's bytes are no batch, or its CRC is wrong."""
    OFFSETS = "offsets"
    """A batch's offsets do not follow those before it, or are not the segment's."""
    LEADER_EPOCH = "leader epoch"
    TIMESTAMP = "timestamp"
    INDEX_MISSING = "index missing"
    INDEX = "index"
    """An index breaks its format, or an entry is not what the batches (or the metadata) are."""
    GAP = "gap"
    OVERLAP = "overlap"
    UNFINISHED = "unfinished"
    """A copy or a deletion that began long ago and has not ended."""
    ORPHAN = "orphan"
    """An object that belongs to no segment that the metadata knows."""
    NOT_CHECKED = "not checked"
    """The store, or a missing key, kept the check from looking: nothing is known to be wrong."""


_AS_COPIED = (FindingKind.OFFSETS, FindingKind.LEADER_EPOCH, FindingKind.TIMESTAMP)

WHAT_TO_DO: Final[Mapping[FindingKind, str]] = {
    **dict.fromkeys(
        FindingKind, "restore the object from an older version of it or a backup: the broker reads the same bytes"
    ),
    **dict.fromkeys(
        _AS_COPIED, "a broker copied it so: look at its log of that time, and tell the makers of the storage plug-in"
    ),
    FindingKind.GAP: "see who deleted what held these offsets; `tidegate metadata import` brings back what a dump has. "
    "In standalone mode: see `copy_gap` in the copier's log; what upstream deleted before it was copied is in no place",
    FindingKind.OVERLAP: "nothing if the leader changed at that time: one of them is read",
    FindingKind.UNFINISHED: "see the log of the broker that leads the partition for why it does not end",
    FindingKind.ORPHAN: "`tidegate gc` says which of these may be deleted",
    FindingKind.NOT_CHECKED: "mend what the line says, and run it again",
}
"""For people, docs/tools.md#verify. The first is of what cannot be read, which is any kind that is not named here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`segment` in the 22-character form; `position`: bytes in the object, of a log in its plaintext."""

    kind: FindingKind
    topic: str | None = None
    partition: int | None = None
    segment: str | None = None
    object_name: str | None = None
    position: int | None = None
    detail: str

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Finding":
        """The inverse of `as_json`.

        Raises:
            ValueError, TypeError: not such fields.
        """
        return cls(**{**fields, "kind": FindingKind(fields["kind"])})


def segment_finding(
    kind: FindingKind,
    segment_id: RemoteLogSegmentId,
    detail: str,
    *,
    object_name: str | None = None,
    position: int | None = None,
) -> Finding:
    """A finding about a segment or one of its objects."""
    partition = segment_id.topic_id_partition
    return Finding(
        kind=kind,
        topic=partition.topic,
        partition=partition.partition,
        segment=uuid_to_text(segment_id.id),
        object_name=object_name,
        position=position,
        detail=detail,
    )


def partition_finding(kind: FindingKind, partition: TopicIdPartition, detail: str) -> Finding:
    """A finding about a partition as a whole."""
    return Finding(kind=kind, topic=partition.topic, partition=partition.partition, detail=detail)
