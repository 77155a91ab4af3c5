"""Kafka's timer as a Prometheus summary: a count, a sum, and quantiles over the latest observations.

prometheus-client's own Summary has no quantiles, and a histogram has other names than dashboards of a broker ask for.
A broker's reservoir holds 1028 observations and prefers recent ones; here it is simply the last 1028.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

RESERVOIR_SIZE = 1028
"""As in the metrics library that brokers use; sorting it costs some 50 µs, at scrape time only."""

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


class KafkaTimer(Collector):
    """Observations in milliseconds. Thread-safe."""

    def __init__(self, name: str, help_text: str) -> None:
        self._name = name
        self._help = help_text
        self._lock = threading.Lock()
        self._latest_ms: deque[float] = deque(maxlen=RESERVOIR_SIZE)
        self._count = 0
        self._sum_ms = 0.0

    def observe(self, duration_ms: float) -> None:
        """Add one duration."""
        with self._lock:
            self._latest_ms.append(duration_ms)
            self._count += 1
            self._sum_ms += duration_ms

    def timing(self) -> "Timing":
        """To enter: observe how long that lasts, however it ends."""
        return Timing(self)

    def describe(self) -> list[Metric]:
        """The family without samples, so that the registry knows the name at once."""
        return [Metric(self._name, self._help, "summary")]

    def collect(self) -> Iterator[Metric]:
        """The family; no quantile is given before the first observation."""
        with self._lock:
            latest_ms = sorted(self._latest_ms)
            count, sum_ms = self._count, self._sum_ms
        metric = Metric(self._name, self._help, "summary")
        if latest_ms:
            for quantile in QUANTILES:
                rank = min(int(quantile * len(latest_ms)), len(latest_ms) - 1)
                metric.add_sample(self._name, {"quantile": str(quantile)}, latest_ms[rank])
        metric.add_sample(f"{self._name}_count", {}, count)
        metric.add_sample(f"{self._name}_sum", {}, sum_ms)
        yield metric


class Timing:
    """What a timer observes as one duration. Not a generator's context manager: it is entered for each read."""

    __slots__ = ("_started_s", "_timer")

    def __init__(self, timer: KafkaTimer) -> None:
        self._timer = timer

    def __enter__(self) -> None:
        self._started_s = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._timer.observe((time.perf_counter() - self._started_s) * 1000)
