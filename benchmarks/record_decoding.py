"""Record batches to Arrow columns: the pipeline's decoder against two clients' record readers building the same ones.

    python benchmarks/record_decoding.py [--rounds 5] [--megabytes 16] [--json]

The readers are aiokafka's, which is compiled, and kafka-python's, which is not; each makes a list of every field and
Arrow arrays of the lists. All sides see the same batches (none, lz4, zstd; 16 KB and 1 MB; records of 100 B and 1 KB),
in turns, within one run; a figure is the median of the rounds, in CPU time of the one thread that works. Exit code 1
when the sides' rows are not the same ones, or when the decoder is slower than aiokafka's anywhere.
"""

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from benchmarks.support.decoders import parsed, rates, show
from protocol.record_batches import read_header
from storage.log.log_walk import WalkedBatch
from table.decoding.inflated_batches import RecordDecoder
from table.schema import DEFAULT_COLUMNS, arrow_schema
from table.tasks import ReadOptions
from tests.support.segments import FIRST_TIMESTAMP_MS, Record, encode_record
from tests.support.timed_batches import LZ4, NONE, ZSTD, compressed, framed_batch

TOPIC, PARTITION = "orders", 3
RECORD_BYTES = (100, 1000)
BATCH_BYTES = (16 * 1000, 1000 * 1000)
CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
COLUMNS_ALONE = ("offset", "timestamp")
FLOOR = 1.0

_WORDS = [random.Random(number).randbytes(4).hex().encode() for number in range(300)]

Read = Callable[[Sequence[bytes]], list[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of batch. Rows per second of each side; MB/s are of plain record bytes."""

    record_bytes: int
    batch_bytes: int
    codec: str
    decoder_rows_per_s: float
    aiokafka_rows_per_s: float
    kafka_python_rows_per_s: float
    without_values_rows_per_s: float
    decoder_megabytes_per_s: float
    are_equal: bool

    @property
    def times_aiokafka(self) -> float:
        return self.decoder_rows_per_s / self.aiokafka_rows_per_s

    @property
    def times_kafka_python(self) -> float:
        return self.decoder_rows_per_s / self.kafka_python_rows_per_s

    @property
    def holds(self) -> bool:
        return self.are_equal and self.times_aiokafka >= FLOOR


def main() -> int:
    options = parsed(
        "Record batches to Arrow columns: the decoder against two readers.",
        size="megabytes",
        default=16,
        size_help="plain records of each kind",
    )
    cells = measure(options.rounds, options.megabytes * 1000 * 1000)
    headings = ("record", "batch", "codec", "decoder", "", "aiokafka", "kafka-python", "×", "×", "offset, timestamp")
    show("record batches to Arrow columns, one core", headings, cells, figures, as_json=options.json)
    return 0 if all(cell.holds for cell in cells) else 1


def measure(rounds: int, plain_bytes: int) -> list[Cell]:
    """Every kind of batch."""
    return [
        measure_kind(rounds, plain_bytes, record_bytes, batch_bytes, codec)
        for record_bytes in RECORD_BYTES
        for batch_bytes in BATCH_BYTES
        for codec in CODECS
    ]


def measure_kind(rounds: int, plain_bytes: int, record_bytes: int, batch_bytes: int, codec: str) -> Cell:
    """All sides over the same batches."""
    blobs, rows, size_bytes = make_batches(plain_bytes, record_bytes, batch_bytes, CODECS[codec])
    readers: dict[str, Read] = {
        "decoder": lambda blobs: decode(blobs, DEFAULT_COLUMNS),
        "aiokafka": lambda blobs: read_one_by_one(blobs, lambda blob: AiokafkaRecords(blob).next_batch()),
        "kafka-python": lambda blobs: read_one_by_one(blobs, lambda blob: KafkaPythonRecords(blob).next_batch()),
        "without values": lambda blobs: decode(blobs, COLUMNS_ALONE),
    }
    # The untimed round also compares, and loads what is loaded late.
    tables = [pa.Table.from_batches(readers[name](blobs)) for name in ("decoder", "aiokafka", "kafka-python")]
    are_equal = all(table.equals(tables[0]) for table in tables[1:]) and tables[0].num_rows == rows
    del tables
    found = rates(rounds, rows, {name: partial(read, blobs) for name, read in readers.items()})
    megabytes_per_s = found["decoder"] * size_bytes / rows / 1e6
    return Cell(
        record_bytes,
        batch_bytes,
        codec,
        decoder_rows_per_s=found["decoder"],
        aiokafka_rows_per_s=found["aiokafka"],
        kafka_python_rows_per_s=found["kafka-python"],
        without_values_rows_per_s=found["without values"],
        decoder_megabytes_per_s=megabytes_per_s,
        are_equal=are_equal,
    )


# --- the sides ---


def decode(blobs: Sequence[bytes], columns: tuple[str, ...]) -> list[pa.RecordBatch]:
    """As a task does: a window of about 8 MB after the other."""
    decoder = RecordDecoder(ReadOptions(columns=columns), TOPIC, PARTITION, where="benchmark")
    produced: list[pa.RecordBatch] = []
    for window in windows(blobs):
        batches = [WalkedBatch(0, read_header(blob, 0), memoryview(blob)) for blob in window]
        produced += decoder.decode(batches, first_offset=0, end_offset=2**62)
    return produced


def read_one_by_one(blobs: Sequence[bytes], opened: Callable[[bytes], Iterable[Any]]) -> list[pa.RecordBatch]:
    """With a client's reader: a Python object for every field."""
    schema = arrow_schema(DEFAULT_COLUMNS)
    produced = []
    for window in windows(blobs):
        keys, values, offsets, timestamps, types = [], [], [], [], []
        for blob in window:
            for record in opened(blob):
                keys.append(record.key)
                values.append(record.value)
                offsets.append(record.offset)
                timestamps.append(record.timestamp * 1000)
                types.append(record.timestamp_type)
        count = len(keys)
        columns = [keys, values, [TOPIC] * count, [PARTITION] * count, offsets, timestamps, types]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        produced.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return produced


def windows(blobs: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    """The batches in runs of about 8 MB."""
    each = max(1, 8_000_000 // len(blobs[0]))
    return (blobs[at : at + each] for at in range(0, len(blobs), each))


# --- the batches ---


def make_batches(plain_bytes: int, record_bytes: int, batch_bytes: int, codec: int) -> tuple[list[bytes], int, int]:
    """Batches as a producer makes them, how many records they hold, and those records' plain bytes."""
    rng = random.Random(1)
    blobs, offset, size_bytes = [], 0, 0
    count = batch_bytes // record_bytes
    while size_bytes < plain_bytes:
        plain = b"".join(
            encode_record(record_of(rng, record_bytes, number), number, number // 3) for number in range(count)
        )
        times = (FIRST_TIMESTAMP_MS + offset, FIRST_TIMESTAMP_MS + offset + count)
        body = compressed(codec, plain)
        blobs.append(framed_batch(offset, body, flags=codec, last_delta=count - 1, times=times, record_count=count))
        offset += count
        size_bytes += len(plain)
    return blobs, offset, size_bytes


def record_of(rng: random.Random, record_bytes: int, number: int) -> Record:
    """One of about so many bytes: words, which compress as text does, under a short key."""
    value = b" ".join(rng.choices(_WORDS, k=record_bytes // 9 + 1))[: record_bytes - 20]
    return Record(b"key-%06d" % (number % 10**6), value)


# --- the report ---


def figures(cell: Cell) -> tuple[str, ...]:
    """A row of the table."""
    return (
        f"{cell.record_bytes} B",
        f"{cell.batch_bytes // 1000} KB",
        cell.codec,
        f"{cell.decoder_rows_per_s:,.0f} rows/s",
        f"{cell.decoder_megabytes_per_s:,.0f} MB/s",
        f"{cell.aiokafka_rows_per_s:,.0f} rows/s",
        f"{cell.kafka_python_rows_per_s:,.0f} rows/s",
        f"{cell.times_aiokafka:.1f}",
        f"{cell.times_kafka_python:.0f}",
        f"{cell.without_values_rows_per_s:,.0f} rows/s",
    )


if __name__ == "__main__":
    sys.exit(main())
