"""A dump as `tidegate takeover` reads it: the catalog, and what brokers knew while they ran (standalone.takeover).

It was made by `tidegate metadata dump` when no copier ran any more. One that is not whole, or holds no log starts since
it is of an older Tidegate, is refused. Whether it is the newest is for the takeover to see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from standalone.takeover.cluster_facts import COMPLETE_LINE, PARTITION_LINE, PartitionFacts, facts_of
from storage.errors import MetadataRecordError, TierError
from storage.metadata.catalog import Catalog
from storage.metadata.dump_lines import LINE_CHARACTERS_MAX, parse_line
from storage.metadata.reading import MetadataEvent
from storage.metadata.serde import decode
from storage.model import TopicIdPartition, Uuid, uuid_from_text

DUMP_AGAIN: Final = "dump again while the brokers run, after the last copier has stopped: `tidegate metadata dump FILE`"


@dataclass(slots=True)
class TakeoverDump:
    """`brokers`: their addresses by id. `ends`: where the metadata topic's partitions ended, by number."""

    catalog: Catalog
    facts: dict[TopicIdPartition, PartitionFacts] = field(default_factory=dict)
    metadata_topic_id: Uuid = field(default_factory=lambda: Uuid(bytes(16)))
    cluster_id: str = ""
    brokers: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    ends: Sequence[int] = ()


def read_dump(path: Path, segments_max: int) -> TakeoverDump:
    """Return what a dump holds.

    Raises:
        TierError: it is not whole, or a line is none of a dump's.
        OSError: it cannot be read.
    """
    dump = TakeoverDump(Catalog(segments_max))
    records, number, complete = 0, 0, None
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(LINE_CHARACTERS_MAX):
            number += 1
            found = parse_line(line, number)
            try:
                if number == 1:
                    dump.metadata_topic_id = uuid_from_text(_head(found)["metadata_topic_id"])
                elif isinstance(found, MetadataEvent):
                    records += 1
                    _apply(dump.catalog, found)
                elif found is not None:
                    complete = _take(dump, found)
            except (KeyError, TypeError, ValueError, MetadataRecordError) as error:
                raise TierError(f"{path}: line {number} cannot be read ({error!r}): {DUMP_AGAIN}") from error
    if complete is None:
        raise TierError(
            f"{path} does not end as a dump for a takeover does (it was cut off, or is of mode=replica or of an older "
            f"Tidegate, which did not write the committed log starts): {DUMP_AGAIN}"
        )
    if (complete["records"], complete["partitions"]) != (records, len(dump.facts)):
        raise TierError(
            f"{path} should have {complete['records']} records and {complete['partitions']} partitions, and has "
            f"{records} and {len(dump.facts)}: {DUMP_AGAIN}"
        )
    if dump.catalog.refused_partitions:
        raise TierError(f"{path} holds more segments than catalog.segments.max: raise it")
    return dump


def _apply(catalog: Catalog, event: MetadataEvent) -> None:
    if event.value is not None:
        catalog.apply(decode(event.value), initialized=False, is_keyed=event.key is not None)
    elif event.key is not None:
        catalog.apply_tombstone(event.key, initialized=False)


def _head(found: MetadataEvent | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise TypeError("the first line of a dump says of what it is one")
    head: Mapping[str, Any] = found["dump"]
    return head


def _take(dump: TakeoverDump, line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A line that is no record; the last one is given back."""
    if PARTITION_LINE in line:
        facts = facts_of(line[PARTITION_LINE])
        dump.facts[facts.partition] = facts
        return None
    complete: Mapping[str, Any] = line[COMPLETE_LINE]
    dump.cluster_id = str(complete["cluster_id"])
    dump.brokers = {int(node_id): (str(host), int(port)) for node_id, host, port in complete["brokers"]}
    dump.ends = [int(end) for end in complete["ends"]]
    return complete
