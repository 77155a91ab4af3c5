"""KIP-405's metrics: the MBeans that Kafka 4.3 has for remote storage and that Tidegate feeds.

The registry, docs/metrics.md and tests are made of this table. Not in it: a follower's bootstrap from the tier
(BuildRemoteLogAuxState), shares of a broker's own retention (KIP-1257), its quotas (KIP-956), and the domain of the
reader's pool that Kafka 4.2 deprecated.

An exposed name follows from the bean by the jmx_exporter rules that Strimzi ships for brokers: domain, type and name in
lower case, `PerSec` cut off, `Percent` set apart. What ends with `PerSec` is a counter.

Differences from a broker, on purpose:
- Per-topic series only. A broker also exports each of them without the `topic` label, and `sum()` counts twice.
- Beans outside the `kafka.server` domain get the natural name; Strimzi's stock rules do not match them at all.
- `metrics.kip405.names` chooses KIP-405's first names for the five meters that were renamed later (KIP-930).
"""

import enum
from dataclasses import dataclass

# What a metric is: the one declaration that the registry, docs/metrics.md and the dashboard's coverage are made of.


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


_TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
_MANAGER = "kafka.log.remote:type=RemoteLogManager,name="
_POOL = "kafka.log.remote:type=RemoteStorageThreadPool,name="
_PURGATORY = "kafka.server:type=DelayedOperationPurgatory,name="


class Kip405Names(enum.StrEnum):
    """Values of `metrics.kip405.names`: which names the five renamed meters go by."""

    CURRENT = "current"
    ORIGINAL = "original"
    BOTH = "both"


class Writer(enum.StrEnum):
    """Which part of Tidegate feeds a series; a family is registered only where its writer runs."""

    READER = "reader"
    COPIER = "copier"


@dataclass(frozen=True, slots=True)
class Kip405Row:
    """One MBean that is exported; `original_name` is the family's name before KIP-930."""

    mbean: str
    family: Family
    original_name: str | None
    writer: Writer

    @property
    def bean(self) -> str:
        """Its type and its name: `BrokerTopicMetrics.RemoteFetchBytesPerSec`."""
        return ".".join(_type_and_name(self.mbean))


def _type_and_name(mbean: str) -> tuple[str, str]:
    properties = dict(each.split("=") for each in mbean.partition(":")[2].split(","))
    return properties["type"], properties["name"]


def _exposed(mbean: str) -> str:
    bean_type, name = _type_and_name(mbean)
    name = name.removesuffix("PerSec").replace("Percent", "_percent")
    return f"{mbean.partition(':')[0].replace('.', '_')}_{bean_type}_{name}".lower()


def _row(
    mbean: str, help_text: str, *labels: str, original: str | None = None, writer: Writer = Writer.READER
) -> Kip405Row:
    kind = Kind.COUNTER if mbean.endswith("PerSec") else Kind.TIMER if mbean.endswith("TimeMs") else Kind.GAUGE
    family = Family(_exposed(mbean), kind, help_text, labels)
    return Kip405Row(mbean, family, _exposed(_TOPICS + original) if original else None, writer)


def _topic(name: str, help_text: str, original: str | None = None) -> Kip405Row:
    return _row(_TOPICS + name, help_text, "topic", original=original)


def _copied(name: str, help_text: str, original: str | None = None) -> Kip405Row:
    return _row(_TOPICS + name, help_text, "topic", original=original, writer=Writer.COPIER)


def _waiting(operation: str) -> tuple[Kip405Row, Kip405Row]:
    having, label = f",delayedOperation={operation}", "delayedOperation"
    with_deadline = "Requests that wait for the tier; all have a deadline."
    return (
        _row(f"{_PURGATORY}PurgatorySize{having}", "Requests that wait for the tier.", label),
        _row(f"{_PURGATORY}NumDelayedOperations{having}", with_deadline, label),
    )


EXPORTED: tuple[Kip405Row, ...] = (
    _topic("RemoteFetchBytesPerSec", "Record bytes returned by reads from the tier.", "RemoteBytesInPerSec"),
    _topic(
        "RemoteFetchRequestsPerSec", "Reads from the tier, counted when they are submitted.", "RemoteReadRequestsPerSec"
    ),
    _topic("RemoteFetchErrorsPerSec", "Reads from the tier that failed.", "RemoteReadErrorPerSec"),
    _copied("RemoteCopyBytesPerSec", "Bytes copied to the tier, without indexes.", "RemoteBytesOutPerSec"),
    _copied("RemoteCopyRequestsPerSec", "Attempts to copy a segment to the tier."),
    _copied("RemoteCopyErrorsPerSec", "Copies of a segment that failed.", "RemoteWriteErrorPerSec"),
    _copied("RemoteCopyLagBytes", "Bytes due for the tier and not in it."),
    _copied("RemoteCopyLagSegments", "Segments due for the tier and not in it."),
    _copied("RemoteDeleteRequestsPerSec", "Attempts to delete a segment from the tier."),
    _copied("RemoteDeleteErrorsPerSec", "Deletions from the tier that failed."),
    _copied("RemoteDeleteLagBytes", "Expired bytes in the tier."),
    _copied("RemoteDeleteLagSegments", "Expired segments in the tier."),
    _topic("RemoteLogMetadataCount", "Segments in the metadata, in any state."),
    _topic("RemoteLogSizeBytes", "Bytes of the segments in the metadata."),
    _copied("RemoteLogSizeComputationTime", "Duration of the last computation of a topic's size, in milliseconds."),
    _row(
        f"{_MANAGER}RemoteLogManagerTasksAvgIdlePercent",
        "Idle share of the copier's slots over the last minute, 0 to 1.",
        writer=Writer.COPIER,
    ),
    _row(f"{_MANAGER}RemoteLogReaderFetchRateAndTimeMs", "Duration of one read from the tier, in milliseconds."),
    _row(f"{_POOL}RemoteLogReaderTaskQueueSize", "Reads from the tier that wait for a slot."),
    _row(f"{_POOL}RemoteLogReaderAvgIdlePercent", "Idle share of the tier's read slots over the last minute, 0 to 1."),
    _row(
        "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec",
        "Reads from the tier that missed the deadline of their Fetch.",
    ),
    _row(
        "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec",
        "Look-ups by time in the tier that missed their deadline.",
        "topic",
        "partition",
    ),
    *_waiting("RemoteFetch"),
    *_waiting("RemoteListOffsets"),
)
