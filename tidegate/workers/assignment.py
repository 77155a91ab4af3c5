"""Which worker gets a connection.

Rule 1. While brokers are at least as many as workers, each broker has one worker, and all connections of its listener
        go there: a partition is read at its leader, so its blocks are in one cache only. Workers have as many brokers
        as each other, or one more.
Rule 2. While brokers are fewer, each worker belongs to one broker, and brokers have as many workers as each other, or
        one more. A connection goes to the one of them that has the fewest.
Rule 3. A connection that is for no broker (the bootstrap listener, or a server name that only the worker will hear)
        goes to the worker that has the fewest.
Rule 4. While none of a broker's workers is up and not full, any other that is takes its connections: a cold cache is
        better than none.
Rule 5. Where rule 2 leaves a choice, connections of brokers count first: clients leave the bootstrap listener as soon
        as they know the brokers, and two of them could otherwise meet in one worker.
Rule 6. What is assigned stays as long as rules 1 and 2 allow: moving a broker costs its cache.

Ties go to the lowest number, and brokers are assigned when the first connection asks: so brokers that are found
together get the same workers in each run, in whatever order their listeners begin, and a worker that starts again with
the host finds its own blocks on the disk.

SO_REUSEPORT would have the kernel choose by a hash of the addresses. Kafka clients have few connections and keep them,
so that one worker gets most of them by chance, and it could not follow rule 1.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

ItemT = TypeVar("ItemT", bound=Hashable)


class Assignment:
    """Brokers and connections by worker. Workers are numbers from 0; none is up at first."""

    def __init__(self, workers: int) -> None:
        self._connections = [0] * workers
        self._of_brokers = [0] * workers
        """Those among them that are for a broker."""
        self._up: set[int] = set()
        self._full: set[int] = set()
        self._brokers: tuple[int, ...] = ()
        self._is_settled = True
        self._homes: Mapping[int, int] = {}
        """Broker to worker, by rule 1."""
        self._belongs: Mapping[int, int] = {}
        """Worker to broker, by rule 2."""

    @property
    def up(self) -> frozenset[int]:
        """The workers that take connections."""
        return frozenset(self._up)

    @property
    def free(self) -> frozenset[int]:
        """The workers that take connections and are not full."""
        return frozenset(self._up - self._full)

    def follow(self, brokers: Iterable[int]) -> None:
        """These are upstream's brokers now."""
        self._brokers = tuple(sorted({*brokers}))
        self._is_settled = False

    def _settle(self) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        workers = range(len(self._connections))
        if len(self._brokers) >= len(workers):
            self._homes, self._belongs = balance(self._brokers, workers, self._homes), {}
        else:
            self._homes, self._belongs = {}, balance(workers, self._brokers, self._belongs) if self._brokers else {}

    def workers_of(self, broker: int | None) -> tuple[int, ...]:
        """The workers that are meant for a broker's connections, whether they are up or not; None, or a broker that is
        not known: all."""
        self._settle()
        if broker is not None and broker in self._homes:
            return (self._homes[broker],)
        if broker in self._brokers:
            return tuple(worker for worker, own in sorted(self._belongs.items()) if own == broker)
        return tuple(range(len(self._connections)))

    def choose(self, broker: int | None, among: AbstractSet[int]) -> int | None:
        """The worker for a new connection of this broker's listener, of those that it may have; None: none of them is
        up and not full."""
        free = self.free & among
        candidates = [worker for worker in self.workers_of(broker) if worker in free] or sorted(free)

        def load(worker: int) -> tuple[int, int, int]:
            return self._of_brokers[worker] if broker is not None else 0, self._connections[worker], worker

        return min(candidates, key=load, default=None)

    def connections(self, worker: int) -> int:
        """Return how many the worker has."""
        return self._connections[worker]

    def on_up(self, worker: int) -> None:
        """It takes connections from now on, and has none."""
        self._up.add(worker)
        self._connections[worker] = self._of_brokers[worker] = 0

    def on_down(self, worker: int) -> None:
        """It takes none any more, and its connections have ended."""
        self._up.discard(worker)
        self._connections[worker] = self._of_brokers[worker] = 0

    def on_full(self, worker: int, is_full: bool) -> None:
        """It has no open file for one more connection, or may have some again."""
        (self._full.add if is_full else self._full.discard)(worker)

    def on_given(self, worker: int, broker: int | None) -> None:
        """A connection of this broker's listener was given to it; None: of none's."""
        self._connections[worker] += 1
        self._of_brokers[worker] += broker is not None

    def on_ended(self, worker: int, broker: int | None) -> None:
        """Such a connection of it ended. What ended before it came up again is not counted."""
        self._connections[worker] = max(0, self._connections[worker] - 1)
        if broker is not None:
            self._of_brokers[worker] = max(0, self._of_brokers[worker] - 1)


def balance(items: Iterable[ItemT], bins: Iterable[int], before: Mapping[ItemT, int]) -> dict[ItemT, int]:
    """Each item's bin: bins have as many items as each other or one more, and few items have another than before.

    Args:
        items: sorted; those that move are the last ones.
        bins: at least one.
    """
    load = Counter(dict.fromkeys(bins, 0))
    found: dict[ItemT, int] = {}
    new = []
    for item in items:
        if (bin_ := before.get(item)) in load:
            assert bin_ is not None
            found[item] = bin_
            load[bin_] += 1
        else:
            new.append(item)
    for item in new:
        found[item] = min(load, key=lambda each: (load[each], each))
        load[found[item]] += 1
    while True:
        fullest, emptiest = (
            max(load, key=lambda each: (load[each], -each)),
            min(load, key=lambda each: (load[each], each)),
        )
        if load[fullest] - load[emptiest] <= 1:
            return found
        moved = [item for item in found if found[item] == fullest][-1]
        found[moved] = emptiest
        load[fullest] -= 1
        load[emptiest] += 1
