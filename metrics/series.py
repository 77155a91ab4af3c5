"""What a meter counts with: plain numbers, of which a scrape makes prometheus-client's families.

A number has one owner, the trio thread: it adds without a lock, as nobody else does (`value += 1` of two threads may
lose one). A verb that worker threads call as well holds its meter's lock (`metrics.meters`, rule 1). A scrape runs in
another thread and only reads: each number as it stands, so what belongs together may be one event apart.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from metrics.kip405 import Family, Kind

LATENCY_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""1 ms to 10 s. A probe takes 0.2-0.3 ms where nothing is wrong, a cold GET 30 ms, a deadline 0.5 s to 5 s."""

Samples = Iterator[tuple[str, dict[str, str], float]]
"""What is behind the family's name, labels beside the family's, and the value."""


class Series(Protocol):
    """One series of a family, or those of one histogram or timer."""

    def samples(self) -> Samples:
        """Return what it shows now."""


class Number:
    """A counter or a gauge. `ask`: gives the value at scrape time, where nobody sets it."""

    __slots__ = ("ask", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.ask: Callable[[], float] | None = None

    def samples(self) -> Samples:
        yield "", {}, self.value if self.ask is None else self.ask()


class Histogram:
    """How many observations there are up to each bound."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add one."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Samples:
        count = 0
        for bound, more in zip((*map(str, self._bounds), "+Inf"), self._counts.copy(), strict=True):
            count += more
            yield "_bucket", {"le": bound}, count
        yield "_count", {}, count
        yield "_sum", {}, self._sum


SeriesT = TypeVar("SeriesT", bound=Series)


class Labelled(Collector, Generic[SeriesT]):
    """A family's series by their labels.

    Args:
        make: makes a series.
        names: under which it is exposed.
    """

    def __init__(self, family: Family, make: Callable[[], SeriesT], names: Sequence[str]) -> None:
        self._family = family
        self._make = make
        self._names = names
        self._series: dict[tuple[str, ...], SeriesT] = {}

    def labels(self, *values: str) -> SeriesT:
        """The series with these labels, there from now on."""
        series = self._series.get(values)
        if series is None:
            series = self._series[tuple(map(str, values))] = self._make()
        return series

    def describe(self) -> list[Metric]:
        """The family without samples, so that the registry knows its names at once."""
        kind = "summary" if self._family.kind is Kind.TIMER else self._family.kind.value
        return [Metric(name, self._family.help, kind) for name in self._names]

    def collect(self) -> Iterator[Metric]:
        """The family as it stands."""
        total = "_total" if self._family.kind is Kind.COUNTER else ""
        for metric in self.describe():
            for values, series in self._series.copy().items():
                labels = dict(zip(self._family.labels, values, strict=True))
                for suffix, more, value in series.samples():
                    metric.add_sample(metric.name + total + suffix, {**labels, **more}, float(value))
            yield metric
