"""Where clients may go after the death of a worker that had their connections."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.workers.suspects import TRIAL_S, Suspects

WORKERS = frozenset(range(3))
A, B, C, D = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"


def free(suspects: Suspects, *clients: str, up: frozenset[int] = WORKERS) -> list[set[int]]:
    return [set(suspects.workers_for(client, up)) for client in clients]


def test_after_a_first_death_all_that_were_there_go_back_there() -> None:
    suspects = Suspects()
    assert free(suspects, A) == [{0, 1, 2}]
    suspects.on_death(0, {A, B})
    assert free(suspects, A, B, C, up=WORKERS - {0}) == [set(), set(), {1, 2}]
    suspects.on_up(0, 100.0)
    assert free(suspects, A, B, C) == [{0}, {0}, {0, 1, 2}]
    assert not suspects.on_time(0, 100.0 + TRIAL_S - 1)
    assert suspects.on_time(0, 100.0 + TRIAL_S)
    assert (suspects.of(0), free(suspects, A)) == ([], [{0, 1, 2}])


def test_after_a_second_death_half_of_them_are_let_in_and_nobody_else() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.on_death(0, {A, B, C, D})
        suspects.on_up(0, 100.0)
    assert free(suspects, A, B, C, D, "other") == [{0}, {0}, set(), set(), {1, 2}]
    assert free(suspects, "other", up=frozenset({0})) == [{0}], "no other worker can take it"
    suspects.on_time(0, 100.0 + TRIAL_S)
    assert free(suspects, A, C) == [{1, 2}, {0}]
    # Those that were cleared have connections there still, and are not suspected again.
    suspects.on_death(0, {A, B, C, D})
    assert suspects.of(0) == [C, D]
    suspects.on_up(0, 200.0)
    suspects.on_death(0, {C})
    assert (suspects.of(0), free(suspects, D, up=frozenset({1}))) == ([C], [{1}])


def test_a_death_without_connections_says_nothing_of_them() -> None:
    suspects = Suspects()
    suspects.on_death(0, set())
    assert suspects.of(0) == []
    suspects.on_death(0, {A})
    suspects.on_up(0, 100.0)
    suspects.on_death(0, set())
    assert not suspects.on_time(0, 100.0 + TRIAL_S), "it is not up"
    assert suspects.of(0) == [A]
    suspects.clear(0)
    assert free(suspects, A) == [{0, 1, 2}]


def test_of_two_workers_that_died_it_is_the_latters_suspect() -> None:
    suspects = Suspects()
    suspects.on_death(0, {A, B})
    suspects.on_death(1, {A})
    assert (suspects.of(0), suspects.of(1)) == ([B], [A])
    suspects.on_death(1, {B})
    assert free(suspects, A, B) == [{0, 1, 2} - {1}, set()] or suspects.of(1) == [B]


@given(st.integers(1, 200), st.data())
def test_the_one_that_kills_is_never_cleared_and_all_others_soon(clients: int, data: st.DataObject) -> None:
    suspects, here = Suspects(), {f"10.0.{number // 250}.{number % 250}" for number in range(clients)}
    culprit, deaths, now_s = data.draw(st.sampled_from(sorted(here))), 0, 0.0
    suspects.on_death(0, here)
    while len(suspects.of(0)) > 1:
        now_s += TRIAL_S
        suspects.on_up(0, now_s)
        let_in = {client for client in suspects.of(0) if suspects.workers_for(client, WORKERS)}
        if culprit in let_in:
            suspects.on_death(0, let_in)
            deaths += 1
        else:
            assert suspects.on_time(0, now_s + TRIAL_S)
        assert suspects.workers_for(culprit, WORKERS) <= {0}
    assert suspects.of(0) == [culprit]
    assert deaths <= 1 + clients.bit_length()
