"""The registry: families made from the two tables, with a limit on what a label may cost.

It is our own, never prometheus-client's global one, so that two proxies in one process (a test) do not collide. A
family is registered when a probe first asks for it; what nobody feeds is not exported.

Hot path: `children[label].inc(n)` is one dict lookup and one addition under the child's lock. Beyond the limit of
distinct labels the rest share the label `__other__`, at the price of one more lookup.
"""

import dataclasses
import enum
import threading
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from metrics.family import Family, Kind
from metrics.kip405 import ROWS, Kip405Names, Kip405Row
from metrics.timer import KafkaTimer

TOPICS_MAX = 1000
"""Topics with series of their own: about ten series each, so 10,000 samples, near 1 MB a scrape at the most."""

OTHER_LABEL = "__other__"
"""Stands for all labels beyond the limit. A topic's legal name, but one nobody chooses."""

ChildT = TypeVar("ChildT", bound=MetricWrapperBase)
KeyT = TypeVar("KeyT", bound=Hashable)
EnumT = TypeVar("EnumT", bound=enum.StrEnum)


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
    """

    def __init__(self, parent: ChildT, limit: LabelLimit, series_max: int | None = None) -> None:
        super().__init__()
        self._parent = parent
        self._limit = limit
        self._series_max = series_max

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
    """Makes families and collects them.

    Args:
        names: `metrics.kip405.names`.
        topics_max: distinct topics with series of their own.
    """

    def __init__(self, names: Kip405Names = Kip405Names.CURRENT, topics_max: int = TOPICS_MAX) -> None:
        self._names = names
        self._collectors = CollectorRegistry()
        self.topics = LabelLimit(topics_max)

    def counter(self, family: Family) -> Counter:
        """Register a counter; without labels it is the series itself.

        Raises:
            ValueError: the name is taken.
        """
        return Counter(family.name, family.help, family.labels, registry=self._collectors)

    def gauge(self, family: Family) -> Gauge:
        """Register a gauge, likewise."""
        return Gauge(family.name, family.help, family.labels, registry=self._collectors)

    def histogram(self, family: Family) -> Histogram:
        """Register a histogram, likewise."""
        return Histogram(
            family.name,
            family.help,
            family.labels,
            buckets=family.buckets,
            registry=self._collectors,
        )

    def enumerated_counter(self, family: Family, values: type[EnumT]) -> "Children[EnumT, Counter]":
        """Register a counter whose one label is an enumeration. All its series are there from the start: a rate needs
        the zero before the first event, and an alert the series before the first trouble."""
        children = Children[EnumT, Counter](self.counter(family), LabelLimit(len(values)))
        for value in values:
            children[value].inc(0)
        return children

    def add_process(self) -> None:
        """Register prometheus-client's `process_*` (where the system has /proc) and `python_gc_*`."""
        ProcessCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def timer(self, family: Family) -> KafkaTimer:
        """Register one of Kafka's timers."""
        timer = KafkaTimer(family.name, family.help)
        self._collectors.register(timer)
        return timer

    def kip405_counter(self, name: str) -> Counter:
        """Register a counter of the KIP-405 table by its bean's name, under the names that are configured.

        Raises:
            KeyError: no exported row has this name.
        """
        row = _EXPORTED[name]
        family = _family_of(row)
        if row.original_name is None or self._names is Kip405Names.CURRENT:
            return self.counter(family)
        if self._names is Kip405Names.ORIGINAL:
            return self.counter(dataclasses.replace(family, name=row.original_name))
        counter = self.counter(family)
        self._collectors.register(_Alias(counter, family, row.original_name))
        return counter

    def kip405_gauge(self, name: str) -> Gauge:
        """Register a gauge of the KIP-405 table by its bean's name."""
        return self.gauge(_family_of(_EXPORTED[name]))

    def kip405_timer(self, name: str) -> KafkaTimer:
        """Register a timer of the KIP-405 table by its bean's name."""
        return self.timer(_family_of(_EXPORTED[name]))

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


def _family_of(row: Kip405Row) -> Family:
    if row.family is None:  # only exported rows are looked up
        raise KeyError(row.name)
    return row.family


def _by_name() -> dict[str, Kip405Row]:
    """Exported rows by type and name, and by name alone where that names one family."""
    exported = [row for row in ROWS if row.family is not None]
    families: dict[str, set[Family | None]] = {}
    for row in exported:
        families.setdefault(row.name, set()).add(row.family)
    return {row.type_and_name: row for row in exported} | {
        row.name: row for row in exported if len(families[row.name]) == 1
    }


_EXPORTED = _by_name()
