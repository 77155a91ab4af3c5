import random

from storage.metadata.event_log import Backoff


def test_the_delay_doubles_up_to_its_maximum_and_starts_again_after_a_reset() -> None:
    backoff = Backoff(first_s=0.1, max_s=1.0, jitter=0.0)

    delays_s = [backoff.next_delay_s() for _ in range(6)]
    backoff.reset()

    assert delays_s == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.next_delay_s() == 0.1


def test_each_delay_is_spread_by_the_jitter() -> None:
    backoff = Backoff(first_s=1.0, max_s=1.0, jitter=0.2, source=random.Random(7))

    delays_s = [backoff.next_delay_s() for _ in range(200)]

    assert all(0.8 <= delay_s <= 1.2 for delay_s in delays_s)
    assert max(delays_s) - min(delays_s) > 0.3


def test_a_thousand_failures_in_a_row_stay_at_the_maximum() -> None:
    backoff = Backoff(jitter=0.0)

    assert [backoff.next_delay_s() for _ in range(2_000)][-1] == backoff.max_s
