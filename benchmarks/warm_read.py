"""Reads of the tier with everything warm: the broker's own remote read against Tidegate's cache (benchmarks/README.md).

    python benchmarks/warm_read.py [--rounds 5] [--seconds 1.5] [--megabytes 160] [--json]

The tier is Kafka's LocalTieredStorage, whose files lie in the page cache; every offset read is below the broker's
local log start. Both sides have read all of it once before the clock starts. Exit code 1 when a floor does not hold,
when Tidegate has served fewer tier bytes than a client read through it, or when it went to the store in a warm round.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.bare_fetch import learn_requests, read_for
from benchmarks.support.comparison import Report, show
from benchmarks.support.consumer import consume_for
from benchmarks.support.options import Options, parse_options
from benchmarks.support.stage import TIERED_CONFIGS, Stage, bootstrap_of, set_up
from benchmarks.support.throughput import Bars, compare

BARS = Bars(floor=1.0, aim=1.5)


def main() -> int:
    options = parse_options("Warm tier: the broker's own remote read against Tidegate's.", megabytes=160)
    # All of the data, and room to spare: what is evicted is not warm.
    properties = {"cache.memory.bytes": str(options.megabytes * 1_250_000)}
    with set_up(
        megabytes=options.megabytes, topic_configs=TIERED_CONFIGS, is_tiered=True, tidegate_properties=properties
    ) as stage:
        report = measure(stage, options)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


def measure(stage: Stage, options: Options) -> Report:
    """All rows on a stage that is ready."""
    report = Report("warm reads of the tier")
    ends = {partition: known.local_log_start_offset for partition, known in stage.offsets.items()}
    # This also reads all of it once through Tidegate.
    steps = learn_requests(stage.through, stage.topic, ends)
    readers = {
        "bare Fetch": lambda address: read_for(address, steps, options.seconds),
        "consumer": lambda address: consume_for(bootstrap_of(address), stage.topic, ends, options.seconds),
    }
    for name, read in readers.items():
        used = compare(
            stage, options, report, name=name, read=read, bars=BARS, counted_bytes=lambda used: used.served_tier_bytes
        )
        report.notes.append(f"{name}: {used.fills} GETs and {used.probes_sent} probes in Tidegate's rounds")
        if used.fills:
            report.complaints.append(f"{name}: {used.fills} blocks were not in memory, so it was not a warm read")
    return report


if __name__ == "__main__":
    sys.exit(main())
