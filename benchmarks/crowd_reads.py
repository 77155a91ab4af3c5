"""A crowd of clients at random places of a cold tier, and a Tidegate whose core is slow (benchmarks/README.md).

    python benchmarks/crowd_reads.py [--clients 160] [--seconds 10] [--rounds 3] [--megabytes 400] [--before CHECKOUT]

Each client has one connection, and asks for records at a random offset, again until it has them, and then somewhere
else. Tidegate has one core, which a process beside it keeps busy, and a cache that is smaller than the data. Exit code
1 when a client has to come again, when a broker reads for a Tidegate whose store has no trouble, or when good
answers are less than the floor's times those of the version before. Linux only.
"""

import argparse
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.bare_fetch import FETCH_VERSION, BareClient, fetch_request
from benchmarks.support.stage import JVM_OPTIONS, TIERED_CONFIGS, Address, fill_topic
from benchmarks.support.tier_usage import tier_usage
from benchmarks.support.worker_processes import served_by
from protocol.fetch.response import decode_response
from tests.support.kafka import own_cluster
from tests.support.raw_client import address_of
from tools.demo.kafka_cluster import KafkaCluster

BEFORE, NOW, BROKER = "version before", "Tidegate", "broker"
PROPERTIES = {
    # Each read is settled by a probe of its own, as those of clients that come by name or read many partitions are.
    "authority.max.age.ms": "0"
}
GOOD, EMPTY, FALLBACKS, REFUSED = "good", "empty", "read by the broker", "told to come again"
BEFORE_FLOOR = 1.3
"""Good answers, of those of a version that throws ready records away."""
PARTITION_BYTES = 64 * 1024
MAX_WAIT_MS = 500
SEED = 34


def main() -> int:
    parser = argparse.ArgumentParser(description="Random cold reads of many clients through a Tidegate on a slow core.")
    parser.add_argument("--clients", type=int, default=160)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each side of a round (10)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--before", type=Path, help="the folder of another version of Tidegate, to be compared with")
    options = parser.parse_args()
    with own_cluster(jvm_options=JVM_OPTIONS) as cluster:
        offsets = fill_topic(cluster, "benchmark-crowd", options.megabytes, TIERED_CONFIGS, is_tiered=True)
        ends = {partition: known.local_log_start_offset for partition, known in offsets.items()}
        found = measure(cluster, Crowd("benchmark-crowd", ends, options.clients, options.seconds), options)
    return 1 if judge(found) else 0


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many clients for so many seconds, at offsets below these ends."""

    topic: str
    ends: Mapping[int, int]
    clients: int
    seconds: float


def measure(cluster: KafkaCluster, crowd: Crowd, options: argparse.Namespace) -> dict[str, list[Counter[str]]]:
    """Answers by kind, of each round of each side."""
    sides = [BROKER, *([BEFORE] if options.before else []), NOW]
    found: dict[str, list[Counter[str]]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 else reversed(sides):
            if side == BROKER:
                answers = answers_of(crowd, address_of(cluster.bootstrap_servers))
            else:
                checkout = options.before if side == BEFORE else None
                with served_by(cluster, 1, checkout, PROPERTIES) as served, slow_core(served.tidegate.pid):
                    answers = answers_of(crowd, served.address)
                    used = tier_usage(served.tidegate)
                    answers.update({FALLBACKS: used.fallback_reads, REFUSED: used.fallback_refused})
            found[side].append(answers)
            print(f"{side}: {dict(answers)}", flush=True)
    return found


def judge(found: Mapping[str, Sequence[Counter[str]]]) -> list[str]:
    """Return what does not hold; said too."""
    wrong = []
    bad = sum((answers for answers in found[NOW]), Counter[str]())
    for what in sorted(bad.keys() - {GOOD, EMPTY}):
        if bad[what]:
            wrong.append(f"{bad[what]} × {what}")
    median = {side: statistics.median(answers[GOOD] for answers in rounds) for side, rounds in found.items()}
    print("good answers, median of the rounds: " + ", ".join(f"{side} {good:g}" for side, good in median.items()))
    if BEFORE in median and median[NOW] < BEFORE_FLOOR * median[BEFORE]:
        wrong.append(f"{median[NOW] / max(1, median[BEFORE]):.2f} × the good answers of before, {BEFORE_FLOOR} wanted")
    for each in wrong:
        print(f"failed: {each}")
    return wrong


def answers_of(crowd: Crowd, address: Address) -> Counter[str]:
    """Return how the clients are answered there, by kind."""
    chosen = random.Random(SEED)
    answers = Counter[str]()
    with BareClient(address) as client:
        topic_id = client.topic_id(crowd.topic)

    def request() -> bytes:
        partition = chosen.choice([*crowd.ends])
        at = {partition: chosen.randrange(crowd.ends[partition])}
        return fetch_request(topic_id, at, max_wait_ms=MAX_WAIT_MS, partition_bytes_max=PARTITION_BYTES)

    asked: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(crowd.clients):
            sock = socket.create_connection(address, 30.0)
            asked[sock] = request()
            selector.register(sock, selectors.EVENT_READ, bytearray())
            sock.sendall(asked[sock])
        end_s = time.perf_counter() + crowd.seconds
        while (left_s := end_s - time.perf_counter()) > 0:
            for key, _ in selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                frame: bytearray = key.data
                got = key.fileobj.recv(1 << 20)
                assert got, "a client was closed"
                frame += got
                if len(frame) >= 4 + int.from_bytes(frame[:4], "big"):
                    kind = _kind(frame)
                    answers[kind] += 1
                    frame.clear()
                    if kind == GOOD:
                        asked[key.fileobj] = request()
                    key.fileobj.sendall(asked[key.fileobj])
        for key in [*selector.get_map().values()]:
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return answers


def _kind(frame: bytearray) -> str:
    (answer,) = decode_response(memoryview(bytes(frame)), FETCH_VERSION).partitions
    return f"code {answer.error_code}" if answer.error_code else GOOD if answer.records_bytes else EMPTY


@contextmanager
def slow_core(pid: int) -> Iterator[None]:
    """Pin a process, with all its threads, to one core that it shares with another that never rests."""
    core = {max(os.sched_getaffinity(0))}
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for task in (busy.pid, *(int(each.name) for each in Path(f"/proc/{pid}/task").iterdir())):
                os.sched_setaffinity(task, core)
            yield
        finally:
            busy.kill()


if __name__ == "__main__":
    sys.exit(main())
