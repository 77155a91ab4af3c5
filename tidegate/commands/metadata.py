"""`tidegate metadata dump FILE` and `import FILE LINES`: the metadata topic as JSON lines (docs/tools.md#metadata).

- A line is a record: where it was, its time, key and value as base64, and, for people, what the value says. Import
  publishes the key, the value and the time as they stand there, byte for byte, and reads nothing else of a record but
  its ids: to the metadata partition that the topic's own partition count gives them.
- The first line names cluster and topic. `--current` writes the records that make up what the catalog holds now,
  without the history of what was deleted. The last lines of a tier of mode=standalone are for `tidegate takeover`
  (standalone.takeover.cluster_facts); import passes over them.
- Import is a dry run unless `writes`. It refuses a topic that has records of one of these segments already, since a
  record that is read twice is an illegal change of state to every broker; `appends` says that this is meant.
- No topic of another cluster has the ids of these records. So that a copier takes none of them for deleted, an import
  from another cluster marks all partitions as held (mode=standalone; `tidegate deletions`).
- Lines are published in chunks, in the order of each metadata partition; an interrupted import says where to go on.

Memory: a chunk of lines, and of an import 16 bytes and an entry of a set for each segment.
"""

import base64
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import trio

from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.copier.gone_topics import HELD_MS
from standalone.takeover.cluster_facts import takeover_lines
from storage.config.client_settings import client_settings
from storage.config.model import Mode
from storage.errors import MetadataRecordError, TierError
from storage.metadata.dump_lines import LINE_CHARACTERS_MAX, LineError, parse_line
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.metadata.reading import MetadataEvent, partition_of
from storage.metadata.record_batches import build_batches
from storage.metadata.serde import MetadataRecord, decode, decode_key
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
    uuid_to_text,
)
from storage.wall_clock import wall_clock_ms
from tidegate import exit_codes
from tidegate.commands.ls import segment_fields
from tidegate.commands.output import Progress, print_json, print_json_line, printable
from tidegate.commands.selection import matching
from tidegate.commands.tier import MetadataTopic, OpenTier, Told, open_metadata_topic, run_command, run_on_tier
from tidegate.config.model import Config

FETCH_WAIT_MS = 500
EMPTY_ANSWERS_MAX = 20
"""Ten seconds without a record below the end that the leader itself has named."""

CHUNK_LINES = 5000
NOBODY: Final = -1
"""In place of a broker's id."""

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


# --- dump ---


def dump(config: Config, out: TextIO, *, current: bool = False) -> int:
    """Write the lines; exit_codes.FOUND_WRONG if a record cannot be decoded."""
    if current:
        return run_on_tier(config, partial(_dump_current, out))
    return _on_topic(config, partial(_dump_all, config, out))


async def _dump_all(config: Config, out: TextIO, topic: MetadataTopic, upstream: Cluster) -> int:
    records = undecodable = 0
    partitions: set[TopicIdPartition] = set()

    def take(event: MetadataEvent) -> None:
        nonlocal records, undecodable
        line = record_line(event)
        records += 1
        undecodable += "undecodable" in line
        print_json_line(out, line)
        record = _decoded(event)
        if record is not None:
            partitions.add(partition_of(record))

    print_json_line(out, {"dump": _identity(topic)})
    with Progress("reading metadata", "records", is_wanted=not out.isatty()) as progress:
        await read_records(topic, take, progress.told)
    if config.mode is Mode.STANDALONE:
        ends = {number: end for number, (_, end) in topic.ranges.items()}
        for line in await takeover_lines(upstream, partitions, ends, records):
            print_json_line(out, line)
    if undecodable:
        print(
            f"tidegate: {undecodable} records cannot be decoded; their lines say why. Is Tidegate older than the "
            "brokers?",
            file=sys.stderr,
        )
    return exit_codes.FOUND_WRONG if undecodable else exit_codes.DONE


async def _dump_current(out: TextIO, tier: OpenTier) -> int:
    print_json_line(out, {"dump": {**_identity(tier.metadata), "current": True}})
    count = 0
    for partition in matching(tier.catalog, None):
        number = _partition_for(partition, tier.metadata.description.partition_count)
        for segment in sorted(tier.segments(partition), key=lambda each: (each.start_offset, each.segment_id.id)):
            for record in records_of(segment):
                event = MetadataEvent(number, -1, segment.event_timestamp_ms, None, encode(record))
                print_json_line(out, record_line(event))
                count += 1
        await trio.lowlevel.checkpoint()
    if tier.config.mode is Mode.STANDALONE and not tier.problems():
        for line in await takeover_lines(tier.upstream, tier.catalog.partitions(), tier.positions(), count):
            print_json_line(out, line)
    return tier.tell_problems()


def records_of(segment: RemoteLogSegmentMetadata) -> Sequence[MetadataRecord]:
    """The records that give a catalog this segment as it is."""
    started = replace(segment, state=_STARTED)
    if segment.state is _STARTED:
        return [started]
    update = RemoteLogSegmentMetadataUpdate(
        segment.segment_id, segment.event_timestamp_ms, segment.state, segment.broker_id, segment.custom_metadata
    )
    return [replace(started, custom_metadata=None), update]


def record_line(event: MetadataEvent) -> dict[str, Any]:
    """A record as JSON has it."""
    line: dict[str, Any] = {
        "metadata_partition": event.partition,
        "offset": event.offset,
        "timestamp_ms": event.timestamp_ms,
        "key": _base64(event.key),
        "value": _base64(event.value),
    }
    if event.value is None:
        return line
    try:
        return {**line, **_record_fields(decode(event.value))}
    except MetadataRecordError as error:
        return {**line, "undecodable": str(error)}


def _record_fields(record: MetadataRecord) -> dict[str, Any]:
    match record:
        case RemoteLogSegmentMetadata():
            return {"type": "segment", "record": segment_fields(record)}
        case RemoteLogSegmentMetadataUpdate():
            return {"type": "update", "record": _update_fields(record)}
        case RemotePartitionDeleteMetadata():
            partition = record.topic_id_partition
            fields = {"state": record.state.name, **_times(record), **_names(partition)}
            return {"type": "partition delete", "record": fields}


def _update_fields(record: RemoteLogSegmentMetadataUpdate) -> dict[str, Any]:
    custom = record.custom_metadata
    return {
        **_names(record.segment_id.topic_id_partition),
        "segment_id": uuid_to_text(record.segment_id.id),
        "state": record.state.name,
        **_times(record),
        "custom_metadata": None if custom is None else custom.hex(),
    }


def _times(record: RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata) -> dict[str, Any]:
    return {"event_timestamp_ms": record.event_timestamp_ms, "broker_id": record.broker_id}


def _names(partition: TopicIdPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "topic_id": uuid_to_text(partition.topic_id), "partition": partition.partition}


def _identity(topic: MetadataTopic) -> dict[str, Any]:
    return {
        "cluster_id": topic.cluster.cluster_id,
        "metadata_topic_id": uuid_to_text(topic.description.topic_id),
        "metadata_partitions": topic.description.partition_count,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


# --- import ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """`lines`: a file, which is read twice. `after`: that line, counted from 1, was the last one that an import which
    broke off has published."""

    lines: Path
    writes: bool = False
    appends: bool = False
    after: int = 0
    as_json: bool = False


@dataclass(slots=True)
class Plan:
    """What an import would publish."""

    source: Mapping[str, Any] = field(default_factory=dict)
    records: int = 0
    types: Counter[str] = field(default_factory=Counter)
    partitions: set[TopicIdPartition] = field(default_factory=set)
    segments: set[bytes] = field(default_factory=set)

    def add(self, event: MetadataEvent) -> None:
        """Another record."""
        self.records += 1
        record = _decoded(event)
        self.types["undecodable" if record is None else _record_fields(record)["type"]] += 1
        if record is not None:
            self.partitions.add(partition_of(record))
        if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
            self.segments.add(record.segment_id.id)

    @property
    def topics(self) -> set[str]:
        """By name."""
        return {partition.topic for partition in self.partitions}

    def is_from(self, cluster_id: str | None) -> bool:
        """Return whether the lines say that they are of this cluster."""
        return bool(self.source.get("cluster_id") == cluster_id)

    def lines(self, topic: MetadataTopic) -> Iterator[str]:
        """The plan for people."""
        into, source = _identity(topic), self.source
        yield f"into  cluster {into['cluster_id']}, {METADATA_TOPIC} {into['metadata_topic_id']}"
        if source:
            yield f"from  cluster {source.get('cluster_id')}, {METADATA_TOPIC} {source.get('metadata_topic_id')}"
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.types.items()))
        yield f"{self.records} records ({kinds or 'none'}) of {len(self.segments)} segments, {len(self.topics)} topics"

    def document(self, topic: MetadataTopic, known: set[bytes], published: int) -> dict[str, Any]:
        """The plan and what came of it, for programs."""
        return {
            "into": _identity(topic),
            "from": dict(self.source) or None,
            "records": self.records,
            "types": dict(sorted(self.types.items())),
            "segments": len(self.segments),
            "segments_known_already": len(known),
            "topics": sorted(self.topics),
            "published": published,
        }


def import_lines(config: Config, options: ImportOptions, out: TextIO) -> int:
    """Publish them, or say what would be published."""
    return _on_topic(config, partial(_import, config.mode, options, out))


async def _import(mode: Mode, options: ImportOptions, out: TextIO, topic: MetadataTopic, _upstream: Cluster) -> int:
    plan = Plan()
    count = topic.description.partition_count
    for event in _events(options, plan):
        place_of(event, count, plan.source)
        plan.add(event)
    if not options.as_json:
        out.writelines(f"{printable(line)}\n" for line in plan.lines(topic))
    known = await _known_segments(topic, plan.segments)
    if known and not options.appends:
        raise TierError(
            f"the metadata topic has records of {len(known)} of these segments already, {uuid_to_text(min(known))} for "
            "one: nothing was published. --append publishes them all the same"
        )
    published = await publish(options, topic, plan) if options.writes else 0
    is_held = options.writes and mode is Mode.STANDALONE and not plan.is_from(topic.cluster.cluster_id)
    if is_held:
        await publish_marks(topic, plan.partitions, HELD_MS + 1)
    if options.as_json:
        print_json(out, plan.document(topic, known, published))
    elif options.writes:
        out.write(f"{published} records published\n")
        if is_held:
            out.write("all of them are held: `tidegate deletions release` lets copiers delete what has no topic here\n")
    else:
        out.write("nothing was published: this was a dry run; --yes does it\n")
    return exit_codes.DONE


async def _known_segments(topic: MetadataTopic, segments: set[bytes]) -> set[bytes]:
    known: set[bytes] = set()

    def take(event: MetadataEvent) -> None:
        record = _decoded(event)
        if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
            known.update({record.segment_id.id} & segments)

    with Progress("reading metadata", "records") as progress:
        await read_records(topic, take, progress.told)
    return known


async def publish(options: ImportOptions, topic: MetadataTopic, plan: Plan) -> int:
    """Publish the lines' records; how many they were. When it breaks off it says where to go on.

    Raises:
        RemoteStorageError: the topic does not take them.
    """
    published, line_number = 0, options.after
    chunk: dict[int, list[MetadataEvent]] = {}
    with Progress("publishing", "records") as progress:
        try:
            for event in _events(options, Plan()):
                number = place_of(event, topic.description.partition_count, plan.source)
                chunk.setdefault(number, []).append(event)
                if sum(map(len, chunk.values())) == CHUNK_LINES:
                    published += await _publish_chunk(topic, chunk)
                    line_number = event.offset
                    progress.told(published, plan.records)
            published += await _publish_chunk(topic, chunk)
        except BaseException:
            go_on = f"go on with --yes --append --after {line_number}"
            print(f"tidegate: {published} records are published for certain; {go_on}", file=sys.stderr)
            raise
    return published


async def _publish_chunk(topic: MetadataTopic, chunk: dict[int, list[MetadataEvent]]) -> int:
    published = 0
    for number, events in chunk.items():
        for batch in build_batches(events):
            await topic.client.produce_batch(number, batch)
        published += len(events)
    chunk.clear()
    return published


async def publish_marks(topic: MetadataTopic, partitions: Iterable[TopicIdPartition], marked_ms: int) -> None:
    """Say that these are to be deleted as wholes, as of then (standalone.copier.gone_topics).

    Raises:
        RemoteStorageError: the topic does not take it.
    """
    chunk: dict[int, list[MetadataEvent]] = {}
    now_ms = wall_clock_ms()
    for partition in partitions:
        number = _partition_for(partition, topic.description.partition_count)
        record = RemotePartitionDeleteMetadata(partition, _MARKED, marked_ms, NOBODY)
        chunk.setdefault(number, []).append(MetadataEvent(number, -1, now_ms, None, encode(record)))
    await _publish_chunk(topic, chunk)


def place_of(event: MetadataEvent, partition_count: int, source: Mapping[str, Any]) -> int:
    """The metadata partition that a record belongs to in a topic of so many.

    Raises:
        LineError: it names no partition, and the topic that it came from was divided otherwise.
    """
    record = _decoded(event)
    if record is not None:
        return _partition_for(partition_of(record), partition_count)
    key = None if event.key is None else decode_key(event.key)
    if key is not None:
        return metadata_partition(key.topic_id, key.partition, partition_count)
    if source.get("metadata_partitions") == partition_count and 0 <= event.partition < partition_count:
        return event.partition
    raise LineError(
        f"line {event.offset}: nothing tells which of the {partition_count} metadata partitions it belongs to; leave "
        "it out"
    )


def _events(options: ImportOptions, plan: Plan) -> Iterator[MetadataEvent]:
    """The records of the lines; their offsets are the lines' numbers. The head's ids go into the plan."""
    number = 0
    try:
        with options.lines.open(encoding="utf-8") as file:
            while line := file.readline(LINE_CHARACTERS_MAX):
                number += 1
                found = parse_line(line, number)
                if isinstance(found, Mapping):
                    plan.source = found.get("dump", plan.source)
                elif found is not None and number > options.after:
                    yield found
    except UnicodeDecodeError as error:
        raise LineError(
            f"{options.lines} is not UTF-8 behind line {number} ({error.reason}): name what `tidegate metadata dump`"
            " wrote"
        ) from error


def _decoded(event: MetadataEvent) -> MetadataRecord | None:
    try:
        return None if event.value is None else decode(event.value)
    except MetadataRecordError:
        return None


def _partition_for(partition: TopicIdPartition, partition_count: int) -> int:
    return metadata_partition(Uuid(partition.topic_id), partition.partition, partition_count)


# --- both ---


async def read_records(topic: MetadataTopic, take: Callable[[MetadataEvent], None], told: Told) -> None:
    """Every record that the topic had when it was opened, one metadata partition after the other.

    Raises:
        TierError: a partition ends before the offset that its leader named.
        RemoteStorageError: it cannot be read.
    """
    total = sum(end - start for start, end in topic.ranges.values())
    done = 0
    for number, (start, end) in topic.ranges.items():
        offset, empty_answers = start, 0
        while offset < end:
            fetched = await topic.client.fetch(number, offset, max_wait_ms=FETCH_WAIT_MS)
            for event in fetched.records:
                if offset <= event.offset < end:
                    take(event)
            empty_answers = 0 if fetched.next_offset > offset else empty_answers + 1
            if empty_answers == EMPTY_ANSWERS_MAX:
                raise TierError(
                    f"{METADATA_TOPIC}-{number} ends at {end}, but gives no records from {offset} on: run the command "
                    "again, and see to the topic's leader if that does not help"
                )
            done += min(max(fetched.next_offset, offset), end) - offset
            offset = max(fetched.next_offset, offset)
            told(done, total)


def _on_topic(config: Config, work: Callable[[MetadataTopic, Cluster], Awaitable[int]]) -> int:
    async def opened() -> int:
        async with trio.open_nursery() as nursery:
            upstream = Cluster(client_settings(config.upstream), nursery)
            await upstream.refresh()
            async with open_metadata_topic(config, upstream, nursery) as topic:
                exit_code = await work(topic, upstream)
            nursery.cancel_scope.cancel()
        return exit_code

    return run_command(opened)
