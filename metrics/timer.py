"""Kafka's timer as a Prometheus summary: a count, a sum, and quantiles over the latest observations.

prometheus-client's own Summary has no quantiles, and a histogram has other names than dashboards of a broker ask for.
A broker's reservoir holds 1028 observations and prefers recent ones; here it is simply the last 1028.
"""

from collections import deque

from metrics.series import Samples

RESERVOIR_SIZE = 1028
"""As in the metrics library that brokers use; sorting it costs some 50 µs, at scrape time only."""

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


class KafkaTimer:
    """Observations in milliseconds. No quantile is given before the first."""

    __slots__ = ("_count", "_latest_ms", "_sum_ms")

    def __init__(self) -> None:
        self._latest_ms: deque[float] = deque(maxlen=RESERVOIR_SIZE)
        self._count = 0
        self._sum_ms = 0.0

    def observe(self, duration_ms: float) -> None:
        """Add one duration."""
        self._latest_ms.append(duration_ms)
        self._count += 1
        self._sum_ms += duration_ms

    def samples(self) -> Samples:
        latest_ms = sorted(self._latest_ms.copy())
        for quantile in QUANTILES if latest_ms else ():
            rank = min(int(quantile * len(latest_ms)), len(latest_ms) - 1)
            yield "", {"quantile": str(quantile)}, latest_ms[rank]
        yield "_count", {}, self._count
        yield "_sum", {}, self._sum_ms
