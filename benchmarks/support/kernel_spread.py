"""How evenly a few connections spread over several sockets: the kernel's hash (SO_REUSEPORT), and Tidegate's choice.

    python -m benchmarks.support.kernel_spread [--runs 500] [--connections 8]

Kafka clients open few connections and keep them, so a spread that is even only for many is of no use to them. The
kernel's is tried on loopback: so many connections, each from a port that the kernel chose, to as many sockets on one
port. Tidegate's is what its own rules give, with as many brokers as workers, and with one broker.
"""

import argparse
import selectors
import socket
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tidegate.workers.assignment import Assignment

RUNS = 500
CONNECTIONS = 8
SOCKETS = (2, 4)
_HOST = "127.0.0.1"
_BACKLOG = 128
_ACCEPT_S = 10.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Shares of all connections that the fullest had, one for each run, and in how many runs some had none."""

    connections: int
    sockets: int
    busiest: Sequence[float]
    with_idle: int

    @property
    def busiest_mean(self) -> float:
        return statistics.mean(self.busiest)

    def text(self) -> str:
        """In one sentence."""
        over = sum(share > 1.2 / self.sockets for share in self.busiest) / len(self.busiest)
        return (
            f"{self.connections} connections over {self.sockets} sockets by SO_REUSEPORT: the fullest has "
            f"{self.busiest_mean:.0%} of them on the average of {len(self.busiest)} runs, {max(self.busiest):.0%} at "
            f"most (even would be {1 / self.sockets:.0%}); in {over:.0%} of runs more than 1.2 times its part; in "
            f"{self.with_idle / len(self.busiest):.0%} one has none. Tidegate: "
            f"{ours(self.connections, self.sockets, self.sockets):.0%} with as many brokers as workers, "
            f"{ours(self.connections, self.sockets, 1):.0%} with one broker"
        )


def kernel_spread(connections: int, sockets: int, runs: int) -> Spread:
    """Connect, and see who accepts.

    Raises:
        TimeoutError: nobody accepted in time.
    """
    counts = [_one_run(connections, sockets) for _ in range(runs)]
    return Spread(
        connections,
        sockets,
        [max(each.values()) / connections for each in counts],
        sum(len(each) < sockets for each in counts),
    )


def ours(connections: int, workers: int, brokers: int) -> float:
    """The same by Tidegate's rules: the share of the worker with most connections, of as many from each broker."""
    assignment = Assignment(workers)
    assignment.follow(range(1, brokers + 1))
    for worker in range(workers):
        assignment.on_up(worker)
    for number in range(connections):
        broker = number % brokers + 1
        chosen = assignment.choose(broker, assignment.up)
        assert chosen is not None, "all are up"
        assignment.on_given(chosen, broker)
    return max(assignment.connections(worker) for worker in range(workers)) / connections


def _one_run(connections: int, sockets: int) -> Counter[int]:
    """By the socket's number: how many connections it got."""
    found: Counter[int] = Counter()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        port = 0
        for number in range(sockets):
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((_HOST, port))
            port = listener.getsockname()[1]
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, number)
        for _ in range(connections):
            stack.enter_context(socket.create_connection((_HOST, port)))
        while found.total() < connections:
            ready = selector.select(_ACCEPT_S)
            if not ready:
                raise TimeoutError(f"{found.total()} of {connections} connections were accepted in {_ACCEPT_S:g} s")
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                stack.enter_context(key.fileobj.accept()[0])
                found[key.data] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="SO_REUSEPORT's spread of few connections, beside Tidegate's.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"tries of each ({RUNS})")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help=f"in each try ({CONNECTIONS})")
    chosen = parser.parse_args()
    for sockets in SOCKETS:
        print(kernel_spread(chosen.connections, sockets, chosen.runs).text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
