"""`tidegate.scan` over S3: what few rows of a topic cost in bytes and GETs, and all of them in processor time.

    python benchmarks/scan.py [--megabytes 569] [--json]

The topic: a day of ascending CreateTime in two partitions, records of about 0.7 kB; once plain and once lz4. It is made
here, batch by batch, as the objects and the dump of metadata that a tier would have; no broker runs. The floor is
boto3, which GETs the same objects whole and drops them. Bytes are of log and indexes; processor time is this process'.
Exit code 1 when a read takes more than its ceiling (MB and GETs at 569 MB of log), or gives another number of rows.
"""

import argparse
import datetime
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import boto3
import pyarrow.compute as pc
from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

from table.history.scan import Scan
from tests.support.s3_server import CREDENTIALS, REGION, S3Server
from tests.support.segments import Record, SyntheticSegment, build_segment, encode_record
from tests.support.table_tier import TableTier
from tests.support.timed_batches import LZ4, NONE, compressed, framed_batch
from tests.support.versitygw import versitygw

DAY_MS: Final = 86_400_000
START_MS: Final = 1_760_000_000_000
PARTITIONS: Final = 2
RECORDS_PER_BATCH: Final = 32
SEGMENT_BYTES: Final = 32 * 1024 * 1024
CEILINGS: Final = {"from hour 22 on": (50.0, 22), "2,000 offsets": (2.0, 2)}
"""MB and GETs, at 569 MB and segments of 32 MiB. Two hours of 24 are 47.4 MB."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One read: rows, MB of log and indexes, GETs, and core-seconds a GB of log."""

    codec: str
    name: str
    rows: int
    megabytes: float
    gets: int
    core_s_per_gb: float


class S3Tier(TableTier):
    """The same folder as a bucket."""

    server: S3Server

    @property
    def config(self) -> dict[str, str]:
        given = {f"rsm.config.{key}": value for key, value in self.server.config(self.folder.name).items()}
        return {
            "upstream.bootstrap.servers": "127.0.0.1:1",
            "remote.log.storage.manager.class.name": "tidegate.PlainObjects",
            "rsm.config.key.prefix": "kafka-tiered-storage/",
            **given,
        }


def main() -> int:
    """Measure, show, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=569)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "buckets", "tier")
        folder.mkdir(parents=True)
        tier = S3Tier(folder)
        tier.dump = Path(name, "metadata.jsonl")
        for codec, number in (("plain", NONE), ("lz4", LZ4)):
            for partition in range(PARTITIONS):
                for segment in segments(number, options.megabytes * 1_000_000 // PARTITIONS):
                    tier.add(segment, topic=codec, partition=partition)
        with versitygw(folder.parent, Path(name, "server"), keeps_metadata=False) as server:
            tier.server = server
            for codec in ("plain", "lz4"):
                figures += measured(tier, codec)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures]))
    else:
        show(figures)
    return int(options.megabytes == 569 and not all(map(is_held, figures)))


def segments(codec: int, size_bytes: int) -> Iterator[SyntheticSegment]:
    """A partition's day: the same records in each batch, with offsets and times that rise."""
    drawn = random.Random(codec)
    words = [drawn.randbytes(6).hex() for _ in range(400)]
    value = [" ".join(drawn.choices(words, k=54)).encode() for _ in range(RECORDS_PER_BATCH)]
    records = (encode_record(Record(key=b"key", value=each), delta, delta) for delta, each in enumerate(value))
    body = compressed(codec, b"".join(records))
    count = size_bytes // len(body)
    batches: list[bytes] = []
    for number in range(count):
        first_ms = START_MS + DAY_MS * number // count
        batch = framed_batch(
            number * RECORDS_PER_BATCH,
            body,
            flags=codec,
            last_delta=RECORDS_PER_BATCH - 1,
            times=(first_ms, first_ms + RECORDS_PER_BATCH - 1),
            record_count=RECORDS_PER_BATCH,
        )
        batches.append(batch)
        if len(batches) * len(body) > SEGMENT_BYTES or number + 1 == count:
            yield build_segment(batches)
            batches = []


def measured(tier: S3Tier, codec: str) -> Iterator[Figure]:
    """The figures of one topic."""
    size_bytes = sum(each.segment_size_bytes for each in tier.segments if each.topic_id_partition.topic == codec)
    yield raw_gets(tier, codec, size_bytes)
    read_all(tier.scan(codec, limit=1))  # what a process loads once is no cost of a GB
    hour_22 = datetime.datetime.fromtimestamp(START_MS / 1000 + 22 * 3600, datetime.UTC)
    reads = {
        "all": tier.scan(codec),
        "from hour 22 on": tier.scan(codec, where=pc.field("timestamp") >= hour_22),
        "2,000 offsets": tier.scan(f"{codec}:0", where="offset >= 100000 and offset < 102000"),
        "count": tier.scan(codec, columns=[]),
    }
    for name, scan in reads.items():
        started = time.process_time()
        rows = scan.count() if name == "count" else read_all(scan)
        spent_s, stats = time.process_time() - started, scan.stats
        yield Figure(codec, name, rows, stats.bytes_read / 1e6, stats.gets, spent_s / stats.bytes_read * 1e9)


def read_all(scan: Scan) -> int:
    """Rows, each batch dropped at once."""
    return sum(batch.num_rows for batch in scan.batches())


def raw_gets(tier: S3Tier, codec: str, size_bytes: int) -> Figure:
    """The floor."""
    client = boto3.client(
        "s3",
        endpoint_url=tier.server.endpoint_url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS.access_key_id,
        aws_secret_access_key=CREDENTIALS.secret_access_key,
    )
    logs = [path.relative_to(tier.folder) for path in tier.folder.rglob("*.log") if path.parent.name.startswith(codec)]
    started = time.process_time()
    for log in logs:
        body = client.get_object(Bucket=tier.folder.name, Key=str(log))["Body"]
        while body.read(1024 * 1024):
            pass
    spent_s = time.process_time() - started
    return Figure(codec, "boto3, objects whole", 0, size_bytes / 1e6, len(logs), spent_s / size_bytes * 1e9)


def is_held(figure: Figure) -> bool:
    """Return whether a read keeps its ceiling, where it has one."""
    megabytes, gets = CEILINGS.get(figure.name, (figure.megabytes, figure.gets))
    return figure.megabytes <= megabytes and figure.gets <= gets


def show(figures: list[Figure]) -> None:
    """A table for people."""
    table = Table("codec", "read", "rows", "MB", "GETs", "core-s/GB", box=SIMPLE_HEAVY)
    for each in figures:
        numbers = (f"{each.rows:,}", f"{each.megabytes:.1f}", str(each.gets), f"{each.core_s_per_gb:.2f}")
        table.add_row(each.codec, each.name, *numbers)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
