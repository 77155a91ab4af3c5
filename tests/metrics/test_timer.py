"""Kafka's timer: count and sum of all, quantiles of the latest."""

from metrics.timer import QUANTILES, RESERVOIR_SIZE, KafkaTimer


def samples(timer: KafkaTimer) -> dict[str, float]:
    return {suffix + labels.get("quantile", ""): value for suffix, labels, value in timer.samples()}


def test_quantiles_are_ranks_of_the_sorted_observations() -> None:
    timer = KafkaTimer()
    for duration_ms in reversed(range(1000)):
        timer.observe(duration_ms)
    values = samples(timer)
    assert [values[f"{quantile}"] for quantile in QUANTILES] == [500, 750, 950, 980, 990, 999]


def test_quantiles_forget_the_oldest_while_the_count_does_not() -> None:
    timer = KafkaTimer()
    timer.observe(1_000_000.0)
    for _ in range(RESERVOIR_SIZE):
        timer.observe(1.0)
    assert samples(timer)["0.999"] == 1.0
    assert samples(timer)["_count"] == RESERVOIR_SIZE + 1
