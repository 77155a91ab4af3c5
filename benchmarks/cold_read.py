"""Cold reads of a tier of Aiven's format over a slow link, against what the link gives (design §11, the cold rows).

    python benchmarks/cold_read.py [--quick] [--megabytes 768] [--chunk-kib 4096] [--plugin-like] [--json] ...

An S3 server on loopback behind 30 ms to the first byte and 60 MB/s a connection. Every read is that of a freshly
started Tidegate with default budgets and no disk cache. Exit code 1 when a floor does not hold, when Tidegate has
served fewer tier bytes than the client read, or when it asked the store for less than lies there: that was
not a cold read.
"""

import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.aiven_stage import PARTITIONS, TOPIC, ColdStage, Variant, cold_stage
from benchmarks.support.bare_fetch import BareClient, Transfer
from benchmarks.support.bare_store import THREADS, read_chunk_by_chunk, read_with_threads
from benchmarks.support.cold_options import ColdOptions, parse_cold_options
from benchmarks.support.cold_report import MIB, Check, ColdRead, ColdReport, Seek, show
from benchmarks.support.consumer import consume
from benchmarks.support.fresh_tidegate import FreshTidegate, fresh_tidegate
from benchmarks.support.stage import Address, bootstrap_of
from benchmarks.support.tier_fetch import Run, Seeker, TierReadError, read_partitions, read_streams
from benchmarks.support.tier_usage import TierUsage
from proxy.config.memory_shares import CACHE_MEMORY_SHARE, READAHEAD_TOTAL_SHARE, TIER_INFLIGHT_SHARE, memory_share

RATIO_AIM = 0.8
PLUGIN_RATIO_AIM = 5.0
LOG_GETS_PER_GB_FLOOR, LOG_GETS_PER_GB_AIM = 120.0, 80.0
SERIAL_GETS_FLOOR = 3
WARM_GETS_AIM = 1
RSS_OVER_BUDGETS_MIB_FLOOR = 150.0
MEMORY_BYTES_DEFAULT = 1536 * MIB
"""Of `memory.max.bytes`."""

PARTITION_COUNTS = (1, 2, PARTITIONS)
HELD_PARTITIONS = 2
"""Those of design §11's row."""
PLUGIN_CHUNKS_MAX = 24
"""Of each partition: the model's rate is steady, and slow."""
VARIANTS = ((False, False), (True, False), (False, True), (True, True))
SEEK_SEED = 11

READERS: dict[str, Callable[[Address, Mapping[int, int]], Transfer]] = {
    "bare Fetch": lambda address, ends: read_partitions(address, TOPIC, ends),
    "consumer": lambda address, ends: consume(bootstrap_of(address), TOPIC, ends),
}


def main() -> int:
    options = parse_cold_options()
    with cold_stage(
        megabytes=options.megabytes,
        segment_bytes=options.segment_mib * MIB,
        chunk_bytes=options.chunk_kib * 1024,
        variants=VARIANTS[:1] if options.is_quick else VARIANTS,
        first_byte_ms=options.first_byte_ms,
        connection_megabytes_per_s=options.connection_megabytes_per_s,
    ) as stage:
        report = measure(stage, options)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


def measure(stage: ColdStage, options: ColdOptions) -> ColdReport:
    """Everything, on a stage that is ready."""
    report = ColdReport(
        f"cold reads: {options.first_byte_ms} ms to the first byte, {options.connection_megabytes_per_s} MB/s a "
        f"connection, chunks of {options.chunk_kib} KiB, segments of {options.segment_mib} MiB"
    )
    _describe(stage, options, report)
    for variant in stage.variants:
        for partitions in PARTITION_COUNTS:
            measure_reads(stage, variant, partitions, options, report)
        _hold_reads(report, variant.name)
        measure_seeks(stage, variant, report)
        if options.has_plugin_model:
            compare_with_plugin_model(stage, variant, report)
    peak_mib = max((read.peak_rss_mib for read in report.reads), default=0.0)
    _hold_rss(report, "the largest of these reads", peak_mib, _budgets_mib(MEMORY_BYTES_DEFAULT))
    measure_streams(stage, stage.variants[-1], options, report)
    return report


def measure_reads(
    stage: ColdStage, variant: Variant, partitions: int, options: ColdOptions, report: ColdReport
) -> None:
    """A fresh Tidegate for each kind of client, bare boto3 before and after each."""
    objects = [each for partition in range(partitions) for each in variant.objects[partition]]
    boto3_s = [read_with_threads(stage.store.shaped_url, objects).seconds]
    measured: list[tuple[str, Transfer, TierUsage]] = []
    for reader, read in READERS.items():
        with (
            fresh_tidegate(stage, variant) as tidegate,
            _failures(report, f"{variant.name}, {partitions}p, {reader}", tidegate),
        ):
            before = tidegate.usage()
            transfer = read(tidegate.address, stage.ends(partitions))
            measured.append((reader, transfer, tidegate.usage().since(before)))
        boto3_s.append(read_with_threads(stage.store.shaped_url, objects).seconds)
    log_gb = stage.log_bytes(partitions) / 1e9
    for reader, transfer, used in measured:
        read_here = ColdRead(
            variant=variant.name,
            partitions=partitions,
            reader=reader,
            megabytes_per_s=transfer.megabytes_per_s,
            boto3_megabytes_per_s=log_gb * 1000 / statistics.median(boto3_s),
            log_gets_per_gb=used.log_gets / log_gb,
            other_gets_per_gb=used.other_gets / log_gb,
            stored_bytes_asked=used.log_get_bytes / variant.stored_bytes(partitions),
            readahead_used_mb=used.readahead_used_bytes / 1e6,
            readahead_wasted_mb=used.readahead_wasted_bytes / 1e6,
            hedges=used.hedges,
            splits=used.splits,
            core_seconds_per_gb=used.cpu_s / log_gb,
            peak_rss_mib=used.peak_rss_bytes / MIB,
            get_usd_per_tb=used.gets / log_gb * options.usd_per_1000_gets,
        )
        report.reads.append(read_here)
        _account(report, read_here.name, used, stage.log_bytes(partitions))
        if read_here.stored_bytes_asked < 0.99:
            part = f"{read_here.stored_bytes_asked:.2f} of what is stored"
            report.complaints.append(f"{read_here.name}: only {part} was asked for, so it was not cold")


def measure_seeks(stage: ColdStage, variant: Variant, report: ColdReport) -> None:
    """Single Fetches at random offsets: each short partition's only segment once unopened, and once more far away."""
    chosen = random.Random(SEEK_SEED)
    cold: list[tuple[float, TierUsage]] = []
    warm: list[tuple[float, TierUsage]] = []
    with fresh_tidegate(stage, variant) as tidegate, BareClient(tidegate.address) as client:
        seeker = Seeker(client, TOPIC)
        for found in (cold, warm):
            for partition in range(PARTITIONS):
                segment = stage.segments[partition][-1]
                quarter = (segment.end_offset - segment.start_offset) // 4
                # The cold ones in the first quarter, the warm ones in the third: far from what was read before.
                first = segment.start_offset + (2 * quarter if found is warm else 0)
                found.append(_seek(tidegate, seeker, partition, first + chosen.randrange(quarter)))
    for kind, found in {"first of the process": cold[:1], "metadata cold": cold[1:], "metadata warm": warm}.items():
        seek = Seek(
            variant=variant.name,
            kind=kind,
            count=len(found),
            milliseconds=statistics.median(seconds for seconds, _ in found) * 1000,
            log_gets=max(used.log_gets for _, used in found),
            other_gets=max(used.other_gets for _, used in found),
            serial_gets=max(_serial_gets(used) for _, used in found),
        )
        report.seeks.append(seek)
        if not all(used.served_bytes for _, used in found):
            report.complaints.append(f"{variant.name}, seek, {kind}: it was not Tidegate that answered from the tier")
    serial_gets = max(_serial_gets(used) for _, used in cold)
    warm_gets = max(used.gets for _, used in warm)
    report.checks += [
        Check(
            f"{variant.name}, cold seek: GETs one after another",
            serial_gets,
            "",
            floor=SERIAL_GETS_FLOOR,
            is_upper_bound=True,
        ),
        Check(
            f"{variant.name}, cold seek with metadata warm: GETs",
            warm_gets,
            "",
            floor=SERIAL_GETS_FLOOR,
            aim=WARM_GETS_AIM,
            is_upper_bound=True,
        ),
    ]


def compare_with_plugin_model(stage: ColdStage, variant: Variant, report: ColdReport) -> None:
    """Bare Fetch against a model of the plugin's requests, on the first partitions."""
    partitions = [variant.objects[partition] for partition in range(HELD_PARTITIONS)]
    stored_per_log_byte = variant.stored_bytes(HELD_PARTITIONS) / stage.log_bytes(HELD_PARTITIONS)
    stored_chunk_bytes = round(stage.chunk_bytes * stored_per_log_byte)
    model = read_chunk_by_chunk(stage.store.shaped_url, partitions, stored_chunk_bytes, chunks_max=PLUGIN_CHUNKS_MAX)
    model_megabytes_per_s = model.megabytes_per_s / stored_per_log_byte
    report.checks += [
        Check(
            f"{read.name}: of a model of the plugin's requests",
            read.megabytes_per_s / model_megabytes_per_s,
            "×",
            aim=PLUGIN_RATIO_AIM,
        )
        for read in report.reads
        if (read.variant, read.partitions) == (variant.name, HELD_PARTITIONS)
    ]
    report.notes.append(
        f"{variant.name}: a GET for each chunk, one after another in each of {HELD_PARTITIONS} partitions, reads "
        f"{model_megabytes_per_s:.0f} MB/s of log here. That models the plugin's requests with a chunk cache and no "
        "prefetching; it is not the plugin, and no broker stands before it"
    )


def measure_streams(stage: ColdStage, variant: Variant, options: ColdOptions, report: ColdReport) -> None:
    """Many readers at once, on budgets that are a fraction of what they read; the peak is held against those."""
    name, memory_max = f"{variant.name}, {options.streams} streams", f"{options.streams_memory_mib} MiB"
    with (
        fresh_tidegate(stage, variant, {"memory.max.bytes": memory_max}) as tidegate,
        _failures(report, name, tidegate),
    ):
        before = tidegate.usage()
        transfer = read_streams(tidegate.address, TOPIC, _runs(stage, options.streams))
        _report_streams(stage, name, options, report, transfer, before, tidegate.usage().since(before))


def _report_streams(
    stage: ColdStage,
    name: str,
    options: ColdOptions,
    report: ColdReport,
    transfer: Transfer,
    before: TierUsage,
    used: TierUsage,
) -> None:
    budgets_mib, peak_mib = _budgets_mib(options.streams_memory_mib * MIB), used.peak_rss_bytes / MIB
    log_bytes = stage.log_bytes(PARTITIONS)
    _hold_rss(report, name, peak_mib, budgets_mib)
    _account(report, name, used, stage.log_bytes(PARTITIONS))
    report.notes.append(
        f"{name}: {transfer.megabytes_per_s:,.0f} MB/s together over "
        f"{log_bytes / 1e6:,.0f} MB of log, with budgets of {budgets_mib:.0f} MiB (memory.max.bytes "
        f"{options.streams_memory_mib} MiB); {used.log_gets / log_bytes * 1e9:.0f} log GETs per GB, read-ahead "
        f"{used.readahead_used_bytes / 1e6:,.0f} MB used and {used.readahead_wasted_bytes / 1e6:,.0f} MB wasted, peak "
        f"RSS {peak_mib:,.0f} MiB (before the first of them {before.peak_rss_bytes / MIB:,.0f} MiB)"
    )


@contextmanager
def _failures(report: ColdReport, name: str, tidegate: FreshTidegate) -> Iterator[None]:
    """A read that fails is a complaint with what Tidegate said last, and the others go on."""
    try:
        yield
    except (RuntimeError, OSError, EOFError, TierReadError) as error:
        report.complaints.append(f"{name}: {error}; Tidegate's log ends with:\n{tidegate.process.log_tail()}")


def _describe(stage: ColdStage, options: ColdOptions, report: ColdReport) -> None:
    log_bytes = stage.log_bytes(PARTITIONS)
    ratios = ", ".join(f"{each.name} {log_bytes / each.stored_bytes(PARTITIONS):.2f}" for each in stage.variants)
    sizes = ", ".join(f"{stage.log_bytes(count) / 1e6:,.0f} MB" for count in PARTITION_COUNTS)
    report.notes += [
        f"log bytes in 1, 2 and {PARTITIONS} partitions: {sizes}; log bytes per stored byte: {ratios}",
        f"boto3 with {THREADS} threads fetches the same stored bytes and neither decrypts nor inflates; MB/s are of "
        "log bytes on both sides, so a ratio is one of times",
        f"GETs at {options.usd_per_1000_gets:g} USD per 1,000, which is an assumption; segments of 1 GiB would need "
        f"{1024 / options.segment_mib:.0f} times fewer GETs for manifests and indexes",
    ]


def _hold_reads(report: ColdReport, variant: str) -> None:
    """The design's own number of partitions against boto3, and the most GETs of all."""
    reads = [read for read in report.reads if read.variant == variant]
    report.checks += [
        Check(f"{read.name}: of bare boto3", read.ratio, "×", aim=RATIO_AIM)
        for read in reads
        if read.partitions == HELD_PARTITIONS
    ]
    if reads:
        report.checks.append(
            Check(
                f"{variant}: log GETs per GB, the most of {len(reads)} reads",
                max(read.log_gets_per_gb for read in reads),
                "",
                floor=LOG_GETS_PER_GB_FLOOR,
                aim=LOG_GETS_PER_GB_AIM,
                is_upper_bound=True,
            )
        )


def _hold_rss(report: ColdReport, name: str, peak_mib: float, budgets_mib: float) -> None:
    over_mib = peak_mib - budgets_mib
    report.checks.append(
        Check(
            f"{name}: peak RSS over the budgets", over_mib, "MiB", floor=RSS_OVER_BUDGETS_MIB_FLOOR, is_upper_bound=True
        )
    )


def _account(report: ColdReport, name: str, used: TierUsage, log_bytes: int) -> None:
    if used.served_bytes < log_bytes:
        served = f"{used.served_bytes / 1e6:,.1f} MB of {log_bytes / 1e6:,.1f} MB"
        report.complaints.append(f"{name}: Tidegate has served {served} that the client read from the tier")
    if used.get_errors:
        report.notes.append(f"{name}: {used.get_errors} GETs failed, {used.get_retries} were repeated")


def _seek(tidegate: FreshTidegate, seeker: Seeker, partition: int, offset: int) -> tuple[float, TierUsage]:
    before = tidegate.usage()
    seconds = seeker.seek(partition, offset)
    return seconds, tidegate.usage().since(before)


def _serial_gets(used: TierUsage) -> int:
    """A manifest tells where the index lies, and the index where in the log to read; ranges of one log are side by
    side."""
    return sum(min(1, gets) for gets in (used.manifest_gets, used.index_gets, used.log_gets))


def _runs(stage: ColdStage, streams: int) -> list[Run]:
    """As many readers in each partition, each with a stretch of its own; together they read everything."""
    runs = []
    for partition, end in stage.ends(PARTITIONS).items():
        readers = len(range(partition, streams, PARTITIONS))
        runs += [Run(partition, end * at // readers, end * (at + 1) // readers) for at in range(readers)]
    return runs


def _budgets_mib(memory_bytes_max: int) -> float:
    """What `memory.max.bytes` makes of the three budgets that are not set themselves."""
    shares = (CACHE_MEMORY_SHARE, READAHEAD_TOTAL_SHARE, TIER_INFLIGHT_SHARE)
    return sum(memory_share(memory_bytes_max, share) for share in shares) / MIB


if __name__ == "__main__":
    sys.exit(main())
