"""When a late answer gets a second GET."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.hedging import DELAY_S_MIN, GETS_PER_HEDGE, HEDGES_SAVED_MAX, NEVER, SEEN_MAX, SEEN_MIN, Hedging


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def hedging(gets_per_minute_min: int = 0, seen: int = SEEN_MIN, clock: Clock | None = None) -> Hedging:
    policy = Hedging(gets_per_minute_min, clock or Clock())
    for number in range(seen):
        policy.on_first_byte((number + 1) / 100)
    return policy


def test_the_delay_is_the_p95_of_the_answers_seen() -> None:
    assert hedging(seen=100).delay_s() == pytest.approx(0.95)
    assert hedging(seen=20).delay_s() == pytest.approx(0.19)


def test_too_few_answers_say_nothing() -> None:
    assert hedging(seen=SEEN_MIN - 1).delay_s() is None


def test_only_the_latest_answers_count() -> None:
    policy = hedging(seen=SEEN_MAX)
    for _ in range(SEEN_MAX):
        policy.on_first_byte(0.03)
    assert policy.delay_s() == pytest.approx(0.03)


def test_the_delay_has_a_lower_bound() -> None:
    policy = hedging(seen=0)
    for _ in range(SEEN_MIN):
        policy.on_first_byte(0.0001)
    assert policy.delay_s() == DELAY_S_MIN


def test_hedging_is_off_below_its_rate_of_gets() -> None:
    clock = Clock()
    policy = hedging(30, clock=clock)
    for _ in range(29):
        policy.on_get()
        clock.now_s += 1
    assert policy.delay_s() is None
    policy.on_get()
    assert policy.delay_s() is not None
    clock.now_s += 31
    assert policy.delay_s() is None, "the first are more than a minute old"


def test_hedging_can_be_turned_off() -> None:
    policy = hedging(NEVER)
    policy.on_get()
    assert policy.delay_s() is None


def test_a_calm_time_saves_up_only_so_many_hedges() -> None:
    policy = hedging()
    for _ in range(10_000):
        policy.on_get()
    assert [policy.take() for _ in range(HEDGES_SAVED_MAX + 1)] == [True] * HEDGES_SAVED_MAX + [False]


@given(st.lists(st.booleans(), max_size=300))
def test_at_most_one_get_in_twenty_is_hedged(wants: list[bool]) -> None:
    policy, hedges = hedging(), 0
    for gets, wants_hedge in enumerate(wants, 1):
        policy.on_get()
        hedges += wants_hedge and policy.take()
        assert hedges * GETS_PER_HEDGE <= gets
