"""Cold and second reads of a tier of Aiven's format over a slow link, beside the store's SDK over the same link
(benchmarks/README.md).

    python benchmarks/cold_read.py [--quick] [--scheme https] [--batch-kib 1,4,16,64] [--variants plain,aes-zstd] \
[--partitions 1,2,8] [--megabytes 400] [--segment-mib 64] [--json] ...

A server of S3, GCS or Azure (`--store`) on loopback behind 30 ms to the first byte and 60 MB/s a connection. In each
round of a row the SDK with 16 threads and a freshly started Tidegate take turns; that Tidegate is then read a second
time. Exit code 1 when a floor does not hold, when Tidegate has served fewer tier bytes than the client read, or when a
first read asked the store for less than lies there: that was not a cold read. Speed has aims only, as the machine
decides it.
"""

import os
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.aiven_stage import ColdStage, ColdTopic, cold_stage
from benchmarks.support.bare_fetch import BareClient, Transfer
from benchmarks.support.bare_store import THREADS, SdkProcess
from benchmarks.support.cold_options import ColdOptions, parse_cold_options
from benchmarks.support.cold_report import (
    FIRST,
    MIB,
    SDK,
    SECOND,
    Cell,
    Check,
    ColdRead,
    ColdReport,
    Reading,
    Seek,
    Side,
    show,
)
from benchmarks.support.comparison import alternate
from benchmarks.support.consumer import consume
from benchmarks.support.fresh_tidegate import FreshTidegate, fresh_tidegate
from benchmarks.support.processor_time import watch
from benchmarks.support.stage import Address, bootstrap_of
from benchmarks.support.tier_fetch import Run, Seeker, TierReadError, read_partitions, read_streams
from benchmarks.support.tier_usage import TierUsage
from tidegate.config.model import BUDGET_SHARES, memory_share
from tools.demo.steps import StepFailed

EXIT_TERMINATED = 143
TIDEGATE = "Tidegate"
CORE_S_AIM = 2.0
"""Aim for Tidegate: processor seconds per GB over HTTP with batches of 16 KiB."""
LOG_GETS_PER_GB_FLOOR, LOG_GETS_PER_GB_AIM = 120.0, 80.0
LOG_GETS_FLOOR_BYTES = 2_000_000_000
"""With less log, the small GETs with which each partition begins are too large a part."""
SERIAL_GETS_FLOOR = 3
WARM_GETS_AIM = 1
RSS_OVER_BUDGETS_MIB_FLOOR = 150.0
MEMORY_BYTES_DEFAULT = 1536 * MIB
"""The default of `memory.max.bytes`."""
SEEK_SEED = 11
SEEKS_MAX = 8

READERS: dict[str, Callable[[Address, str, Mapping[int, int]], Transfer]] = {
    "bare": read_partitions,
    "librdkafka": lambda address, topic, ends: consume(bootstrap_of(address), topic, ends),
}


def main() -> int:
    options = parse_cold_options()
    # Gigabytes of a stage are removed also when a time limit ends the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    with cold_stage(options) as stage:
        report = measure(stage, options)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


def measure(stage: ColdStage, options: ColdOptions) -> ColdReport:
    """Every row, the seeks, and the memory of many streams, on a stage that is ready."""
    report = ColdReport(
        f"cold reads: {options.first_byte_ms} ms to the first byte, {options.connection_megabytes_per_s} MB/s a "
        f"connection, chunks of {options.chunk_kib} KiB, segments of {options.segment_mib} MiB, client {options.client}"
    )
    _describe(stage, options, report)
    for scheme in options.schemes:
        with SdkProcess(stage.store.kind, stage.store.ways[scheme].url) as sdk:
            for cell in cells(options, scheme):
                print(cell.name, file=sys.stderr)
                with _failures(report, cell.name):
                    measure_cell(stage, sdk, cell, options, report)
        for batch_kib, variant in product(options.batch_kib, options.variants):
            with _failures(report, f"seeks, {scheme}, {batch_kib} KiB, {variant}"):
                measure_seeks(stage, scheme, batch_kib, variant, report)
    if report.reads:
        peak_mib = max(read.peak_rss_mib for read in report.reads)
        report.checks.append(rss_check("the largest of these reads", peak_mib, budgets_mib(MEMORY_BYTES_DEFAULT)))
    if options.streams:
        with _failures(report, "streams"):
            measure_streams(stage, options, report)
    return report


def cells(options: ColdOptions, scheme: str) -> list[Cell]:
    """The rows of one scheme."""
    kinds = product(options.batch_kib, options.variants, options.caches, options.partitions)
    return [
        Cell(scheme=scheme, batch_kib=batch_kib, variant=variant, cache=cache, partitions=partitions)
        for batch_kib, variant, cache, partitions in kinds
    ]


def measure_cell(stage: ColdStage, sdk: SdkProcess, cell: Cell, options: ColdOptions, report: ColdReport) -> None:
    """All rounds of one row, and what they are held against."""
    log_bytes = stage.topics[cell.batch_kib].log_bytes(cell.partitions)
    rounds = alternate(
        options.rounds, lambda: read_with_sdk(stage, sdk, cell), lambda: read_twice(stage, cell, options, report)
    )
    first, second = (
        ColdRead(
            cell=cell,
            read=read,
            log_bytes=log_bytes,
            rounds=[(direct, through[at]) for direct, through in rounds],
            of_first=statistics.median(two.megabytes_per_s / one.megabytes_per_s for _, (one, two) in rounds)
            if at
            else None,
        )
        for at, read in enumerate((FIRST, SECOND))
    )
    report.reads += [first, second]
    report.checks += checks_of(first, second)


def read_with_sdk(stage: ColdStage, sdk: SdkProcess, cell: Cell) -> Side:
    """The same objects by 16 threads. It neither decrypts nor inflates."""
    topic, way = stage.topics[cell.batch_kib], stage.store.ways[cell.scheme]
    with watch({SDK: sdk.pid, "store": way.server_pid, "link": way.link_pid}) as spent:
        transfer, processor_s = sdk.read(topic.stored(cell.variant, cell.partitions))
    log_bytes = topic.log_bytes(cell.partitions)
    return Side(
        megabytes_per_s=log_bytes / transfer.seconds / 1e6,
        core_s=_per_gb({**spent.cpu_s, SDK: processor_s}, log_bytes),
        idle_share=spent.idle_share,
    )


def read_twice(stage: ColdStage, cell: Cell, options: ColdOptions, report: ColdReport) -> tuple[Reading, Reading]:
    """A fresh Tidegate is read from the beginning, and once more."""
    log_bytes = stage.topics[cell.batch_kib].log_bytes(cell.partitions)
    with tempfile.TemporaryDirectory(prefix="disk-cache-", dir=stage.work) as folder:
        keys = {
            "memory": {},
            "small-memory": {"cache.memory.bytes": str(log_bytes // 4)},
            "small-disk": {"cache.path": folder, "cache.disk.bytes": str(log_bytes // 2)},
            "large-disk": {"cache.path": folder, "cache.disk.bytes": str(log_bytes * 2)},
        }[cell.cache]
        with fresh_tidegate(stage, cell.variant, cell.scheme, keys) as tidegate:
            first = read_once(stage, tidegate, cell, options, report, FIRST)
            return first, read_once(stage, tidegate, cell, options, report, SECOND)


def read_once(
    stage: ColdStage, tidegate: FreshTidegate, cell: Cell, options: ColdOptions, report: ColdReport, read: str
) -> Reading:
    """Every partition of the cell from offset 0 to the tier's end."""
    topic, way = stage.topics[cell.batch_kib], stage.store.ways[cell.scheme]
    log_bytes, name = topic.log_bytes(cell.partitions), f"{cell.name}, {read} read"
    pids = {
        TIDEGATE: tidegate.process.pid,
        "store": way.server_pid,
        "link": way.link_pid,
        "broker": stage.cluster.broker(1).pid,
        "client": os.getpid(),
    }
    before = tidegate.usage()
    with watch(pids) as spent:
        transfer = READERS[options.client](tidegate.address, topic.name, topic.ends(cell.partitions))
    used = tidegate.usage().since(before)
    _account(report, name, used, log_bytes)
    asked = used.log_get_bytes / topic.stored_bytes(cell.variant, cell.partitions)
    if read == FIRST and asked < 0.99:
        report.complaints.append(f"{name}: only {asked:.2f} of what is stored was asked for, so it was not cold")
    return Reading(
        megabytes_per_s=transfer.megabytes_per_s,
        core_s=_per_gb(spent.cpu_s, log_bytes),
        idle_share=spent.idle_share,
        log_gets_per_gb=used.log_gets / log_bytes * 1e9,
        other_gets_per_gb=used.other_gets / log_bytes * 1e9,
        stored_bytes_asked=asked,
        readahead_wasted_mb=used.readahead_wasted_bytes / 1e6,
        hedges=used.hedges,
        peak_rss_mib=used.peak_rss_bytes / MIB,
    )


def checks_of(first: ColdRead, second: ColdRead) -> list[Check]:
    """Return what a row is held against."""
    cell = first.cell
    checks = [Check(f"{second.name}: of the first", second.of_first or 0.0, "×", aim=1.0)]
    if (aim := ratio_aim(cell)) is not None:
        checks.append(Check(f"{first.name}: of the SDK", first.ratio, "×", aim=aim))
    if (cell.scheme, cell.batch_kib, cell.variant) == ("http", 16, "plain"):
        core_s = first.through(lambda side: side.core_s[TIDEGATE])
        checks.append(Check(f"{first.name}: Tidegate's core-s per GB", core_s, "", aim=CORE_S_AIM, is_upper_bound=True))
    is_long = first.log_bytes >= LOG_GETS_FLOOR_BYTES
    gets = Check(
        f"{first.name}: log GETs per GB",
        first.through(lambda side: side.log_gets_per_gb),
        "",
        floor=LOG_GETS_PER_GB_FLOOR if is_long else None,
        aim=LOG_GETS_PER_GB_AIM if is_long else LOG_GETS_PER_GB_FLOOR,
        is_upper_bound=True,
    )
    return [*checks, gets]


def ratio_aim(cell: Cell) -> float | None:
    """Return the aim as a ratio to the SDK's speed, as benchmarks/README.md has it; None where there is no aim."""
    if cell.batch_kib < 4 or cell.partitions > 2:
        return None
    if cell.batch_kib == 4:
        return 0.6
    return 0.8 if cell.partitions == 2 and cell.scheme == "http" else 0.7


def measure_seeks(stage: ColdStage, scheme: str, batch_kib: int, variant: str, report: ColdReport) -> None:
    """Single Fetches at random offsets: in segments that were not opened yet, and once more far away in the same."""
    topic, name = stage.topics[batch_kib], f"{scheme}, {batch_kib} KiB, {variant}"
    chosen = random.Random(SEEK_SEED)
    segments = [(partition, segment) for partition in topic.segments for segment in topic.segments[partition]]
    cold: list[tuple[float, float, TierUsage]] = []
    warm: list[tuple[float, float, TierUsage]] = []
    with fresh_tidegate(stage, variant, scheme) as tidegate, BareClient(tidegate.address) as client:
        seeker = Seeker(client, topic.name)
        for found in (cold, warm):
            for partition, segment in segments[:SEEKS_MAX]:
                quarter = (segment.end_offset - segment.start_offset) // 4
                # The cold ones in the first quarter, the warm ones in the third: far from what was read before.
                offset = segment.start_offset + (2 * quarter if found is warm else 0) + chosen.randrange(quarter)
                before = tidegate.usage()
                first_byte_s, seconds = seeker.seek(partition, offset)
                found.append((first_byte_s, seconds, tidegate.usage().since(before)))
    for kind, found in {"first of the process": cold[:1], "metadata cold": cold[1:], "metadata warm": warm}.items():
        if found:
            report.seeks.append(_seek(name, kind, found))
        if not all(used.served_bytes for *_, used in found):
            report.complaints.append(f"{name}, seek, {kind}: it was not Tidegate that answered from the tier")
    for kind, found, aim in (("cold", cold, None), ("warm", warm, WARM_GETS_AIM)):
        serial_gets = max(_serial_gets(used) for *_, used in found)
        what = f"{name}, cold seek with metadata {kind}: GETs one after another"
        report.checks.append(Check(what, serial_gets, "", floor=SERIAL_GETS_FLOOR, aim=aim, is_upper_bound=True))


def measure_streams(stage: ColdStage, options: ColdOptions, report: ColdReport) -> None:
    """Many readers at once, on budgets that are a fraction of what they read; the peak is held against those."""
    scheme, batch_kib, variant = options.schemes[0], options.batch_kib[-1], options.variants[-1]
    topic, memory_mib = stage.topics[batch_kib], options.streams_memory_mib
    log_bytes, name = (
        topic.log_bytes(stage.partitions),
        f"{scheme}, {batch_kib} KiB, {variant}, {options.streams} streams",
    )
    budgets = budgets_mib(memory_mib * MIB)
    with fresh_tidegate(stage, variant, scheme, {"memory.max.bytes": f"{memory_mib} MiB"}) as tidegate:
        before = tidegate.usage()
        try:
            transfer = read_streams(tidegate.address, topic.name, runs_of(topic, stage.partitions, options.streams))
        finally:
            # Also of a read that fails: what it took is no less true.
            used = tidegate.usage().since(before)
            peak_mib = used.peak_rss_bytes / MIB
            report.checks.append(rss_check(name, peak_mib, budgets))
    _account(report, name, used, log_bytes)
    report.notes.append(
        f"{name}: {transfer.megabytes_per_s:,.0f} MB/s together over {log_bytes / 1e6:,.0f} MB of log, with budgets of "
        f"{budgets:.0f} MiB (memory.max.bytes {memory_mib} MiB); {used.log_gets / log_bytes * 1e9:.0f} log GETs/GB, "
        f"read-ahead {used.readahead_used_bytes / 1e6:,.0f} MB used and {used.readahead_wasted_bytes / 1e6:,.0f} MB "
        f"wasted, peak RSS {peak_mib:,.0f} MiB (before the first of them {before.peak_rss_bytes / MIB:,.0f} MiB)"
    )


def runs_of(topic: ColdTopic, partitions: int, streams: int) -> list[Run]:
    """As many readers in each partition, each with a stretch of its own; together they read everything."""
    runs = []
    for partition, end in topic.ends(partitions).items():
        readers = len(range(partition, streams, partitions))
        runs += [Run(partition, end * at // readers, end * (at + 1) // readers) for at in range(readers)]
    return runs


def rss_check(name: str, peak_mib: float, budgets: float) -> Check:
    """Peak RSS against the budgets."""
    what = f"{name}: peak RSS over the budgets"
    return Check(what, peak_mib - budgets, "MiB", floor=RSS_OVER_BUDGETS_MIB_FLOOR, is_upper_bound=True)


def budgets_mib(memory_bytes_max: int) -> float:
    """Return what `memory.max.bytes` makes of the three budgets that are not set themselves."""
    names = ("cache.memory.bytes", "expert.readahead.total.max.bytes", "expert.tier.inflight.bytes.max")
    return sum(memory_share(memory_bytes_max, BUDGET_SHARES[name]) for name in names) / MIB


@contextmanager
def _failures(report: ColdReport, name: str) -> Iterator[None]:
    """Turn a failure into a complaint, so that the others go on."""
    try:
        yield
    except (RuntimeError, OSError, EOFError, TierReadError, StepFailed) as error:
        report.complaints.append(f"{name}: {type(error).__name__}: {error}")


def _describe(stage: ColdStage, options: ColdOptions, report: ColdReport) -> None:
    for batch_kib, topic in stage.topics.items():
        sizes = ", ".join(f"{topic.log_bytes(count) / 1e6:,.0f} MB" for count in options.partitions)
        ratios = ", ".join(
            f"{name} {topic.log_bytes(stage.partitions) / topic.stored_bytes(name, stage.partitions):.2f}"
            for name in stage.variant_keys
        )
        counts = ", ".join(map(str, options.partitions))
        report.notes.append(
            f"batches of {batch_kib} KiB, {topic.batch_bytes:,.0f} bytes on average: {sizes} of log in {counts} "
            f"partitions; log bytes per stored byte: {ratios}"
        )
    cache_mb = memory_share(MEMORY_BYTES_DEFAULT, BUDGET_SHARES["cache.memory.bytes"]) / 1e6
    report.notes.append(
        f"the memory cache holds {cache_mb:.0f} MB. the SDK with {THREADS} threads fetches the same stored bytes and "
        "neither decrypts nor inflates; MB/s are of log bytes on both sides, so a ratio is one of times"
    )


def _account(report: ColdReport, name: str, used: TierUsage, log_bytes: int) -> None:
    if used.served_bytes < log_bytes:
        served = f"{used.served_bytes / 1e6:,.1f} MB of {log_bytes / 1e6:,.1f} MB"
        report.complaints.append(f"{name}: Tidegate has served {served} that the client read from the tier")
    if used.fallback_reads or used.fallback_refused:
        reads = f"{used.fallback_reads} reads were left to the broker, {used.fallback_refused} more were put off"
        report.notes.append(f"{name}: {reads}: the tier gave nothing for too long")
    if used.get_errors:
        report.notes.append(f"{name}: {used.get_errors} GETs failed, {used.get_retries} were repeated")


def _seek(name: str, kind: str, found: list[tuple[float, float, TierUsage]]) -> Seek:
    return Seek(
        stored=name,
        kind=kind,
        count=len(found),
        first_byte_ms=statistics.median(first_byte_s for first_byte_s, *_ in found) * 1000,
        milliseconds=statistics.median(seconds for _, seconds, _ in found) * 1000,
        log_gets=max(used.log_gets for *_, used in found),
        other_gets=max(used.other_gets for *_, used in found),
        serial_gets=max(_serial_gets(used) for *_, used in found),
    )


def _serial_gets(used: TierUsage) -> int:
    """A manifest tells where the index lies, and the index where in the log to read; ranges of one log are side by
    side, and an index that is fetched beside the log counts all the same."""
    return sum(min(1, gets) for gets in (used.manifest_gets, used.index_gets, used.log_gets))


def _per_gb(cpu_s: Mapping[str, float], log_bytes: int) -> dict[str, float]:
    return {name: seconds / log_bytes * 1e9 for name, seconds in cpu_s.items()}


if __name__ == "__main__":
    sys.exit(main())
