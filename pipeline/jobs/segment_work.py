"""The same work on many segments, on the executors; what a segment gave is kept, and not done again.

One segment is one Spark task. Segments are worked on in waves, so that a job that is killed has lost one wave at most.
What is in the folder (pipeline.jobs.job_folder), if the job has one:

| path | what |
|---|---|
| `segments/NAME-0123abcd/` | the rows of one wave, as Parquet |
| `segments/NAME-0123abcd.json` | the wave is done, and these segments are in it: written last |

Rules:
1. A segment never changes, so its rows hold as long as the same work is asked of it: NAME says which work, with a
   version, and the key of a piece says which segment and which of its offsets.
2. A wave's name comes from the keys in it: a wave that was cut off is written anew in its own place.
3. Rows of segments that are not wanted any more (deleted since) stay in the folder, and are in no answer.
4. Credentials travel in the pickled function (rule 1 of pipeline.reading.executor_storage).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from pipeline.failures import sentence_first
from pipeline.jobs.job_folder import JobFolder
from pipeline.reading.executor_storage import ShippedStorage, open_shipped_storage
from storage.model import RemoteLogSegmentMetadata, uuid_to_text
from storage.remote_storage_manager import RemoteStorageManager

KEY_COLUMN = "segment_key"
SEGMENTS_PER_CORE = 8
"""Of a wave: cores wait for the last task of a wave, which is an eighth of it."""
WAVE_SEGMENTS_MIN, WAVE_SEGMENTS_MAX = 16, 1024


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """What is wanted of a segment: its offsets [first_offset, end_offset)."""

    segment: RemoteLogSegmentMetadata
    first_offset: int
    end_offset: int

    @property
    def key(self) -> str:
        """Names the piece among all that there will ever be."""
        return f"{uuid_to_text(self.segment.segment_id.id)}:{self.first_offset}:{self.end_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWork:
    """What is done with each. `function` is one of a module's, since workers import it; `schema` is of its batches,
    without KEY_COLUMN."""

    name: str
    function: Callable[[RemoteStorageManager, SegmentPiece], Iterator[pa.RecordBatch]]
    schema: str


OnWave = Callable[[int, int], None]
"""Told how many pieces are done, and how many there are: before the first wave (some, of an earlier job), and after
each."""


def run_segment_work(
    spark: SparkSession,
    shipped: ShippedStorage,
    work: SegmentWork,
    pieces: Sequence[SegmentPiece],
    folder: JobFolder | None,
    on_wave: OnWave,
) -> DataFrame:
    """The rows of all pieces, with KEY_COLUMN first.

    Without a folder nothing is kept but in Spark's own storage, and the work is done when the rows are first asked for.

    Raises:
        Whatever the work raises, as Spark reports it.
    """
    if folder is None:
        on_wave(0, len(pieces))
        return _worked(spark, shipped, work, pieces).persist(StorageLevel.MEMORY_AND_DISK)
    wanted = {piece.key: piece for piece in pieces}
    waves = {name: keys for name, keys in _kept(folder, work) if not wanted.keys().isdisjoint(keys)}
    done = {key for keys in waves.values() for key in keys if key in wanted}
    left = [piece for key, piece in wanted.items() if key not in done]
    on_wave(len(done), len(wanted))
    size = min(max(WAVE_SEGMENTS_MIN, SEGMENTS_PER_CORE * spark.sparkContext.defaultParallelism), WAVE_SEGMENTS_MAX)
    for at in range(0, len(left), size):
        wave = left[at : at + size]
        name, keys = _wave_name(work, wave), [piece.key for piece in wave]
        # One file: a job over many segments would read as many.
        _worked(spark, shipped, work, wave).repartition(1).write.mode("overwrite").parquet(f"{folder.root}/{name}")
        folder.write_json(f"{name}.json", {"keys": keys})
        waves[name] = keys
        on_wave(len(done) + at + len(wave), len(wanted))
    return _read(spark, folder, work, waves, wanted)


def _worked(
    spark: SparkSession, shipped: ShippedStorage, work: SegmentWork, pieces: Sequence[SegmentPiece]
) -> DataFrame:
    function, todo = work.function, tuple(pieces)

    def work_on(numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        with sentence_first():
            manager = open_shipped_storage(shipped)
            for number in numbers:
                piece = todo[number]
                for rows in function(manager, piece):
                    keys = [piece.key] * rows.num_rows
                    yield from zip(keys, *(column.to_pylist() for column in rows.columns), strict=True)

    # Not mapInArrow, which needs pandas for nothing that is of use here. A segment has few rows.
    rows = spark.sparkContext.parallelize(range(len(todo)), max(1, len(todo))).mapPartitions(work_on)
    return spark.createDataFrame(rows, _schema(work), verifySchema=False)


def _read(
    spark: SparkSession,
    folder: JobFolder,
    work: SegmentWork,
    waves: Mapping[str, Sequence[str]],
    wanted: Mapping[str, Any],
) -> DataFrame:
    if not waves:
        return spark.createDataFrame([], _schema(work))
    rows = spark.read.schema(_schema(work)).parquet(*[f"{folder.root}/{name}" for name in sorted(waves)])
    if all(key in wanted for keys in waves.values() for key in keys):
        return rows
    keys = spark.createDataFrame([(key,) for key in wanted], f"{KEY_COLUMN} string")
    return rows.join(keys, KEY_COLUMN, "left_semi")


def _kept(folder: JobFolder, work: SegmentWork) -> Iterator[tuple[str, list[str]]]:
    for file in folder.names(f"segments/{work.name}-*.json"):
        kept = folder.read_json(file)
        if kept is not None:
            yield file.removesuffix(".json"), [str(key) for key in kept["keys"]]


def _wave_name(work: SegmentWork, wave: Sequence[SegmentPiece]) -> str:
    keys = "\n".join(piece.key for piece in wave)
    return f"segments/{work.name}-{hashlib.sha256(keys.encode()).hexdigest()[:32]}"


def _schema(work: SegmentWork) -> str:
    return f"{KEY_COLUMN} string, {work.schema}"
