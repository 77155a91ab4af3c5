"""Which worker gets a connection: the rules of `proxy.workers.assignment`, in examples and in any order of events."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.workers.assignment import Assignment, balance


def made(workers: int, brokers: tuple[int, ...] = ()) -> Assignment:
    assignment = Assignment(workers)
    for worker in range(workers):
        assignment.on_up(worker)
    assignment.follow(brokers)
    return assignment


def given_to(assignment: Assignment, broker: int | None, times: int) -> list[int]:
    """The workers that so many connections go to, one after another."""
    chosen = []
    for _ in range(times):
        worker = assignment.choose(broker)
        assert worker is not None
        assignment.on_given(worker, broker)
        chosen.append(worker)
    return chosen


def test_a_broker_has_one_worker_while_brokers_are_as_many_as_workers() -> None:
    assignment = made(2, (1, 2, 3))
    assert [set(given_to(assignment, broker, 5)) for broker in (1, 2, 3)] == [{0}, {1}, {0}]
    assignment.on_down(0)
    assert given_to(assignment, 1, 2) == [1, 1]


def test_the_order_in_which_listeners_begin_does_not_matter() -> None:
    """It is any order, and other workers would have looked into their disks for a broker's blocks after a restart."""
    found = []
    for order in ((1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3)):
        assignment = made(2)
        for known in range(len(order)):
            assignment.follow(order[: known + 1])
        found.append([assignment.workers_of(broker) for broker in (1, 2, 3, 4)])
    assert found == [[(0,), (1,), (0,), (1,)]] * 3


def test_a_single_broker_has_all_workers_and_the_least_loaded_is_chosen() -> None:
    assignment = made(3, (7,))
    assert given_to(assignment, 7, 6) == [0, 1, 2, 0, 1, 2]
    assignment.on_ended(1, 7)
    assert given_to(assignment, 7, 1) == [1]


def test_clients_that_leave_the_bootstrap_listener_do_not_meet_in_one_worker() -> None:
    assignment = made(2, (7,))
    assert given_to(assignment, None, 2) == [0, 1]
    assert given_to(assignment, 7, 1) == [0]
    assignment.on_ended(0, None)  # the first knows the broker; now worker 0 has one connection, and so has worker 1
    assert given_to(assignment, 7, 1) == [1]


def test_a_broker_that_joins_or_leaves_moves_no_other_without_need() -> None:
    assignment = made(2, (1, 2, 3, 4))
    before = {broker: assignment.workers_of(broker) for broker in (1, 2, 3, 4)}
    assignment.follow((1, 2, 3, 4, 5))
    assert {broker: assignment.workers_of(broker) for broker in (1, 2, 3, 4)} == before
    assignment.follow((1, 3))  # both were worker 0's
    assert (assignment.workers_of(1), assignment.workers_of(3)) == ((0,), (1,))


@given(st.sets(st.integers(0, 30)), st.integers(1, 8), st.dictionaries(st.integers(0, 30), st.integers(0, 9)))
def test_balance_places_all_and_moves_no_more_than_it_must(items: set[int], bins: int, before: dict[int, int]) -> None:
    found = balance(sorted(items), range(bins), before)
    assert found.keys() == items
    load = Counter(found.values())
    counts = [load[each] for each in range(bins)]
    assert max(counts) - min(counts) <= 1
    # What was in balance stays where it was.
    assert balance(sorted(items), range(bins), found) == found


class Events(RuleBasedStateMachine):
    """Brokers, workers and connections come and go; a plain count is the model."""

    @initialize(workers=st.integers(1, 6))
    def start(self, workers: int) -> None:
        self.workers = workers
        self.assignment = Assignment(workers)
        self.brokers: set[int] = set()
        self.up: set[int] = set()
        self.counts: dict[int, list[int | None]] = {worker: [] for worker in range(workers)}
        """Whose connections each worker has."""

    @rule(brokers=st.sets(st.integers(0, 9)))
    def follow(self, brokers: set[int]) -> None:
        self.assignment.follow(brokers)
        self.brokers = brokers

    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        worker = data.draw(st.integers(0, self.workers - 1))
        self.counts[worker] = []
        if worker in self.up:
            self.up.discard(worker)
            self.assignment.on_down(worker)
        else:
            self.up.add(worker)
            self.assignment.on_up(worker)

    @rule(broker=st.none() | st.integers(0, 9))
    def connect(self, broker: int | None) -> None:
        worker = self.assignment.choose(broker)
        if not self.up:
            assert worker is None
            return
        assert worker in self.up
        meant = self.up & {*self.assignment.workers_of(broker)} or self.up
        assert worker in meant
        assert worker is not None
        assert self.load(worker, broker) == min(self.load(each, broker) for each in meant)
        self.assignment.on_given(worker, broker)
        self.counts[worker].append(broker)

    def load(self, worker: int, broker: int | None) -> tuple[int, int]:
        """By rule 5."""
        own = self.counts[worker]
        return len([each for each in own if each is not None]) if broker is not None else 0, len(own)

    @precondition(lambda self: any(self.counts.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([each for each, own in sorted(self.counts.items()) if own]))
        ended = data.draw(st.integers(0, len(self.counts[worker]) - 1))
        self.assignment.on_ended(worker, self.counts[worker].pop(ended))

    @invariant()
    def counts_are_right(self) -> None:
        assert all(self.assignment.connections(each) == len(own) for each, own in self.counts.items())

    @invariant()
    def every_broker_has_workers_and_no_cache_is_doubled_without_need(self) -> None:
        homes = [self.assignment.workers_of(broker) for broker in sorted(self.brokers)]
        if len(homes) >= self.workers:
            assert all(len(each) == 1 for each in homes)
            load = Counter(worker for each in homes for worker in each)
            assert max(load.values()) - min(load[worker] for worker in range(self.workers)) <= 1
        elif homes:
            assert sorted(worker for each in homes for worker in each) == [*range(self.workers)]
            assert max(map(len, homes)) - min(map(len, homes)) <= 1


TestEvents = Events.TestCase
