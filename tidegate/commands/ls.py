"""`tidegate ls FILE [TOPIC[:PARTITION]]`: what the tier holds, by the metadata alone (docs/tools.md#ls).

Without a place its topics, of a topic the partitions, of a partition the segments. No object is looked at: that is
`stat` and `verify`. What segments take as stored is known where their metadata say so, and with `--stored`, which lists
the store. Holes are offsets between finished segments that no finished segment holds; whether the leader
epochs make more of them `verify` says, which asks the brokers. Segments are dead as far as the tier tells
(tidegate.commands.tier_lineage). What waits to be deleted is shown for partitions where it is noted (mode=standalone)
and we may read it.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

import trio

from storage.config.model import Mode
from storage.config.registry import stored_bytes
from storage.errors import RemoteStorageError
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition, Uuid, uuid_to_text
from storage.sizes import shown_size
from tidegate.commands.deletion_waits import Waits, waits_of
from tidegate.commands.output import iso_time, print_json, print_table
from tidegate.commands.selection import Place, finished, holes, matching
from tidegate.commands.tier import OpenTier, run_on_tier
from tidegate.commands.tier_lineage import TierLineage
from tidegate.config.model import Config

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_SHORT_STATES = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: "copying",
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: "finished",
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: "deleting",
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: "deleted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LsOptions:
    place: Place | None
    topic_id: Uuid | None = None
    lists_store: bool = False
    as_json: bool = False


Stored = Callable[[RemoteLogSegmentMetadata], int | None]
"""What a segment takes in the store; None: nothing says so."""


@dataclass(slots=True)
class Summary:
    """A partition's segments, or several partitions'. Offsets and bytes are of finished segments only."""

    partitions: int = 0
    segments: int = 0
    size_bytes: int = 0
    stored_bytes: int | None = 0
    start_offset: int | None = None
    end_offset: int | None = None
    max_timestamp_ms: int = -1
    states: Counter[RemoteLogSegmentState] = field(default_factory=Counter)
    holes: list[tuple[int, int]] = field(default_factory=list)
    hole_count: int = 0
    dead_segments: int = 0

    @classmethod
    def of(cls, segments: Sequence[RemoteLogSegmentMetadata], stored: Stored = lambda _: None) -> "Summary":
        """Return the summary of one partition."""
        whole = finished(segments)
        found_holes, lineage = holes(whole), TierLineage(whole)
        return cls(
            partitions=1,
            segments=len(segments),
            size_bytes=sum(each.segment_size_bytes for each in whole),
            stored_bytes=_sum(map(stored, whole)),
            start_offset=min((each.start_offset for each in whole), default=None),
            end_offset=max((each.end_offset for each in whole), default=None),
            max_timestamp_ms=max((each.max_timestamp_ms for each in whole), default=-1),
            states=Counter(each.state for each in segments),
            holes=found_holes,
            hole_count=len(found_holes),
            dead_segments=sum(map(lineage.is_dead, whole)),
        )

    def add(self, other: "Summary") -> None:
        """Another partition's. Its offsets mean nothing here, and its holes are only counted."""
        self.partitions += other.partitions
        self.segments += other.segments
        self.size_bytes += other.size_bytes
        self.stored_bytes = _sum([self.stored_bytes, other.stored_bytes])
        self.max_timestamp_ms = max(self.max_timestamp_ms, other.max_timestamp_ms)
        self.states += other.states
        self.hole_count += other.hole_count
        self.dead_segments += other.dead_segments

    def as_json(self) -> dict[str, Any]:
        """Return what topics and partitions have in common."""
        return {
            "segments": self.segments,
            "size_bytes": self.size_bytes,
            "stored_bytes": self.stored_bytes,
            "max_timestamp_ms": self.max_timestamp_ms,
            "states": {state.name: self.states[state] for state in sorted(self.states)},
            "dead_segments": self.dead_segments,
        }

    def shown_states(self) -> str:
        """For people: what is finished goes without saying."""
        unfinished = sorted(state for state in self.states if state is not _FINISHED)
        return ", ".join(f"{self.states[state]} {_SHORT_STATES[state]}" for state in unfinished)


def run(config: Config, options: LsOptions, out: TextIO) -> int:
    """List; exit_codes.FOUND_WRONG if the catalog lacks something."""

    async def work(tier: OpenTier) -> int:
        partitions = matching(tier.catalog, options.place, options.topic_id)
        stored: Stored = partial(stored_bytes, config.remote_storage_manager_class_name)
        if options.lists_store:
            topic = None if options.place is None else options.place.topic
            stored = await trio.to_thread.run_sync(_listed, tier, topic, abandon_on_cancel=True)
        if options.place is None:
            list_topics(tier, partitions, stored, options, out)
        elif options.place.partition is None:
            list_partitions(tier, partitions, await _waits(tier, partitions), stored, options, out)
        else:
            list_segments(tier, partitions, stored, options, out)
        return tier.tell_problems()

    return run_on_tier(config, work)


def _listed(tier: OpenTier, topic: str | None) -> Stored:
    """Blocks. A segment without objects takes nothing."""
    sizes = Counter[Uuid]()
    for found in tier.storage_manager.list_objects(topic):
        if found.segment_id is not None:
            sizes[found.segment_id.id] += found.size_bytes
    return lambda segment: sizes[segment.segment_id.id]


def _sum(sizes: Iterable[int | None]) -> int | None:
    """None where one is not known."""
    listed = [*sizes]
    return None if None in listed else sum(size for size in listed if size is not None)


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else shown_size(size_bytes)


def list_topics(
    tier: OpenTier, partitions: Iterable[TopicIdPartition], stored: Stored, options: LsOptions, out: TextIO
) -> None:
    topics: dict[tuple[str, Uuid], Summary] = {}
    for partition in partitions:
        summary = topics.setdefault((partition.topic, partition.topic_id), Summary())
        summary.add(Summary.of(tier.segments(partition), stored))
    if options.as_json:
        found = [
            {
                "topic": topic,
                "topic_id": uuid_to_text(topic_id),
                "partitions": each.partitions,
                **each.as_json(),
                "holes": each.hole_count,
            }
            for (topic, topic_id), each in topics.items()
        ]
        print_json(out, {**tier.identity(), "topics": found})
        return
    rows = [
        (
            topic,
            uuid_to_text(topic_id),
            each.partitions,
            each.segments,
            shown_size(each.size_bytes),
            _size(each.stored_bytes),
            iso_time(each.max_timestamp_ms),
            each.hole_count,
            each.shown_states(),
            each.dead_segments,
        )
        for (topic, topic_id), each in topics.items()
    ]
    headings = ("topic", "topic id", "partitions", "segments", "size", "stored", "newest record", "holes")
    print_table(out, (*headings, "unfinished", "dead"), rows)


async def _waits(tier: OpenTier, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, Waits]:
    """Return what waits to be deleted of these; nothing if that is not told, which is said."""
    if tier.config.mode is not Mode.STANDALONE:
        return {}
    try:
        return {each.partition: each for each in await waits_of(tier, partitions)}
    except RemoteStorageError as error:
        print(f"tidegate: warning: what waits to be deleted is not shown: {error}", file=sys.stderr)
        return {}


def list_partitions(
    tier: OpenTier,
    partitions: Iterable[TopicIdPartition],
    waits: Mapping[TopicIdPartition, Waits],
    stored: Stored,
    options: LsOptions,
    out: TextIO,
) -> None:
    summaries = [(partition, Summary.of(tier.segments(partition), stored)) for partition in partitions]
    if options.as_json:
        found = [
            {
                **_names(partition),
                "start_offset": each.start_offset,
                "end_offset": each.end_offset,
                **each.as_json(),
                "holes": [{"start_offset": first, "end_offset": last} for first, last in each.holes],
                "deletion": waits[partition].as_json() if partition in waits else None,
            }
            for partition, each in summaries
        ]
        print_json(out, {**tier.identity(), "partitions": found})
        return
    rows = [
        (
            f"{partition.topic}:{partition.partition}",
            uuid_to_text(partition.topic_id),
            each.start_offset,
            each.end_offset,
            each.segments,
            shown_size(each.size_bytes),
            _size(each.stored_bytes),
            iso_time(each.max_timestamp_ms),
            _shown_holes(each.holes),
            each.shown_states(),
            each.dead_segments,
            waits[partition].shown() if partition in waits else None,
        )
        for partition, each in summaries
    ]
    offsets = ("first offset", "last offset")
    columns = ("segments", "size", "stored", "newest record", "holes", "unfinished", "dead", "to be deleted")
    print_table(out, ("partition", "topic id", *offsets, *columns), rows)


def _dead(tier: OpenTier, partition: TopicIdPartition) -> set[Uuid]:
    whole = finished(tier.segments(partition))
    lineage = TierLineage(whole)
    return {segment.segment_id.id for segment in whole if lineage.is_dead(segment)}


def list_segments(
    tier: OpenTier, partitions: Sequence[TopicIdPartition], stored: Stored, options: LsOptions, out: TextIO
) -> None:
    dead = set[Uuid]().union(*(_dead(tier, partition) for partition in partitions))
    segments = [
        segment
        for partition in partitions
        for segment in sorted(tier.segments(partition), key=lambda each: (each.start_offset, each.event_timestamp_ms))
    ]
    if options.as_json:
        found = [
            {**segment_fields(each), "stored_bytes": stored(each), "dead": each.segment_id.id in dead}
            for each in segments
        ]
        print_json(out, {**tier.identity(), "segments": found})
        return
    rows = [
        (
            uuid_to_text(segment.segment_id.id),
            segment.start_offset,
            segment.end_offset,
            shown_size(segment.segment_size_bytes),
            _size(stored(segment)),
            iso_time(segment.max_timestamp_ms),
            ", ".join(f"{epoch}@{start}" for epoch, start in segment.segment_leader_epochs.items()),
            "dead" if segment.segment_id.id in dead else _SHORT_STATES[segment.state],
            iso_time(segment.event_timestamp_ms),
        )
        for segment in segments
    ]
    headings = ("segment", "first offset", "last offset", "size", "stored", "newest record", "epochs", "state", "since")
    print_table(out, headings, rows)


def segment_fields(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    """A segment's metadata as JSON has it; Kafka's names, offsets inclusive."""
    custom = segment.custom_metadata
    return {
        **_names(segment.topic_id_partition),
        "segment_id": uuid_to_text(segment.segment_id.id),
        "state": segment.state.name,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "size_bytes": segment.segment_size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "broker_id": segment.broker_id,
        "leader_epochs": {str(epoch): start for epoch, start in segment.segment_leader_epochs.items()},
        "txn_index_empty": segment.txn_index_empty,
        "custom_metadata": None if custom is None else custom.hex(),
    }


def _names(partition: TopicIdPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "topic_id": uuid_to_text(partition.topic_id), "partition": partition.partition}


def _shown_holes(found: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{first}-{last}" for first, last in found[:3])
    return shown + (f" and {len(found) - 3} more" if len(found) > 3 else "")
