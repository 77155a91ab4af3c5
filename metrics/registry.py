"""The registry: where families are declared and collected, with a limit on what a label may cost.

A family of ours is declared once, by a meter, beside the verb that moves it; docs/metrics.md, the dashboard's test and
the exposition follow from `families` and `collect`. KIP-405's families are declared in the table `metrics.kip405`, and
registered here by their bean when a meter asks for one; what nobody feeds is not exported.

It is our own, never prometheus-client's global one, so that two proxies in one process (a test) do not collide.

Hot path: `children[label].inc(n)` is one dict lookup and one addition under the child's lock. Beyond the limit of
distinct labels the rest share the label `__other__`, at the price of one more lookup.
"""

import enum
import threading
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from metrics.kip405 import EXPORTED, Family, Kind, Kip405Names
from metrics.timer import KafkaTimer

LATENCY_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""1 ms to 10 s. A probe takes 0.2-0.3 ms where nothing is wrong, a cold GET 30 ms, a deadline 0.5 s to 5 s."""

TOPICS_MAX: Final = 1000
"""Topics with series of their own: about ten series each, so 10,000 samples, near 1 MB a scrape at the most."""

OTHER_LABEL: Final = "__other__"
"""Stands for all labels beyond the limit. A topic's legal name, but one nobody chooses."""

ChildT = TypeVar("ChildT", bound=MetricWrapperBase)
KeyT = TypeVar("KeyT", bound=Hashable)
EnumT = TypeVar("EnumT", bound=enum.StrEnum)

_ROWS: Final = {row.bean: row for row in EXPORTED}


class LabelLimit:
    """Admits the first `labels_max` distinct labels; shared by families whose label means the same thing."""

    def __init__(self, labels_max: int) -> None:
        self._labels_max = labels_max
        self._admitted: set[str] = set()
        self._lock = threading.Lock()

    def label_of(self, value: str) -> str:
        """The value itself, or `OTHER_LABEL` when it came too late."""
        with self._lock:
            if value not in self._admitted:
                if len(self._admitted) >= self._labels_max:
                    return OTHER_LABEL
                self._admitted.add(value)
            return value


class Children(dict[KeyT, ChildT], Generic[KeyT, ChildT]):
    """One family's series by label value, or by a tuple of them; made at first use. The limit is on the first label.

    Keys that share `OTHER_LABEL` are not remembered: this dict is bounded by the limit too.

    Args:
        series_max: where the second label is not an enumeration either; beyond it all labels are `OTHER_LABEL`.
        from_start: keys whose series are there at once: a rate needs the zero before the first event, and an alert the
            series before the first trouble.
    """

    def __init__(
        self, parent: ChildT, limit: LabelLimit, series_max: int | None = None, from_start: Iterable[KeyT] = ()
    ) -> None:
        super().__init__()
        self._parent = parent
        self._limit = limit
        self._series_max = series_max
        for key in from_start:
            self.__missing__(key)

    def __missing__(self, key: KeyT) -> ChildT:
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

    def counter(self, name: str, help_text: str, *labels: str) -> Counter:
        """Declare a counter."""
        self.families.append(Family(name, Kind.COUNTER, help_text, labels))
        return Counter(name, help_text, labels, registry=self._collectors)

    def gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        """Declare a gauge."""
        self.families.append(Family(name, Kind.GAUGE, help_text, labels))
        return Gauge(name, help_text, labels, registry=self._collectors)

    def histogram(
        self, name: str, help_text: str, *labels: str, buckets: tuple[float, ...] = LATENCY_BUCKETS_S
    ) -> Histogram:
        """Declare a histogram; `buckets` are upper bounds in the unit of its name."""
        self.families.append(Family(name, Kind.HISTOGRAM, help_text, labels))
        return Histogram(name, help_text, labels, buckets=buckets, registry=self._collectors)

    def counter_by(self, name: str, help_text: str, label: str, values: type[EnumT]) -> Children[EnumT, Counter]:
        """Declare a counter whose one label is an enumeration. All its series are there from the start."""
        return Children(self.counter(name, help_text, label), LabelLimit(len(values)), from_start=values)

    def gauge_by(self, name: str, help_text: str, label: str, values: type[EnumT]) -> Children[EnumT, Gauge]:
        """Declare a gauge likewise."""
        return Children(self.gauge(name, help_text, label), LabelLimit(len(values)), from_start=values)

    def kip405_counter(self, bean: str) -> Counter:
        """Register a counter of the KIP-405 table by its bean's type and name, under the names that are configured.

        Raises:
            KeyError: no exported row has this bean.
        """
        row = _ROWS[bean]
        family, original_name = row.family, row.original_name
        if original_name is None or self._names is Kip405Names.CURRENT:
            return self.counter(family.name, family.help, *family.labels)
        if self._names is Kip405Names.ORIGINAL:
            return self.counter(original_name, family.help, *family.labels)
        counter = self.counter(family.name, family.help, *family.labels)
        self._collectors.register(_Alias(counter, family, original_name))
        return counter

    def kip405_gauge(self, bean: str) -> Gauge:
        """Register a gauge of the KIP-405 table likewise; gauges have one name."""
        family = _ROWS[bean].family
        return self.gauge(family.name, family.help, *family.labels)

    def kip405_timer(self, bean: str) -> KafkaTimer:
        """Register a timer of the KIP-405 table likewise."""
        family = _ROWS[bean].family
        self.families.append(family)
        timer = KafkaTimer(family.name, family.help)
        self._collectors.register(timer)
        return timer

    def add_process(self) -> None:
        """Register prometheus-client's `process_*` (where the system has /proc) and `python_gc_*`."""
        ProcessCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def collect(self) -> Iterator[Metric]:
        """All families, without prometheus-client's `_created` series: no broker has them and they double the page."""
        for metric in self._collectors.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric

    def sample_value(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        """One series' value by its exposed name, or None where it does not exist; for tests and the index page."""
        return self._collectors.get_sample_value(name, labels)


class _Alias(Collector):
    """A counter once more under another name: counted once, so that the hot path does not know."""

    def __init__(self, counter: Counter, family: Family, name: str) -> None:
        self._counter = counter
        self._family = family
        self._name = name

    def describe(self) -> list[Metric]:
        return [Metric(self._name, self._family.help, Kind.COUNTER.value)]

    def collect(self) -> Iterator[Metric]:
        alias = Metric(self._name, self._family.help, Kind.COUNTER.value)
        for metric in self._counter.collect():
            for sample in metric.samples:
                suffix = sample.name.removeprefix(self._family.name)
                alias.add_sample(self._name + suffix, sample.labels, sample.value)
        yield alias
