"""A scan as Parquet files in a folder, one for each task, in bounded memory; it can be killed and goes on.

How it goes on without gap or repeat:
1. The first export writes its plan into the folder (`_scan.json`): which segments' ranges are which file. Another
   export of the same scan into the folder takes that plan, whatever the tier has by then. One of another scan is
   refused.
2. A file has a name of its own, with a dot in front, until it is whole on disk, and is renamed then. A file with its
   right name is not read for again.
3. When all are there `_SUCCESS` is written and the plan is deleted.

A row group is ROW_GROUP_BYTES of rows, or what is left. A task without rows is a file without rows.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import MetadataRecordError
from storage.metadata.encoding import encode
from storage.metadata.serde import decode
from table.planning.request import OptionsError
from table.tasks import AbortedTransaction, SegmentTask, TailTask, Task, TierTask

if TYPE_CHECKING:
    from storage.model import RemoteLogSegmentMetadata
    from table.history.scan import Scan, ScanStats

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
PLAN: Final = "_scan.json"
DONE: Final = "_SUCCESS"
_VERSION: Final = 1
_KEPT_STATS: Final = ("of_segments", "of_bytes", "not_tiered_offsets", "of_tasks")


def export(scan: "Scan", folder: Path) -> None:
    """Write the files.

    Raises:
        OptionsError: the folder holds something else, or the scan has a limit.
        Exception: as the scan's reading; the same export goes on where this one ended.
    """
    if scan.limit is not None:
        raise OptionsError(["to_parquet takes no limit: pyarrow.parquet.write_table(scan.to_table(), …) does"])
    folder.mkdir(parents=True, exist_ok=True)
    identity = hashlib.sha256(scan.described().encode()).hexdigest()
    if (folder / DONE).exists():
        raise OptionsError([f"{folder} holds a finished export"])
    if (folder / PLAN).exists():
        planned, stats = _read_plan(folder / PLAN, identity)
        scan.begin_with(stats)
    elif any(folder.glob("*.parquet")):
        raise OptionsError([f"{folder} holds Parquet files that are of no unfinished export"])
    else:
        planned = scan.begin()
        _write_whole(folder / PLAN, json.dumps(_plan_document(planned, identity, scan.stats)).encode())
    for number, each in enumerate(scan.tasks_of(planned)):
        path = folder / f"part-{number:05d}.parquet"
        if not path.exists():
            _write_file(scan.counted(each), each.rows.schema, path)
    _write_whole(folder / DONE, b"")
    (folder / PLAN).unlink()


def _write_file(batches: Iterator[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        with pq.ParquetWriter(file, schema) as writer:
            group: list[pa.RecordBatch] = []
            for batch in batches:
                group.append(batch)
                if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group))
                    group.clear()
                del batch
            if group:
                writer.write_table(pa.Table.from_batches(group))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _plan_document(tasks: Sequence[Task], identity: str, stats: "ScanStats") -> dict[str, Any]:
    segments: dict[bytes, RemoteLogSegmentMetadata] = {}
    written = []
    for task in tasks:
        entry: dict[str, Any] = {"topic": task.topic, "partition": task.partition}
        if isinstance(task, TailTask):
            entry |= {"first_offset": task.first_offset, "end_offset": task.end_offset}
        else:
            segments |= {part.segment.segment_id.id: part.segment for part in task.parts}
            entry["parts"] = [_part_document(part) for part in task.parts]
        written.append(entry)
    encoded = {key.hex(): base64.b64encode(encode(segment)).decode() for key, segment in segments.items()}
    of_how_much = {name: count for name, count in asdict(stats).items() if name in _KEPT_STATS}
    return {"version": _VERSION, "scan": identity, "stats": of_how_much, "segments": encoded, "tasks": written}


def _part_document(part: SegmentTask) -> dict[str, Any]:
    aborted = [[each.producer_id, each.first_offset, each.last_offset] for each in part.aborted]
    return {
        "segment": part.segment.segment_id.id.hex(),
        "positions": [part.start_position, part.end_position],
        "offsets": [part.first_offset, part.end_offset],
        "aborted": aborted,
    }


def _read_plan(path: Path, identity: str) -> "tuple[Sequence[Task], ScanStats]":
    from table.history.scan import ScanStats

    try:
        document = json.loads(path.read_bytes())
        is_known, is_same = document["version"] == _VERSION, document["scan"] == identity
        if is_known and is_same:
            segments = {key: decode(base64.b64decode(text)) for key, text in document["segments"].items()}
            return [_task(entry, segments) for entry in document["tasks"]], ScanStats(**document["stats"])
    except (OSError, ValueError, KeyError, TypeError, MetadataRecordError) as error:
        raise OptionsError([f"{path} is no plan of an export: {error!r}"]) from error
    raise OptionsError([f"{path} is the plan of another scan: go on with that one, or take another folder"])


def _task(entry: dict[str, Any], segments: dict[str, Any]) -> Task:
    topic, partition = entry["topic"], entry["partition"]
    if "parts" not in entry:
        return TailTask(
            topic=topic, partition=partition, first_offset=entry["first_offset"], end_offset=entry["end_offset"]
        )
    parts = [
        SegmentTask(
            segment=segments[part["segment"]],
            start_position=part["positions"][0],
            end_position=part["positions"][1],
            first_offset=part["offsets"][0],
            end_offset=part["offsets"][1],
            aborted=tuple(AbortedTransaction(*each) for each in part["aborted"]),
        )
        for part in entry["parts"]
    ]
    return TierTask(topic=topic, partition=partition, parts=tuple(parts))
