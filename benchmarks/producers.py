"""A producer's p99 at the broker: alone, with four backfills through Tidegate, and with the same through the broker.

    python benchmarks/producers.py [--quick] [--rounds 5] [--seconds 5] [--megabytes 640] [--rate 10] [--nice 0] ...

The producer talks to the broker itself, with acks=all, a few hundred records of 1 KiB a second. Each backfill reads a
partition of its own, all of it in the tier alone (LocalTieredStorage). First all backfills have the same given rate, so
that both ways carry the same load; then they read as fast as they can. Exit code 1 when the broker read the tier while
the backfills went through Tidegate, when Tidegate served less than they read, or when those at the broker cost it no
reads of the tier.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.paced_backfill import BackfillProcesses, Pace, Stretch, backfill_processes
from benchmarks.support.producer_report import (
    ALONE,
    THROUGH_BROKER,
    THROUGH_TIDEGATE,
    Pacing,
    ProducerReport,
    Run,
    show,
)
from benchmarks.support.stage import JVM_OPTIONS, PARTITIONS, TIERED_CONFIGS, Stage, bootstrap_of, fill_topic, stage_on
from benchmarks.support.steady_producer import SteadyProducer
from benchmarks.support.tidegate_usage import cpu_s
from benchmarks.support.tier_usage import tier_usage
from tests.support.kafka import own_cluster
from tools.demo.kafka_cluster import KafkaCluster

TOPICS = ("produced", "backfill-0", "backfill-1")
BACKFILL_TOPICS = len(TOPICS) - 1
BACKFILLS = BACKFILL_TOPICS * PARTITIONS
RECORDS_PER_S = 400
RECORD_BYTES = 1024
SIDES = (ALONE, THROUGH_TIDEGATE, THROUGH_BROKER)
SETTLE_S = 1.0
"""Between the backfills' start and the first record, and behind the last."""
KEPT_UP_SHARE_MIN = 0.9
WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` is one side of one round; `rate` is MB/s of one backfill."""

    rounds: int
    seconds: float
    megabytes: int
    rate: float
    nice: int
    as_json: bool


@dataclass(frozen=True, slots=True)
class Sides:
    """What a run is made of."""

    stage: Stage
    producer: SteadyProducer
    backfills: BackfillProcesses


def main() -> int:
    options = parse_options()
    report = ProducerReport(f"a producer at the broker, {RECORDS_PER_S} records/s with acks=all")
    with sides(options) as ready:
        measure(ready, options, report)
    show(report, as_json=options.as_json)
    return 1 if report.complaints else 0


def measure(ready: Sides, options: Options, report: ProducerReport) -> None:
    """Both pacings, each in alternating rounds behind an untimed one."""
    for rate in (options.rate, 0.0):
        name = f"{rate:g} MB/s each" if rate else "as fast as they can"
        for side in SIDES:
            measure_run(ready, side, Pace(rate, WARM_UP_S))
        rounds = []
        for number in range(options.rounds):
            turn = number % len(SIDES)
            runs = {
                side: measure_run(ready, side, Pace(rate, options.seconds)) for side in (*SIDES[turn:], *SIDES[:turn])
            }
            _account(report, name, rate, runs)
            rounds.append(runs)
        report.pacings.append(Pacing(name, rounds))
    report.notes += [
        f"Medians of {options.rounds} rounds of {options.seconds:g} s a side. Broker, Tidegate, producer and backfills "
        f"share the {os.cpu_count()} cores of this machine, and the tier's files are in its page cache: what Tidegate "
        "spends is taken from the broker too, which would not be so with a machine of its own. Only ratios of one run "
        "are worth comparing.",
        f"Tidegate's priority: nice {options.nice}"
        + ("." if options.nice else "; --nice 10 lets the broker go first, as a machine of its own would."),
    ]


def measure_run(ready: Sides, side: str, pace: Pace) -> Run:
    """One side of one round: backfills begin, the producer runs in the midst of them, and they end."""
    stage = ready.stage
    broker = stage.cluster.broker(1)
    fetches, served = broker.remote_fetch_requests(), tier_usage(stage.tidegate)
    broker_cpu_s, tidegate_cpu_s = cpu_s(broker.pid), cpu_s(stage.tidegate.pid)
    transfers = []
    if side == ALONE:
        time.sleep(SETTLE_S)
        latencies = ready.producer.run(pace.seconds)
        time.sleep(SETTLE_S)
    else:
        address = stage.through if side == THROUGH_TIDEGATE else stage.direct
        finish = ready.backfills.start(address, Pace(pace.megabytes_per_s, pace.seconds + 2 * SETTLE_S))
        time.sleep(SETTLE_S)
        latencies = ready.producer.run(pace.seconds)
        transfers = finish()
    used = tier_usage(stage.tidegate).since(served)
    return Run(
        side=side,
        latencies=latencies,
        backfill_megabytes_per_s=sum(each.megabytes_per_s for each in transfers),
        broker_cpu_s=cpu_s(broker.pid) - broker_cpu_s,
        tidegate_cpu_s=cpu_s(stage.tidegate.pid) - tidegate_cpu_s,
        remote_fetches=broker.remote_fetch_requests() - fetches,
        tidegate_fill_share=used.log_get_bytes / used.served_bytes if used.served_bytes else 0.0,
        read_bytes=sum(each.read_bytes for each in transfers),
        served_bytes=used.served_bytes,
    )


def _account(report: ProducerReport, name: str, rate: float, runs: dict[str, Run]) -> None:
    through, direct = runs[THROUGH_TIDEGATE], runs[THROUGH_BROKER]
    if through.remote_fetches:
        report.complaints.append(f"{name}: {through.remote_fetches} remote fetches at the broker beside Tidegate")
    if through.served_bytes < through.read_bytes:
        served = f"{through.served_bytes / 1e6:,.0f} MB of {through.read_bytes / 1e6:,.0f} MB"
        report.complaints.append(f"{name}: Tidegate has served {served} that were read through it")
    if not direct.remote_fetches or direct.served_bytes:
        report.complaints.append(f"{name}: what was read at the broker did not come from its own tier reads")
    wanted = rate * BACKFILLS
    for run in (through, direct):
        if run.backfill_megabytes_per_s < KEPT_UP_SHARE_MIN * wanted:
            rates = f"{run.backfill_megabytes_per_s:.0f} MB/s of {wanted:.0f} MB/s"
            report.notes.append(f"{name}, {run.side}: a round's backfills reached {rates}: not the same load")


@contextmanager
def sides(options: Options) -> Iterator[Sides]:
    """A broker, and all else on it."""
    with (
        own_cluster(jvm_options=JVM_OPTIONS) as cluster,
        sides_on(cluster, cluster.work, options, TOPICS, TIERED_CONFIGS) as ready,
    ):
        yield ready


@contextmanager
def sides_on(
    cluster: KafkaCluster, work: Path, options: Options, topics: Sequence[str], topic_configs: Mapping[str, str]
) -> Iterator[Sides]:
    """Topics, Tidegate, a connected producer, and processes for the backfills.

    Args:
        topics: the one that is produced to, and those of BACKFILL_TOPICS that are read.
    """
    produced, *read = topics
    cluster.create_topic(produced, 1)
    share = options.megabytes // BACKFILL_TOPICS
    offsets = {topic: fill_topic(cluster, topic, share, topic_configs, is_tiered=True) for topic in read}
    stretches = [
        Stretch(topic, partition, each.local_log_start_offset)
        for topic, partitions in offsets.items()
        for partition, each in partitions.items()
    ]
    with stage_on(cluster, read[0], offsets[read[0]], work) as stage, backfill_processes(stretches) as backfills:
        give_way(stage.tidegate.pid, options.nice)
        producer = SteadyProducer(
            bootstrap_of(stage.direct), produced, records_per_s=RECORDS_PER_S, record_bytes=RECORD_BYTES
        )
        yield Sides(stage, producer, backfills)


def give_way(pid: int, nice: int) -> None:
    """Lower the priority of a process that runs, all its threads included (Linux)."""
    if not nice:
        return
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
    # Where the system groups processes by session, priorities count within a group only: so the group's, too.
    autogroup = Path(f"/proc/{pid}/autogroup")
    if autogroup.exists():
        autogroup.write_text(str(nice), encoding="ascii")


def parse_options(arguments: list[str] | None = None) -> Options:
    """From the command line."""
    parser = argparse.ArgumentParser(description="A producer's p99 without and with four backfills, two ways.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each side of a round (5)")
    parser.add_argument("--megabytes", type=int, default=640, help="data in the tier (640)")
    parser.add_argument("--rate", type=float, default=10.0, help="MB/s of each backfill in the first comparison (10)")
    parser.add_argument("--nice", type=int, default=0, help="Tidegate's priority, 0 to 19 (0)")
    parser.add_argument("--quick", action="store_true", help="two rounds of 3 s and 160 MB: does it run at all")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.megabytes < 128 or chosen.rate <= 0:
        parser.error("at least one round, more than 0 s, 128 MB and a rate above 0")
    if chosen.quick:
        return Options(2, 3.0, 160, chosen.rate, chosen.nice, chosen.json)
    return Options(chosen.rounds, chosen.seconds, chosen.megabytes, chosen.rate, chosen.nice, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
