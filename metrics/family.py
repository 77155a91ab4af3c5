"""What a metric is: the one declaration that the registry, docs/metrics.md and the dashboard's coverage are made of."""

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What kind of series a family holds."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    TIMER = "timer"
    """Kafka's own timer: `_count`, `_sum` and quantiles, in milliseconds (`metrics.timer`)."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family. `name` has no `_total` and no `_count`: the exposition adds them."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name to query by, as it stands in `/metrics`."""
        suffixes = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_bucket", Kind.TIMER: "_count"}
        return self.name + suffixes.get(self.kind, "")
