"""Ten million records are read within a bound of memory, which is far less than they are."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.for_each import for_each
from tests.support.needs import ROOT
from tests.support.segments import Record, SyntheticSegment, build_segment, encode_record
from tests.support.table_tier import TableTier
from tests.support.timed_batches import LZ4, compressed, framed_batch

pytestmark = pytest.mark.needs("linux")

MIB = 1024 * 1024
RECORDS = 10_000_000
PARTITIONS = 2
RECORDS_PER_BATCH = 500
BATCHES_PER_SEGMENT = 200
VALUE_BYTES = 200

READER_PEAK_BYTES_MAX = 320 * MIB
"""Measured: 210 MiB, of which 83 are Python and its packages."""
PARQUET_PEAK_BYTES_MAX = 440 * MIB
"""Measured: 330 MiB: a row group of 64 MiB as well, and what it becomes."""

PROGRAM = """
from pathlib import Path
from table.history.scan import scan
found = scan({config!r}, "orders", catalog={dump!r})
rows = 0
{work}
assert rows == {records}, rows
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line for line in lines if line.startswith("VmHWM")).split()[1])
"""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> TableTier:
    tier = TableTier(tmp_path_factory.mktemp("tier"))
    for partition in range(PARTITIONS):
        tier.add(*segments(), partition=partition)
    return tier


def segments() -> Iterator[SyntheticSegment]:
    """A partition: batches with the same records at other offsets and times."""
    plain = (
        encode_record(Record(key=b"key", value=b"%0*d" % (VALUE_BYTES, number)), number, number)
        for number in range(RECORDS_PER_BATCH)
    )
    body, last = compressed(LZ4, b"".join(plain)), RECORDS_PER_BATCH - 1
    for first in range(0, RECORDS // PARTITIONS, RECORDS_PER_BATCH * BATCHES_PER_SEGMENT):
        bases = range(first, first + RECORDS_PER_BATCH * BATCHES_PER_SEGMENT, RECORDS_PER_BATCH)
        times = ((base, base + last) for base in bases)
        yield build_segment(
            [
                framed_batch(base, body, flags=LZ4, last_delta=last, times=at, record_count=RECORDS_PER_BATCH)
                for base, at in zip(bases, times, strict=True)
            ]
        )


@for_each(
    "work, bytes_max",
    [
        ("for batch in found.to_reader(): rows += batch.num_rows", READER_PEAK_BYTES_MAX),
        (
            "import pyarrow.dataset as ds; found.to_parquet({folder!r}); rows = ds.dataset({folder!r}).count_rows()",
            PARQUET_PEAK_BYTES_MAX,
        ),
    ],
)
def test_ten_million_records_take_no_more_memory_than_few(
    tier: TableTier, tmp_path: Path, work: str, bytes_max: int
) -> None:
    assert bytes_max < RECORDS * VALUE_BYTES / 4
    program = PROGRAM.format(
        config=tier.config, dump=str(tier.dump), work=work.format(folder=str(tmp_path / "out")), records=RECORDS
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < bytes_max
