"""Which worker gets a connection: the rules of `workers.assignment`, in examples and in any order of events."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidegate.workers.assignment import Assignment, balance


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
        worker = assignment.choose(broker, assignment.up)
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
