"""What one Fetch exchange costs: 1 to 1,000 partitions, local, in the tier, and half of each; full and incremental.

    python benchmarks/fetch_exchange.py [--partitions 1000] [--seconds 0.5] [--rounds 3] [--json]

Both sides are one broker, asked directly and through Tidegate in turns. Beside the times of both stand Tidegate's own
processor time and the bytes that its code copies, for one exchange. Local partitions are asked at their ends, where
nothing is new, so an incremental Fetch has nothing to say; those in the tier have a record each, every time.

Held against: an incremental Fetch over unchanged local partitions costs Tidegate no work per partition, so as much for
the largest session as for the smallest. Exit code 1 when an answer through Tidegate has an error.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluent_kafka import Producer
from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

from benchmarks.support.bare_fetch import BareClient
from benchmarks.support.copies import counting_tidegate
from benchmarks.support.exchanges import Exchanges, Wanted, exchange_for
from benchmarks.support.stage import JVM_OPTIONS, Address, Stage, stage_on
from benchmarks.support.tidegate_usage import cpu_s
from tests.support.kafka import own_cluster
from tidegate.config.model import LogFormat
from tidegate.logs import configure_logs
from tools.demo.kafka_cluster import KafkaCluster

RECORD_BYTES = 1024
OLD_TIMESTAMP_MS = 1_600_000_000_000
"""Records older than the local retention: the broker rolls, tiers and drops even an active segment."""

TIERED_CONFIGS = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1000",
    "retention.ms": "-1",
    "segment.bytes": str(1024 * 1024),
}
LOCAL_CONFIGS = {"retention.ms": "-1"}
TIER_S_MAX = 600.0
COUNTED_EXCHANGES = 20
HEADINGS = ("partitions", "direct µs", "through µs", "Tidegate CPU µs", "copied bytes", "answer bytes", "errors")
PER_PARTITION_RATIO_AIM = 1.5
"""Largest to smallest incremental all-local exchange, in Tidegate's processor time: 1 would be none at all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of exchange, both sides, per exchange."""

    kind: str
    mode: str
    partitions: int
    direct_us: float
    through_us: float
    tidegate_cpu_us: float
    copied_bytes: int
    answer_bytes: int
    direct_errors: int
    through_errors: int


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of one Fetch exchange, direct and through Tidegate.")
    parser.add_argument("--partitions", type=int, default=1000, help="of each topic, and the most in a Fetch (1000)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each side of a round (0.5)")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind of exchange (3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.partitions < 1 or options.seconds <= 0 or options.rounds < 1:
        parser.error("at least one partition, one round and more than 0 s")
    configure_logs("warning", LogFormat.CONSOLE)
    with own_cluster(jvm_options=JVM_OPTIONS) as cluster:
        topics = fill_topics(cluster, "exchange", options.partitions)
        cells = measure(cluster, cluster.work, topics, options.seconds, options.rounds)
    _show(cells, as_json=options.json)
    return 1 if any(cell.through_errors for cell in cells) else 0


@dataclass(frozen=True, slots=True)
class Topics:
    """Two topics of as many partitions: one at the broker, one in the tier."""

    local: str
    tiered: str
    partitions: int


def fill_topics(cluster: KafkaCluster, stem: str, partitions: int) -> Topics:
    """One record in each partition; wait until those of the tiered topic are in the tier alone."""
    topics = Topics(f"{stem}-local", f"{stem}-tiered", partitions)
    cluster.create_topic(topics.local, partitions, LOCAL_CONFIGS)
    cluster.create_topic(topics.tiered, partitions, TIERED_CONFIGS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 50})
    for topic in (topics.local, topics.tiered):
        for partition in range(partitions):
            producer.produce(topic, bytes(RECORD_BYTES), partition=partition, timestamp=OLD_TIMESTAMP_MS)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} records were not produced")
    cluster.wait_tiered(topics.tiered, until=lambda offsets: offsets.local_log_start_offset == 1, timeout_s=TIER_S_MAX)
    return topics


def measure(cluster: KafkaCluster, folder: Path, topics: Topics, seconds: float, rounds: int) -> list[Cell]:
    """All kinds of exchange, full and incremental, over 1, 10, 100, 1,000 and all partitions."""
    counts = [count for count in (1, 10, 100, 1000) if count < topics.partitions] + [topics.partitions]
    with stage_on(cluster, topics.local, {}, folder) as stage:
        kinds = kinds_of(stage, topics)
        copied = _copied_bytes(cluster, folder, kinds, counts)
        return [
            _cell(stage, kind, wanted(count), seconds, rounds, incremental, copied)
            for kind, wanted in kinds.items()
            for incremental in (False, True)
            for count in counts
        ]


def kinds_of(stage: Stage, topics: Topics) -> Mapping[str, Callable[[int], list[Wanted]]]:
    with BareClient(stage.direct) as client:
        local_id, tiered_id = client.topic_id(topics.local), client.topic_id(topics.tiered)

    def local(count: int) -> list[Wanted]:
        return [Wanted(local_id, partition, 1) for partition in range(count)]

    def tier(count: int) -> list[Wanted]:
        return [Wanted(tiered_id, partition, 0) for partition in range(count)]

    return {
        "all local": local,
        "all tier": tier,
        "half and half": lambda count: [*tier((count + 1) // 2), *local(count // 2)],
    }


def _copied_bytes(
    cluster: KafkaCluster, folder: Path, kinds: Mapping[str, Callable[[int], list[Wanted]]], counts: Sequence[int]
) -> dict[tuple[str, bool, int], int]:
    """Per exchange, in a Tidegate of its own: counting costs time, so nothing is timed here."""
    copied = {}
    with counting_tidegate(cluster, folder) as (address, counter):
        for kind, wanted in kinds.items():
            for incremental in (False, True):
                for count in counts:
                    # The opening of a session is not part of its exchanges: the difference of two runs leaves it out.
                    runs = []
                    for exchanges_min in (COUNTED_EXCHANGES, 3 * COUNTED_EXCHANGES):
                        before = counter.copied_bytes
                        exchanges, _ = exchange_for(
                            address, wanted(count), 0.0, incremental=incremental, count_min=exchanges_min
                        )
                        runs.append((counter.copied_bytes - before, exchanges.count))
                    (bytes_one, count_one), (bytes_other, count_other) = runs
                    copied[kind, incremental, count] = round((bytes_other - bytes_one) / (count_other - count_one))
    return copied


def _cell(
    stage: Stage,
    kind: str,
    wanted: Sequence[Wanted],
    seconds: float,
    rounds: int,
    incremental: bool,
    copied: Mapping[tuple[str, bool, int], int],
) -> Cell:
    def run(address: Address) -> tuple[Exchanges, float]:
        return exchange_for(address, wanted, seconds, incremental=incremental, cpu_s=lambda: cpu_s(stage.tidegate.pid))

    direct: list[Exchanges] = []
    through: list[Exchanges] = []
    spent_s = 0.0
    for number in range(rounds):
        for is_through in (bool(number % 2), not number % 2):
            exchanges, cpu = run(stage.through if is_through else stage.direct)
            (through if is_through else direct).append(exchanges)
            spent_s += cpu if is_through else 0.0
    return Cell(
        kind=kind,
        mode="incremental" if incremental else "full",
        partitions=len(wanted),
        direct_us=statistics.median(each.p50_us for each in direct),
        through_us=statistics.median(each.p50_us for each in through),
        tidegate_cpu_us=spent_s * 1e6 / sum(each.count for each in through),
        copied_bytes=copied[kind, incremental, len(wanted)],
        answer_bytes=through[-1].answer_bytes,
        direct_errors=direct[-1].errors,
        through_errors=through[-1].errors,
    )


def _show(cells: Sequence[Cell], *, as_json: bool) -> None:
    quiet = [cell for cell in cells if cell.kind == "all local" and cell.mode == "incremental"]
    ratio = quiet[-1].tidegate_cpu_us / max(quiet[0].tidegate_cpu_us, 1e-9)
    if as_json:
        print(json.dumps({"cells": [asdict(cell) for cell in cells], "unchanged_largest_to_smallest": ratio}, indent=2))
        return
    table = Table(title="one Fetch exchange", box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    table.columns[0].justify = "left"
    for cell in cells:
        errors = f"{cell.direct_errors} direct, {cell.through_errors} through"
        table.add_row(
            f"{cell.kind}, {cell.mode}, {cell.partitions:,}",
            f"{cell.direct_us:,.0f}",
            f"{cell.through_us:,.0f}",
            f"{cell.tidegate_cpu_us:,.0f}",
            f"{cell.copied_bytes:,}",
            f"{cell.answer_bytes:,}",
            errors if cell.direct_errors or cell.through_errors else "",
        )
    console = Console(width=140)
    console.print(table)
    verdict = "aim reached" if ratio <= PER_PARTITION_RATIO_AIM else "short of the aim"
    console.print(
        f"an incremental Fetch over {quiet[-1].partitions:,} unchanged local partitions costs Tidegate {ratio:.2f} × "
        f"what one over {quiet[0].partitions} costs (aim: at most {PER_PARTITION_RATIO_AIM} ×): {verdict}",
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
