"""The copier's meter (standalone mode), made where a copier runs; see `metrics.meters` for the rules that it keeps.

Lags and ages come by partition and are exposed by topic: bytes and segments summed up, ages by the partition that is
furthest behind. What was told of a partition is forgotten when it is released.
"""

import enum
from collections.abc import Callable, Iterable

from metrics.idle_share import IdleAverage
from metrics.registry import Children, Registry
from metrics.series import Labelled, Number


class Stall(enum.StrEnum):
    """Why records that are there are not copied."""

    OPEN_TRANSACTION = "open_transaction"
    UPSTREAM = "upstream"
    RESUME = "resume"
    STORE = "store"
    STAGING = "staging"
    POISON = "poison"
    DISABLED = "disabled"
    ANOTHER_COPIER = "another_copier"
    TOPIC_GONE = "topic_gone"


Partition = tuple[str, int]
"""A topic and the number of a partition."""


class CopyMeter:
    """What is copied into the tier, what is deleted from it, and what has yet to be."""

    def __init__(self, registry: Registry) -> None:
        self._bytes = _by_topic(registry, "RemoteCopyBytesPerSec")
        self._copies = _by_topic(registry, "RemoteCopyRequestsPerSec")
        self._copy_errors = _by_topic(registry, "RemoteCopyErrorsPerSec")
        self._deletions = _by_topic(registry, "RemoteDeleteRequestsPerSec")
        self._delete_errors = _by_topic(registry, "RemoteDeleteErrorsPerSec")
        self._copy_lag_bytes = _TopicGauge(registry, _kip405(registry, "RemoteCopyLagBytes"), sum)
        self._copy_lag_segments = _TopicGauge(registry, _kip405(registry, "RemoteCopyLagSegments"), sum)
        self._delete_lag_bytes = _TopicGauge(registry, _kip405(registry, "RemoteDeleteLagBytes"), sum)
        self._delete_lag_segments = _TopicGauge(registry, _kip405(registry, "RemoteDeleteLagSegments"), sum)
        self._size_time = Children[str](_kip405(registry, "RemoteLogSizeComputationTime"), registry.topics)
        self._idle = IdleAverage()
        idle = registry.kip405_gauge("RemoteLogManager.RemoteLogManagerTasksAvgIdlePercent")
        idle.labels().ask = self._idle.idle_share
        self._gaps = registry.counter(
            "tidegate_copy_gaps", "Stretches of offsets that upstream had deleted before they were copied."
        )
        self._gap_records = registry.counter("tidegate_copy_gap_records", "Offsets in these stretches.")
        self._superseded = registry.counter(
            "tidegate_copy_superseded", "Partitions that were given up because another copier had claimed them."
        )
        self._unowned = registry.gauge(
            "tidegate_copy_unowned_partitions", "Partitions of copied topics that no copier has."
        )
        self._declare_deletions(registry)
        self._stalls: dict[Partition, Stall] = {}
        registry.gauge(
            "tidegate_copy_poisoned_partitions", "Partitions that are not copied any more because of a batch."
        ).ask = lambda: [*self._stalls.values()].count(Stall.POISON)
        self._stalled = registry.gauge_by(
            "tidegate_copy_stalled_partitions",
            "Partitions that are not copied because of something that does not pass by itself.",
            "reason",
            Stall,
        )
        self._age = _TopicGauge(
            registry,
            registry.gauges(
                "tidegate_copy_age_seconds",
                "Age of the oldest record that is due for the tier and not in it; 0: none.",
                "topic",
            ),
            max,
        )
        share = registry.gauges(
            "tidegate_copy_upstream_retention_share",
            "What is due for the tier and not in it, as a share of what upstream keeps; from 1 on upstream deletes "
            "what is not copied.",
            "topic",
        )
        self._retention_share = _TopicGauge(registry, share, max)

    def _declare_deletions(self, registry: Registry) -> None:
        waiting = _own(registry, "tidegate_delete_waiting_segments", "Segments that are to go and wait.")
        self._waiting_segments = _TopicGauge(registry, waiting, sum)
        waiting = _own(registry, "tidegate_delete_waiting_bytes", "Bytes of these segments.")
        self._waiting_bytes = _TopicGauge(registry, waiting, sum)
        alarming = _own(
            registry, "tidegate_delete_alarming_partitions", "Partitions whose deletion an operator should look at."
        )
        self._alarming = _TopicGauge(registry, alarming, sum)
        self._clock_offset = registry.gauge(
            "tidegate_copy_clock_offset_seconds",
            "How far the store's clock, or the brokers', is ahead; beyond an hour nothing is deleted.",
        )
        dead = _own(registry, "tidegate_dead_segments", "Segments that hold only records that upstream has lost.")
        self._dead_segments = _TopicGauge(registry, dead, sum)
        self._dead_bytes = _TopicGauge(registry, _own(registry, "tidegate_dead_bytes", "Bytes of these segments."), sum)

    def on_copy_started(self, topic: str) -> None:
        """A segment is to be uploaded."""
        if topic not in self._copies:
            self._copy_errors[topic].value += 0  # there before the first error, or a rate would miss that one
        self._copies[topic].value += 1

    def on_copied(self, topic: str, log_bytes: int) -> None:
        """A segment is finished: that many bytes of log are in the tier."""
        self._bytes[topic].value += log_bytes

    def on_copy_error(self, topic: str) -> None:
        """An upload failed."""
        self._copy_errors[topic].value += 1

    def on_delete_started(self, topic: str) -> None:
        """A segment's objects are to be deleted."""
        if topic not in self._deletions:
            self._delete_errors[topic].value += 0
        self._deletions[topic].value += 1

    def on_delete_error(self, topic: str) -> None:
        """They could not be deleted."""
        self._delete_errors[topic].value += 1

    def on_copy_lag(self, partition: Partition, lag_bytes: int, lag_segments: int) -> None:
        """Note how much of a partition is due to be copied."""
        self._copy_lag_bytes.set(partition, lag_bytes)
        self._copy_lag_segments.set(partition, lag_segments)

    def on_delete_lag(self, partition: Partition, lag_bytes: int, lag_segments: int) -> None:
        """Note how much of a partition has expired and is still there."""
        self._delete_lag_bytes.set(partition, lag_bytes)
        self._delete_lag_segments.set(partition, lag_segments)

    def on_delete_waiting(self, partition: Partition, segments: int, size_bytes: int, is_alarming: bool) -> None:
        """Note how much of a partition is to go and waits."""
        self._waiting_segments.set(partition, segments)
        self._waiting_bytes.set(partition, size_bytes)
        self._alarming.set(partition, is_alarming)

    def on_clock(self, offset_s: float) -> None:
        """The store's clock is so far ahead of ours."""
        self._clock_offset.value = offset_s

    def on_dead(self, partition: Partition, segments: int, size_bytes: int) -> None:
        """Note how much of a partition holds only records that upstream has lost."""
        self._dead_segments.set(partition, segments)
        self._dead_bytes.set(partition, size_bytes)

    def on_stall(self, partition: Partition, stall: Stall | None) -> None:
        """Why a partition's records are not copied; None: they are."""
        before = self._stalls.pop(partition, None)
        if stall is not None:
            self._stalls[partition] = stall
        for changed in {before, stall}:
            if changed is not None:
                self._stalled[changed].value = [*self._stalls.values()].count(changed)

    def on_age(self, partition: Partition, age_s: float, retention_share: float) -> None:
        """The oldest record of a partition that is not in the tier yet is so old; 0: there is none.

        Args:
            retention_share: of what upstream keeps this record is behind so much.
        """
        self._age.set(partition, age_s)
        self._retention_share.set(partition, retention_share)

    def on_size_walk(self, topic: str, duration_s: float) -> None:
        """A partition's segments were added up."""
        self._size_time[topic].value = duration_s * 1000

    def on_slots(self, busy: int, total: int) -> None:
        """Note how many of the slots for copying and deleting are taken now."""
        self._idle.on_slots(busy, total)

    def on_gap(self, records: int) -> None:
        """Upstream has deleted that many offsets before they were copied."""
        self._gaps.value += 1
        self._gap_records.value += records

    def on_superseded(self) -> None:
        """Another copier has a partition that this one took for its own."""
        self._superseded.value += 1

    def on_unowned(self, partitions: int) -> None:
        """Note how many partitions that are to be copied have no owner in the whole group."""
        self._unowned.value = partitions

    def on_released(self, partition: Partition) -> None:
        """Forget the partition: another copier has it now, or its copy restarts."""
        self.on_stall(partition, None)
        for gauge in (
            self._waiting_segments,
            self._waiting_bytes,
            self._alarming,
            self._dead_segments,
            self._dead_bytes,
            self._copy_lag_bytes,
            self._copy_lag_segments,
            self._delete_lag_bytes,
            self._delete_lag_segments,
            self._age,
            self._retention_share,
        ):
            gauge.forget(partition)


class _TopicGauge:
    """A gauge per topic, of what its partitions have."""

    def __init__(
        self, registry: Registry, gauge: Labelled[Number], combine: Callable[[Iterable[float]], float]
    ) -> None:
        self._gauges = Children[str](gauge, registry.topics)
        self._combine = combine
        self._values: dict[str, dict[int, float]] = {}

    def set(self, partition: Partition, value: float) -> None:
        topic, number = partition
        values = self._values.setdefault(topic, {})
        values[number] = value
        self._gauges[topic].value = self._combine(values.values())

    def forget(self, partition: Partition) -> None:
        topic, number = partition
        values = self._values.get(topic)
        if values is None or values.pop(number, None) is None:
            return
        self._gauges[topic].value = self._combine(values.values()) if values else 0
        if not values:
            del self._values[topic]


def _by_topic(registry: Registry, name: str) -> Children[str]:
    return Children[str](registry.kip405_counter(f"BrokerTopicMetrics.{name}"), registry.topics)


def _kip405(registry: Registry, name: str) -> Labelled[Number]:
    return registry.kip405_gauge(f"BrokerTopicMetrics.{name}")


class MetadataTopicMeter:
    """The metadata topic's, of a tier of our own: in every process that reads it."""

    def __init__(self, registry: Registry) -> None:
        self._is_unsafe = registry.gauge(
            "tidegate_metadata_topic_unsafe",
            "1 while the metadata topic is not as it must be, so that nothing is deleted.",
        )

    def on_look(self, is_unsafe: bool) -> None:
        """It was looked at."""
        self._is_unsafe.value = int(is_unsafe)


def _own(registry: Registry, name: str, help_text: str) -> Labelled[Number]:
    return registry.gauges(name, help_text, "topic")
