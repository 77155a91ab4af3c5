"""One `/metrics` out of those of all workers.

Rule 1. Counters, histograms and a summary's count and sum are added. What a worker that died had counted, as far as it
        was seen, stays in the sum: Prometheus takes a sum that falls for a process that began again, and counts all of
        it once more.
Rule 2. A gauge is added, or the highest or lowest counts, or it is the supervisor's own: `RULES` says which. What a sum
        says nothing about is shown for each worker, with a label `worker`; so is all about the process itself.
Rule 3. A worker that does not answer in time counts with what it said last.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from metrics.meters import FallbackReason
from metrics.registry import Registry

SUPERVISOR: Final = "supervisor"
"""What the label `worker` says of it."""

LABEL: Final = "worker"


class Rule(enum.Enum):
    """How a gauge of several processes becomes one."""

    SUM = enum.auto()
    HIGHEST = enum.auto()
    LOWEST = enum.auto()
    OWN = enum.auto()
    """The supervisor's."""
    EACH = enum.auto()
    ALL = enum.auto()
    """The sum, the supervisor's own among it."""


def _rules(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: Final[Mapping[str, Rule]] = {
    **_rules(
        Rule.SUM,
        """
        kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize
        kafka_server_delayedoperationpurgatory_purgatorysize kafka_server_delayedoperationpurgatory_numdelayedoperations
        tidegate_cache_resident_bytes tidegate_opened_segments tidegate_gets_in_flight tidegate_gets_queued
        tidegate_gets_limit tidegate_inflight_bytes tidegate_readahead_unread_bytes tidegate_readahead_streams
        tidegate_connections_active tidegate_upstream_connect_waits tidegate_held_bytes tidegate_fetch_sessions
        tidegate_relay_held_bytes tidegate_fallback_partitions tidegate_catalog_memory_bytes tidegate_tasks
        """,
    ),
    # Each worker knows the whole tier.
    **_rules(
        Rule.HIGHEST,
        """
        tidegate_catalog_segments tidegate_catalog_lag_records tidegate_catalog_refused_partitions
        tidegate_catalog_snapshot_timestamp_seconds tidegate_catalog_snapshot_bytes
        kafka_server_brokertopicmetrics_remotelogmetadatacount kafka_server_brokertopicmetrics_remotelogsizebytes
        tidegate_metadata_partition_problems tidegate_config_reload_timestamp_seconds tidegate_config_restart_needed
        tidegate_build_info tidegate_store_tls_python
        """,
    ),
    **_rules(Rule.LOWEST, "tidegate_cache_disk_available tidegate_certificate_expiry_timestamp_seconds"),
    **_rules(
        Rule.OWN,
        """
        tidegate_ready tidegate_degraded tidegate_condition_state tidegate_trouble
        tidegate_worker_up tidegate_worker_connections tidegate_worker_deaths
        """,
    ),
    # It refuses connections of an address that has enough.
    **_rules(Rule.ALL, "tidegate_connections_refused"),
    **_rules(
        Rule.EACH,
        """
        kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidle_percent tidegate_loop_stall_max_seconds
        """,
    ),
}
"""For each gauge, by its family's name; a test holds it complete. All that begins with `process_` is EACH."""

_UNDESCRIBED: Final = ("reason", FallbackReason.NOT_DESCRIBED.value)
"""Each worker knows all that Tidegate may not describe; of what the tier failed only its own."""

Families = Sequence[Mapping[str, Any]]
"""What `samples_of` gives: plain values, as JSON has them."""

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""A series: name and labels."""


def samples_of(registry: Registry) -> list[dict[str, Any]]:
    """All families with their samples. Takes about 5 µs a sample: call it in a thread."""
    return [
        {
            "name": family.name,
            "help": family.documentation,
            "type": family.type,
            "samples": [[sample.name, sample.labels, sample.value] for sample in family.samples],
        }
        for family in registry.collect()
    ]


def rule_of(name: str, kind: str) -> Rule:
    """Return how a family's series of several processes become one."""
    if name in RULES:
        return RULES[name]
    if name.startswith("process_"):
        return Rule.EACH
    return Rule.EACH if kind == "gauge" else Rule.SUM


class Together:
    """What all processes count, together. Owned by the trio thread; `collect` may run in another.

    Args:
        own: the supervisor's registry.
    """

    def __init__(self, own: Registry) -> None:
        self._own = own
        self._counted: tuple[Mapping[str, Families], Mapping[str, Mapping[_Key, float]]] = {}, {}
        """By worker what it said last, and by family what workers had counted that have ended. Never changed but
        replaced as a whole, since a worker may end while another thread collects."""

    def heard(self, worker: str, families: Families) -> None:
        """A worker's samples are these now."""
        latest, ended = self._counted
        self._counted = {**latest, worker: families}, ended

    def ended(self, worker: str) -> None:
        """It counts no further, and what it has counted stays."""
        latest, before = self._counted
        ended = dict(before)
        for family in latest.get(worker, ()):
            if rule_of(family["name"], family["type"]) in (Rule.SUM, Rule.ALL) and family["type"] != "gauge":
                series = ended[family["name"]] = dict(ended.get(family["name"], {}))
                for name, labels, value in family["samples"]:
                    if "quantile" not in labels:
                        key = (name, tuple(sorted(labels.items())))
                        series[key] = series.get(key, 0.0) + value
        self._counted = {name: families for name, families in latest.items() if name != worker}, ended

    def collect(self) -> list[Metric]:
        """The families together, in the supervisor's order, then those that only workers have."""
        latest, ended = self._counted
        sources: list[tuple[str, Families]] = [(SUPERVISOR, samples_of(self._own)), *sorted(latest.items())]
        about: dict[str, Mapping[str, Any]] = {}
        for _, families in sources:
            for family in families:
                about.setdefault(family["name"], family)
        samples = {name: _Series(rule_of(name, family["type"]), ended.get(name, {})) for name, family in about.items()}
        for source, families in sources:
            for family in families:
                samples[family["name"]].add(source, family["samples"])
        metrics = []
        for name, family in about.items():
            metric = Metric(name, family["help"], family["type"])
            for sample_name, labels, value in samples[name]:
                metric.add_sample(sample_name, labels, value)
            metrics.append(metric)
        return metrics


class Collected(Collector):
    """Metrics that have been collected, for `metrics.page.render`."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = [*metrics]

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


class _Series:
    """One family's series."""

    def __init__(self, rule: Rule, ended: Mapping[_Key, float]) -> None:
        self._rule = rule
        self._values = dict(ended)

    def add(self, source: str, samples: Iterable[Sequence[Any]]) -> None:
        is_own = source == SUPERVISOR
        if is_own != (self._rule is Rule.OWN) and self._rule not in (Rule.EACH, Rule.ALL):
            return  # it serves nobody itself, and what is its own no worker knows
        for name, labels, value in samples:
            if self._rule is Rule.EACH or "quantile" in labels:
                labels = {**labels, LABEL: source}
            key = (name, tuple(sorted(labels.items())))
            before = self._values.get(key)
            if before is None:
                self._values[key] = value
            elif self._rule is Rule.HIGHEST or _UNDESCRIBED in key[1]:
                self._values[key] = max(before, value)
            elif self._rule is Rule.LOWEST:
                self._values[key] = min(before, value)
            else:
                self._values[key] = before + value

    def __iter__(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for (name, labels), value in self._values.items():
            yield name, dict(labels), value
