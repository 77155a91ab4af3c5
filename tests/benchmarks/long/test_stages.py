"""The benchmarks of cold reads and of workers on stages of their own: that they run and account."""

import pytest

from benchmarks import cold_read, workers
from benchmarks.support.aiven_stage import cold_stage
from benchmarks.support.cold_options import ColdOptions
from benchmarks.support.worker_options import WorkerOptions
from benchmarks.support.worker_report import BEFORE, WorkerReport
from tests.support.needs import ROOT


@pytest.mark.needs("toxiproxy")
@pytest.mark.parametrize(
    ("store", "schemes"),
    [
        pytest.param("s3", ("http", "https"), marks=pytest.mark.needs("versitygw"), id="s3"),
        pytest.param("gcs", ("http",), marks=pytest.mark.needs("fake-gcs-server"), id="gcs"),
        pytest.param("azure", ("http",), marks=pytest.mark.needs("azurite"), id="azure"),
    ],
)
def test_cold_reads_are_measured_of_every_store(store: str, schemes: tuple[str, ...]) -> None:
    """A broker of its own, two Tidegates or four: half a minute."""
    options = ColdOptions(
        store=store,
        schemes=schemes,
        batch_kib=(4,),
        variants=("aes-zstd",),
        partitions=(2,),
        rounds=1,
        megabytes=16,
        segment_mib=4,
        streams=4,
    )
    with cold_stage(options) as stage:
        assert stage.topics[4].batch_bytes == pytest.approx(4096, rel=0.05)
        report = cold_read.measure(stage, options)
    assert report.complaints == []
    assert [(read.cell.scheme, read.read) for read in report.reads] == [
        (scheme, read) for scheme in schemes for read in ("first", "second")
    ]
    for read in report.reads:
        assert read.ratio > 0
        assert read.through(lambda side: side.core_s[cold_read.TIDEGATE]) > 0
        assert read.direct(lambda side: side.core_s["SDK"]) > 0
    assert {seek.stored.partition(",")[0] for seek in report.seeks} == {*schemes}


@pytest.mark.needs("toxiproxy")
@pytest.mark.needs("versitygw")
def test_all_loads_are_measured_beside_another_version() -> None:
    """A cluster of its own, nine Tidegates: more than a minute."""
    options = WorkerOptions(
        workers=(1, 2),
        rows=("consume", "warm", "cold-http", "cold-https"),
        brokers=2,
        connections=2,
        rounds=1,
        seconds=1.0,
        megabytes=16,
        before=ROOT,
    )
    report = WorkerReport("workers")
    with workers.staged(options) as stage:
        workers.measure(stage, options, report)
    assert report.complaints == []
    assert [row.name for row in report.rows] == list(options.rows)
    for row in report.rows:
        assert row.sides == ["1", "2", BEFORE]
        assert all((run.fills > 0) == (row.name in workers.COLD) for run in row.rounds[0].values())
