"""What others wait while a crowd leaves, or its broker does (benchmarks/README.md).

    python benchmarks/crowd_closes.py [--clients 5000] [--rounds 3]

A crowd of connections that have each had an answer is closed at once, while one more asks again and again for what
takes no work (ApiVersions); the longest that it waits is what counts. Then the crowd is at one broker of two, which
restarts, and the one more is at the other. Exit code 1 when the longest wait through Tidegate, the median of the
rounds, is more than four times that at the broker, and more than 250 ms. Linux only.
"""

import argparse
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.stage import JVM_OPTIONS, Address
from benchmarks.support.worker_processes import served_by
from tests.support.kafka import own_cluster
from tests.support.raw_client import RawClient, address_of
from tools.demo.kafka_cluster import KafkaCluster

BROKER, CLOSES, RESTART = "closes at the broker", "closes through Tidegate", "a broker's restart, through Tidegate"
ASK = struct.pack(">ihhih", 10, 18, 0, 7, -1)
AFTERWARDS_S = 3.0
"""For which is asked on when the crowd has been closed: what ends them comes after that."""
TIMES_MAX = 4.0
WAIT_S_MAX = 0.25
_TIMEOUT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description="What others wait while a crowd leaves, or its broker does.")
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with own_cluster(brokers=2, jvm_options=JVM_OPTIONS) as cluster:
        found = measure(cluster, options.clients, options.rounds)
    return 1 if judge(found) else 0


def measure(cluster: KafkaCluster, clients: int, rounds: int, *, restarts: bool = True) -> dict[str, list[float]]:
    """Return the longest waits in seconds, of each round of each kind."""
    found: dict[str, list[float]] = {}
    with served_by(cluster, 1, None, {"proxy.connections.max": str(clients + 100)}) as served:
        crowded, other = addresses_of(served.address)
        at_broker = address_of(cluster.bootstrap_servers.partition(",")[0])
        for _ in range(rounds):
            for kind, address in ((BROKER, at_broker), (CLOSES, crowded)):
                with crowd(address, clients) as sockets:
                    _note(found, kind, longest_wait_s(address, partial(_close, sockets)))
            if restarts:
                with crowd(crowded, clients):
                    _note(found, RESTART, longest_wait_s(other, partial(cluster.restart_broker, 1)))
    return found


def judge(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Return what does not hold; said too."""
    median_s = {kind: statistics.median(waits) for kind, waits in found.items()}
    limit_s = max(TIMES_MAX * median_s[BROKER], WAIT_S_MAX)
    wrong = [f"{kind}: {wait_s:.3f} s, {limit_s:.3f} allowed" for kind, wait_s in median_s.items() if wait_s > limit_s]
    print("longest waits, median of the rounds: " + ", ".join(f"{kind} {s:.3f} s" for kind, s in median_s.items()))
    for each in wrong:
        print(f"failed: {each}")
    return wrong


def addresses_of(bootstrap: Address) -> tuple[Address, Address]:
    """Return where the first and the last broker are to be found through Tidegate: the same where there is one."""
    with RawClient(*bootstrap) as client:
        brokers = sorted(client.metadata([]).brokers, key=lambda each: each.node_id)
    first, *_, last = [(each.host, each.port) for each in [brokers[0], *brokers]]
    return first, last


@contextmanager
def crowd(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Open so many connections, each of which has had an answer."""
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(address, _TIMEOUT_S))
            ask(sock)
            sockets.append(sock)
        yield sockets


def longest_wait_s(address: Address, end_crowd: Callable[[], object]) -> float:
    """Return how long one more client waits at most, while and after the crowd is ended."""
    waits_s = []
    with socket.create_connection(address, _TIMEOUT_S) as sock:
        ask(sock)
        ending = threading.Thread(target=end_crowd)
        ending.start()
        end_s = time.perf_counter() + AFTERWARDS_S
        while ending.is_alive() or time.perf_counter() < end_s:
            asked_s = time.perf_counter()
            ask(sock)
            waits_s.append(time.perf_counter() - asked_s)
        ending.join()
    return max(waits_s)


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def ask(sock: socket.socket) -> None:
    """Ask, and take the answer."""
    sock.sendall(ASK)
    left = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    assert left, "it was closed"
    while left:
        got = len(sock.recv(left))
        assert got, "it was closed"
        left -= got


def _note(found: dict[str, list[float]], kind: str, wait_s: float) -> None:
    found.setdefault(kind, []).append(wait_s)
    print(f"{kind}: {wait_s:.3f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
