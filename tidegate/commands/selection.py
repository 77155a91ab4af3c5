"""What a tool is to look at: `TOPIC`, `TOPIC:PARTITION`, `TOPIC:PARTITION:OFFSET`, or a segment's id.

A topic's name holds no colon, and Kafka's own tools write partitions like this (`kafka-get-offsets.sh`). A topic that
was deleted and created again may be in the tier twice, by two ids: listings show both, and a command that needs one
partition takes `--topic-id` then.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage.errors import TierError
from storage.metadata.catalog import Catalog
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
    is_topic_name,
    uuid_from_text,
    uuid_to_text,
)

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """None: not narrowed down to one."""

    topic: str
    partition: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.topic, self.partition, self.offset) if part is not None)


def parse_place(text: str, *, parts_max: int = 2) -> Place:
    """The place that a user wrote.

    Raises:
        ValueError: it is none; the message says what one looks like.
    """
    topic, *numbers = text.split(":")
    limits = zip(numbers, (INT32_MAX, INT64_MAX), strict=False)
    are_numbers = all(re.fullmatch(r"[0-9]{1,19}", number) and int(number) <= limit for number, limit in limits)
    if not is_topic_name(topic) or len(numbers) >= parts_max or not are_numbers:
        shown = ("TOPIC", "TOPIC or TOPIC:PARTITION", "TOPIC:PARTITION:OFFSET")[parts_max - 1]
        raise ValueError(f"{text!r} is not {shown}")
    return Place(topic, *map(int, numbers))


def parse_segment(text: str) -> Place | Uuid:
    """A segment's id, or the place of an offset that it holds; ValueError: neither."""
    if ":" not in text:
        return uuid_from_text(text)
    place = parse_place(text, parts_max=3)
    if place.offset is None:
        raise ValueError(f"{text!r} is neither a segment's id nor TOPIC:PARTITION:OFFSET")
    return place


def parse_topic_id(text: str) -> Uuid:
    """A topic's id as Kafka prints it; ValueError: it is none."""
    return uuid_from_text(text)


def matching(catalog: Catalog, place: Place | None, topic_id: Uuid | None = None) -> list[TopicIdPartition]:
    """The catalog's partitions at a place, in order; None: all of them, also if there are none.

    Raises:
        TierError: there is none, but a place was named.
    """
    found = [
        each
        for each in sorted(catalog.partitions(), key=lambda one: (one.topic, one.topic_id, one.partition))
        if (place is None or (each.topic == place.topic and place.partition in (None, each.partition)))
        and topic_id in (None, each.topic_id)
    ]
    if not found and place is not None:
        what = f"topic {place}" if place.partition is None else f"partition {place}"
        with_id = "" if topic_id is None else f" with id {uuid_to_text(topic_id)}"
        raise TierError(f"the tier has no {what}{with_id}: `tidegate ls FILE` shows what it has")
    return found


def one_partition(catalog: Catalog, place: Place, topic_id: Uuid | None = None) -> TopicIdPartition:
    """The partition that is meant.

    Raises:
        TierError: there is none, or more than one.
    """
    if place.partition is None:
        raise TierError(f"{place} names no partition: write {place}:PARTITION")
    found = matching(catalog, place, topic_id)
    if len(found) > 1:
        ids = ", ".join(uuid_to_text(each.topic_id) for each in found)
        raise TierError(
            f"topic {place.topic} was created again, and the tier has more than one of the name: say which one by "
            f"--topic-id ({ids})"
        )
    return found[0]


def find_segment(catalog: Catalog, wanted: Place | Uuid, topic_id: Uuid | None = None) -> RemoteLogSegmentMetadata:
    """The segment of an id, or the one that holds an offset: a finished one of the newest leader epoch, if there is.

    Raises:
        TierError: there is none.
    """
    if not isinstance(wanted, Place):
        return _segment_of_id(catalog, wanted)
    place = wanted
    assert place.offset is not None, "parse_segment takes no other place"
    partition = one_partition(catalog, place, topic_id)
    for epoch in reversed(catalog.epochs(partition.topic_id, partition.partition)):
        found = catalog.lookup(partition.topic_id, partition.partition, epoch, place.offset)
        if found is not None:
            return found
    holding = [
        each
        for each in catalog.list_segments(partition.topic_id, partition.partition)
        if each.start_offset <= place.offset <= each.end_offset
    ]
    if not holding:
        raise TierError(
            f"no segment of {place.topic}:{place.partition} holds offset {place.offset}: `tidegate ls FILE "
            f"{place.topic}:{place.partition}` shows its segments"
        )
    return min(
        holding, key=lambda each: (abs(each.state - RemoteLogSegmentState.COPY_SEGMENT_FINISHED), each.segment_id.id)
    )


def _segment_of_id(catalog: Catalog, segment_id: Uuid) -> RemoteLogSegmentMetadata:
    for partition in catalog.partitions():
        found = catalog.find_segment(RemoteLogSegmentId(partition, segment_id))
        if found is not None:
            return found
    raise TierError(
        f"the tier has no segment {uuid_to_text(segment_id)}: `tidegate ls FILE TOPIC:PARTITION` shows those there are"
    )


def holes(segments: Iterable[RemoteLogSegmentMetadata]) -> list[tuple[int, int]]:
    """The offsets, first and last, between the first and the last finished segment that no finished one holds."""
    found: list[tuple[int, int]] = []
    covered_to: int | None = None
    for segment in finished(segments):
        if covered_to is not None and segment.start_offset > covered_to:
            found.append((covered_to, segment.start_offset - 1))
        covered_to = max(covered_to or 0, segment.end_offset + 1)
    return found


def finished(segments: Iterable[RemoteLogSegmentMetadata]) -> Sequence[RemoteLogSegmentMetadata]:
    """Those that can be read, by start offset."""
    return sorted(
        (each for each in segments if each.state is _FINISHED),
        key=lambda segment: (segment.start_offset, segment.end_offset),
    )
