"""The registry: where families are declared and collected, with a limit on what a label may cost.

A family of ours is declared once, by a meter, beside the verb that moves it; docs/metrics.md, the dashboard's test and
the exposition follow from `families` and `collect`. KIP-405's families are declared in the table `metrics.kip405`, and
registered here by their bean when a meter asks for one; what nobody feeds is not exported.

It is our own, never prometheus-client's global one, so that two proxies in one process (a test) do not collide.

Hot path: `children[label].value += n` is one dict lookup and one addition. Beyond the limit of distinct labels the rest
share the label `__other__`, at the price of one more lookup.
"""

import enum
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from metrics.kip405 import EXPORTED, Family, Kind, Kip405Names
from metrics.series import LATENCY_BUCKETS_S, Histogram, Labelled, Number, SeriesT
from metrics.timer import KafkaTimer

TOPICS_MAX: Final = 1000
"""Topics with series of their own: about ten series each, so 10,000 samples, near 1 MB a scrape at the most."""

OTHER_LABEL: Final = "__other__"
"""Stands for all labels beyond the limit. A topic's legal name, but one nobody chooses."""

KeyT = TypeVar("KeyT", bound=Hashable)
EnumT = TypeVar("EnumT", bound=enum.StrEnum)

_ROWS: Final = {row.bean: row for row in EXPORTED}


class LabelLimit:
    """Admits the first `labels_max` distinct labels; shared by families whose label means the same thing."""

    def __init__(self, labels_max: int) -> None:
        self._labels_max = labels_max
        self._admitted: set[str] = set()

    def label_of(self, value: str) -> str:
        """The value itself, or `OTHER_LABEL` when it came too late."""
        if value not in self._admitted:
            if len(self._admitted) >= self._labels_max:
                return OTHER_LABEL
            self._admitted.add(value)
        return value


class Children(dict[KeyT, Number], Generic[KeyT]):
    """One family's series by label value, or by a tuple of them; made at first use. The limit is on the first label.

    Keys that share `OTHER_LABEL` are not remembered: this dict is bounded by the limit too.

    Args:
        series_max: where the second label is not an enumeration either; beyond it all labels are `OTHER_LABEL`.
        from_start: keys whose series are there at once: a rate needs the zero before the first event, and an alert the
            series before the first trouble.
    """

    def __init__(
        self,
        parent: Labelled[Number],
        limit: LabelLimit,
        series_max: int | None = None,
        from_start: Iterable[KeyT] = (),
    ) -> None:
        super().__init__()
        self._parent = parent
        self._limit = limit
        self._series_max = series_max
        for key in from_start:
            self.__missing__(key)

    def __missing__(self, key: KeyT) -> Number:
        values = key if isinstance(key, tuple) else (key,)
        if self._series_max is not None and len(self) >= self._series_max:
            return self._parent.labels(*(OTHER_LABEL for _ in values))
        first = self._limit.label_of(str(values[0]))
        child = self._parent.labels(first, *(str(value) for value in values[1:]))
        if first != OTHER_LABEL:
            self[key] = child
        return child


class Registry(Collector):
    """Declares families and collects them.

    A declaration takes the family's name (a counter's without `_total`, which the exposition adds), what it means, and
    the names of its labels; without labels it gives the series itself. Names are Prometheus' way: base units (seconds,
    bytes), unit last. Topics are a label of KIP-405's families, and of what a copier says beside them.

    Args:
        names: `metrics.kip405.names`.
        topics_max: distinct topics with series of their own.

    Raises:
        ValueError: by a declaration whose name is taken.
    """

    def __init__(self, names: Kip405Names = Kip405Names.CURRENT, topics_max: int = TOPICS_MAX) -> None:
        self._names = names
        self._collectors = CollectorRegistry()
        self.topics = LabelLimit(topics_max)
        self.families: list[Family] = []
        """All that were declared, in the order of the page."""

    def counter(self, name: str, help_text: str) -> Number:
        """Declare a counter."""
        return self.counters(name, help_text).labels()

    def counters(self, name: str, help_text: str, *labels: str) -> Labelled[Number]:
        """Declare counters with labels."""
        return self._declare(Family(name, Kind.COUNTER, help_text, labels), Number)

    def gauge(self, name: str, help_text: str) -> Number:
        """Declare a gauge."""
        return self.gauges(name, help_text).labels()

    def gauges(self, name: str, help_text: str, *labels: str) -> Labelled[Number]:
        """Declare gauges with labels."""
        return self._declare(Family(name, Kind.GAUGE, help_text, labels), Number)

    def histogram(self, name: str, help_text: str, buckets: tuple[float, ...] = LATENCY_BUCKETS_S) -> Histogram:
        """Declare a histogram; `buckets` are upper bounds in the unit of its name."""
        return self._declare(Family(name, Kind.HISTOGRAM, help_text), lambda: Histogram(buckets)).labels()

    def histograms(self, name: str, help_text: str, *labels: str) -> Labelled[Histogram]:
        """Declare histograms with labels, of latencies."""
        return self._declare(Family(name, Kind.HISTOGRAM, help_text, labels), Histogram)

    def counter_by(self, name: str, help_text: str, label: str, values: type[EnumT]) -> Children[EnumT]:
        """Declare a counter whose one label is an enumeration. All its series are there from the start."""
        return Children(self.counters(name, help_text, label), LabelLimit(len(values)), from_start=values)

    def gauge_by(self, name: str, help_text: str, label: str, values: type[EnumT]) -> Children[EnumT]:
        """Declare a gauge likewise."""
        return Children(self.gauges(name, help_text, label), LabelLimit(len(values)), from_start=values)

    def kip405_counter(self, bean: str) -> Labelled[Number]:
        """Register a counter of the KIP-405 table by its bean's type and name, under the names that are configured.

        Raises:
            KeyError: no exported row has this bean.
        """
        row = _ROWS[bean]
        family, original_name = row.family, row.original_name
        if original_name is None or self._names is Kip405Names.CURRENT:
            return self._declare(family, Number)
        if self._names is Kip405Names.ORIGINAL:
            return self._declare(replace(family, name=original_name), Number)
        return self._declare(family, Number, original_name)

    def kip405_gauge(self, bean: str) -> Labelled[Number]:
        """Register a gauge of the KIP-405 table likewise; gauges have one name."""
        return self._declare(_ROWS[bean].family, Number)

    def kip405_timer(self, bean: str) -> KafkaTimer:
        """Register a timer of the KIP-405 table likewise."""
        return self._declare(_ROWS[bean].family, KafkaTimer).labels()

    def add_process(self) -> None:
        """Register prometheus-client's `process_*` (where the system has /proc) and `python_gc_*`."""
        ProcessCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def collect(self) -> Iterator[Metric]:
        """All families. None of them has prometheus-client's `_created` series: no broker has them, and they would
        double the page."""
        yield from self._collectors.collect()

    def sample_value(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        """One series' value by its exposed name, or None where it does not exist; for tests and the index page."""
        return self._collectors.get_sample_value(name, labels)

    def _declare(self, family: Family, make: Callable[[], SeriesT], *also_named: str) -> Labelled[SeriesT]:
        labelled = Labelled(family, make, (family.name, *also_named))
        self._collectors.register(labelled)
        self.families.append(family)
        return labelled
