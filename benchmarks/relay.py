"""What the relay costs: data in the broker's page cache, read directly and through Tidegate (benchmarks/README.md).

    python benchmarks/relay.py [--rounds 5] [--seconds 1.5] [--megabytes 400] [--json]

Exit code 1 when a floor does not hold, or when Tidegate has counted fewer bytes than a client read through it.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.bare_fetch import (
    BareClient,
    FetchStep,
    fetch_request,
    learn_requests,
    metadata_request,
    read_for,
)
from benchmarks.support.comparison import Report, Row, alternate, latency_row, show, throughput_row
from benchmarks.support.consumer import consume_for
from benchmarks.support.options import Options, parse_options
from benchmarks.support.plain_relay import plain_relay
from benchmarks.support.stage import Stage, bootstrap_of, set_up
from benchmarks.support.throughput import Bars, compare
from benchmarks.support.tidegate_usage import Usage

BARE_BARS = Bars(floor=0.8, aim=0.95)
CONSUMER_BARS = Bars(floor=0.9, aim=0.95)
LATENCY_FLOOR_MS, LATENCY_AIM_MS = 0.5, 0.2
LATENCY_REQUESTS = 500
"""For each kind, on each side, in a round."""

TOPIC_CONFIGS = {"retention.ms": "-1", "segment.bytes": str(512 * 1024 * 1024)}


def main() -> int:
    options = parse_options("Relay: direct against through Tidegate.", megabytes=400)
    with set_up(megabytes=options.megabytes, topic_configs=TOPIC_CONFIGS, is_tiered=False) as stage:
        report = measure(stage, options)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


def measure(stage: Stage, options: Options) -> Report:
    """All rows on a stage that is ready."""
    report = Report("relay of data in the broker's page cache")
    ends = {partition: known.high_watermark for partition, known in stage.offsets.items()}
    steps = learn_requests(stage.direct, stage.topic, ends)
    compare(
        stage,
        options,
        report,
        name="bare Fetch",
        read=lambda address: read_for(address, steps, options.seconds),
        bars=BARE_BARS,
        counted_bytes=_relayed,
    )
    compare_plain_relay(stage, options, steps, report)
    compare(
        stage,
        options,
        report,
        name="consumer",
        read=lambda address: consume_for(bootstrap_of(address), stage.topic, ends, options.seconds),
        bars=CONSUMER_BARS,
        counted_bytes=_relayed,
    )
    compare_latency(stage, options, ends, report)
    return report


def compare_plain_relay(stage: Stage, options: Options, steps: Sequence[FetchStep], report: Report) -> None:
    """The same Fetches through a relay that only copies: what the machine leaves to any relay."""
    with plain_relay(stage.direct) as relay:
        rounds = alternate(
            options.rounds,
            lambda: read_for(stage.direct, steps, options.seconds).megabytes_per_s,
            lambda: read_for(relay.address, steps, options.seconds).megabytes_per_s,
        )
    report.rows.append(throughput_row("(a relay that only copies)", rounds))


def _relayed(used: Usage) -> int:
    return used.relayed_bytes


def compare_latency(stage: Stage, options: Options, ends: dict[int, int], report: Report) -> None:
    """Small requests, one at a time: one that is decoded and relayed, one whose answer is rewritten."""
    with BareClient(stage.direct) as direct, BareClient(stage.through) as through:
        topic_id = direct.topic_id(stage.topic)
        requests = {
            "Fetch at the log's end": fetch_request(topic_id, ends, max_wait_ms=0),
            "Metadata": metadata_request(stage.topic),
        }
        for name, frame in requests.items():
            rounds: list[tuple[list[float], list[float]]] = []
            for number in range(options.rounds + 1):
                first, second = (direct, through) if number % 2 else (through, direct)
                times = {first: timed(first, frame), second: timed(second, frame)}
                rounds.append((times[direct], times[through]))
            report.rows += latency_rows(name, rounds[1:])


def timed(client: BareClient, frame: bytes) -> list[float]:
    """Milliseconds of each of LATENCY_REQUESTS requests, ascending."""
    clock, ask = time.perf_counter, client.ask
    times = []
    for _ in range(LATENCY_REQUESTS):
        started_s = clock()
        ask(frame)
        times.append((clock() - started_s) * 1000)
    return sorted(times)


def latency_rows(name: str, rounds: list[tuple[list[float], list[float]]]) -> list[Row]:
    """p50, which has a floor, and p99."""
    p50 = [statistics.median(side[len(side) // 2] for side in sides) for sides in zip(*rounds, strict=True)]
    p99 = [statistics.median(side[len(side) * 99 // 100] for side in sides) for sides in zip(*rounds, strict=True)]
    return [
        latency_row(f"{name}, p50", *p50, floor=LATENCY_FLOOR_MS, aim=LATENCY_AIM_MS),
        latency_row(f"{name}, p99", *p99),
    ]


if __name__ == "__main__":
    sys.exit(main())
