"""`tidegate stat FILE SEGMENT`: everything about one segment but its records (docs/tools.md#stat).

Its metadata, the objects that it has and should have, what its manifest says, and its indexes. The log itself is not
read: `verify` does that.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import trio

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.offset_index import ENTRY as OFFSET_ENTRY
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.indexes.time_index import ENTRY as TIME_ENTRY
from storage.indexes.transaction_index import TransactionIndex
from storage.model import IndexType, RemoteLogSegmentMetadata, Uuid
from storage.object_store.retries import call_with_retries, wait_in_thread
from storage.remote_storage_manager import OpenedSegment, RemoteStorageManager, SegmentInspection, SegmentObject
from storage.sizes import shown_size
from tidegate import exit_codes
from tidegate.commands.ls import segment_fields
from tidegate.commands.output import iso_time, print_json, print_table, printable
from tidegate.commands.selection import Place, find_segment
from tidegate.commands.tier import OpenTier, run_on_tier
from tidegate.config.model import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class StatOptions:
    """`segment`: an id, or the place of an offset."""

    segment: Place | Uuid
    topic_id: Uuid | None = None
    as_json: bool = False


def run(config: Config, options: StatOptions, out: TextIO) -> int:
    """Show it; exit_codes.FOUND_WRONG if an object is missing or broken."""

    async def work(tier: OpenTier) -> int:
        segment = find_segment(tier.catalog, options.segment, options.topic_id)
        found = await trio.to_thread.run_sync(segment_stat, tier.storage_manager, segment, abandon_on_cancel=True)
        if options.as_json:
            print_json(out, {**tier.identity(), **found})
        else:
            print_stat(out, found)
        return exit_codes.FOUND_WRONG if found["problems"] else exit_codes.DONE

    return run_on_tier(config, work)


def segment_stat(manager: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    """Return what is known of a segment, as JSON has it. Blocks.

    Raises:
        RemoteStorageError: the store's trouble did not pass.
    """
    inspection = call_with_retries(lambda: manager.inspect_segment(segment), None, wait_in_thread)
    problems = [] if inspection.manifest_problem is None else [f"manifest: {inspection.manifest_problem}"]
    for each in inspection.objects:
        problem = _object_problem(each)
        if problem is not None:
            problems.append(f"{each.name}: {problem}")
    indexes = _indexes(inspection, segment, problems)
    objects = [
        {
            "name": each.name,
            "content": each.content.value,
            "size_bytes": each.size_bytes,
            "expected_bytes": each.expected_bytes,
        }
        for each in inspection.objects
        if each.size_bytes is not None or each.is_required
    ]
    return {
        "segment": segment_fields(segment),
        "objects": objects,
        "manifest": dict(inspection.manifest),
        "indexes": indexes,
        "problems": problems,
    }


def print_stat(out: TextIO, found: Mapping[str, Any]) -> None:
    """The same for people."""
    rows = [(name.replace("_", " "), _shown(name, value)) for name, value in found["segment"].items()]
    print_table(out, ("segment", ""), rows)
    out.write("\n")
    objects = [(each["name"], each["content"], _size(each), each["expected_bytes"]) for each in found["objects"]]
    print_table(out, ("object", "content", "bytes", "expected"), objects)
    for title, table in (("manifest", found["manifest"]), ("index", found["indexes"])):
        if table:
            out.write("\n")
            print_table(out, (title, ""), [(name.replace("_", " "), _shown(name, table[name])) for name in table])
    out.write("\n")
    out.writelines(f"WRONG   {printable(problem)}\n" for problem in found["problems"])
    if found["problems"]:
        out.write("`tidegate verify FILE TOPIC:PARTITION` checks the log and all its segments\n")


def _size(each: Mapping[str, Any]) -> str | int:
    return "missing" if each["size_bytes"] is None else int(each["size_bytes"])


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("timestamp_ms"):
        return f"{value} ({iso_time(value)})"
    if name.endswith("bytes") and isinstance(value, int):
        return f"{value} ({shown_size(value)})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(str(key), each)}" for key, each in value.items())
    if isinstance(value, list):
        return "; ".join(_shown(name, each) for each in value)
    return str(value)


def _object_problem(each: SegmentObject) -> str | None:
    if each.size_bytes is None:
        return "it is missing" if each.is_required else None
    if each.expected_bytes not in (None, each.size_bytes):
        return f"it has {each.size_bytes} bytes, and should have {each.expected_bytes}"
    return None


def _indexes(inspection: SegmentInspection, segment: RemoteLogSegmentMetadata, problems: list[str]) -> dict[str, Any]:
    """Return what each index that is there holds, by type."""
    found: dict[str, Any] = {}
    opened = inspection.opened
    if opened is None:
        return found
    present = {kind for each in inspection.objects if each.size_bytes is not None for kind in each.index_types}
    for index_type in (each for each in IndexType if each in present):
        try:
            data = _fetched(opened, index_type, segment)
            found[index_type.name] = {"size_bytes": len(data), **_READERS[index_type](data, segment)}
        except (CorruptObjectError, RemoteResourceNotFoundError, struct.error) as error:
            problems.append(f"{index_type.name} index: {error}")
    return found


def _fetched(opened: OpenedSegment, index_type: IndexType, segment: RemoteLogSegmentMetadata) -> bytes:
    return call_with_retries(lambda: opened.fetch_index(index_type), segment, wait_in_thread)


def _offsets(data: bytes, segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    entries = [(segment.start_offset + offset, position) for offset, position in OFFSET_ENTRY.iter_unpack(data)]
    return _ends([{"offset": offset, "position": position} for offset, position in entries])


def _times(data: bytes, segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    entries = TIME_ENTRY.iter_unpack(data)
    return _ends([{"timestamp_ms": time_ms, "offset": segment.start_offset + offset} for time_ms, offset in entries])


def _transactions(data: bytes, _segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    return _ends(
        [
            {"producer_id": each.producer_id, "first_offset": each.first_offset, "last_offset": each.last_offset}
            for each in TransactionIndex(data)
        ]
    )


def _producers(data: bytes, _segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    return {"entries": len(parse_producer_snapshot(data))}


def _epochs(data: bytes, _segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    epochs = parse_leader_epochs(data)
    return _ends([{"epoch": epoch, "start_offset": start} for epoch, start in epochs])


def _ends(entries: list[dict[str, int]]) -> dict[str, Any]:
    if not entries:
        return {"entries": 0}
    return {"entries": len(entries), "first": entries[0], "last": entries[-1]}


_READERS: Mapping[IndexType, Callable[[bytes, RemoteLogSegmentMetadata], dict[str, Any]]] = {
    IndexType.OFFSET: _offsets,
    IndexType.TIMESTAMP: _times,
    IndexType.TRANSACTION: _transactions,
    IndexType.PRODUCER_SNAPSHOT: _producers,
    IndexType.LEADER_EPOCH: _epochs,
}
