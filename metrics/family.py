"""What a metric is: one row shared by the two tables (`kip405`, `tidegate_names`) and by all that is made of them.

A counter's name is written without `_total`, a timer's without `_count`: the exposition adds them.
"""

import enum
from dataclasses import dataclass

LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""1 ms to 10 s. A probe takes 0.2-0.3 ms where nothing is wrong, a cold GET 30 ms, a deadline 0.5 s to 5 s."""


class Kind(enum.StrEnum):
    """What kind of series a family holds."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    TIMER = "timer"
    """Kafka's own timer: `_count`, `_sum` and quantiles, in milliseconds (`metrics.timer`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family. `buckets` are upper bounds in the unit of the name, for histograms only."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name to query by, as it stands in `/metrics`."""
        suffixes = {
            Kind.COUNTER: "_total",
            Kind.HISTOGRAM: "_bucket",
            Kind.TIMER: "_count",
        }
        return self.name + suffixes.get(self.kind, "")
