"""KIP-405's metrics: one row for every MBean of Kafka 4.3 (spec/kafka-remote.md §8.1), and what becomes of it here.

A row is either *exported*, under the name that Strimzi's jmx_exporter rules give it (§8.2, set (a)), or says why it
has no meaning in Tidegate. This table is the source of the registry, of docs/metrics.md and of a test.

Differences from a broker, on purpose:
- Per-topic series only. A broker also exports each of them without the `topic` label, and `sum()` counts twice.
- Beans outside the `kafka.server` domain get the natural name; Strimzi's stock rules do not match them at all.
- `metrics.kip405.names` chooses KIP-405's first names for the five meters that were renamed later (KIP-930).
"""

import enum
from dataclasses import dataclass

from metrics.family import Family, Kind

_BROKER_TOPIC = "kafka.server:type=BrokerTopicMetrics,name="
_MANAGER = "kafka.log.remote:type=RemoteLogManager,name="
_THREAD_POOL = "kafka.log.remote:type=RemoteStorageThreadPool,name="
_OLD_THREAD_POOL = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="
_PURGATORY = "kafka.server:type=DelayedOperationPurgatory,name="

_BROKER_TOPIC_PREFIX = "kafka_server_brokertopicmetrics_"
_MANAGER_PREFIX = "kafka_log_remote_remotelogmanager_"
_THREAD_POOL_PREFIX = "kafka_log_remote_remotestoragethreadpool_"
_PURGATORY_PREFIX = "kafka_server_delayedoperationpurgatory_"


class Kip405Names(enum.StrEnum):
    """Values of `metrics.kip405.names`: which names the five renamed meters go by."""

    CURRENT = "current"
    ORIGINAL = "original"
    BOTH = "both"


class Writer(enum.StrEnum):
    """Which part of Tidegate feeds a series; a family is registered only where its writer runs."""

    READER = "reader"
    COPIER = "copier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kip405Row:
    """One MBean. Exactly one of `family` and `no_meaning` is set."""

    mbean: str
    origin: str
    family: Family | None = None
    original_name: str | None = None
    writer: Writer = Writer.READER
    no_meaning: str | None = None

    @property
    def name(self) -> str:
        """The bean's own name: `RemoteFetchBytesPerSec`."""
        return self.mbean.partition("name=")[2].partition(",")[0]

    @property
    def type_and_name(self) -> str:
        """`DelayedRemoteFetchMetrics.ExpiresPerSec`, where the name alone is two beans'."""
        return self.mbean.partition("type=")[2].partition(",")[0] + "." + self.name


def _topic_row(
    kind: Kind,
    bean: str,
    name: str,
    help_text: str,
    origin: str,
    *,
    original: str | None = None,
    writer: Writer = Writer.READER,
) -> Kip405Row:
    return Kip405Row(
        mbean=f"{_BROKER_TOPIC}{bean}",
        origin=origin,
        family=Family(
            name=_BROKER_TOPIC_PREFIX + name,
            kind=kind,
            help=help_text,
            labels=("topic",),
        ),
        original_name=_BROKER_TOPIC_PREFIX + original if original else None,
        writer=writer,
    )


_NO_FOLLOWER = "A follower broker's bootstrap from the tier; Tidegate replicates no partition."
_NO_RETENTION = "The used share of a broker's own retention settings; Tidegate holds no log that they apply to."
_NO_QUOTA = "KIP-956 quotas are a broker's; Tidegate neither has nor inherits `remote.log.manager.*` rates."
_OLD_DOMAIN = "The same number under a domain that Kafka 4.2 deprecated; exported once, under `kafka.log.remote`."

_FETCH_ROWS = (
    _topic_row(
        Kind.COUNTER,
        "RemoteFetchBytesPerSec",
        "remotefetchbytes",
        "Record bytes returned by reads from the tier.",
        "KIP-405, KIP-930",
        original="remotebytesin",
    ),
    _topic_row(
        Kind.COUNTER,
        "RemoteFetchRequestsPerSec",
        "remotefetchrequests",
        "Reads from the tier, counted when they are submitted.",
        "KIP-405, KIP-930",
        original="remotereadrequests",
    ),
    _topic_row(
        Kind.COUNTER,
        "RemoteFetchErrorsPerSec",
        "remotefetcherrors",
        "Reads from the tier that failed; an offset out of range is not one.",
        "KIP-405, KIP-930",
        original="remotereaderror",
    ),
)

_COPY_ROWS = (
    _topic_row(
        Kind.COUNTER,
        "RemoteCopyBytesPerSec",
        "remotecopybytes",
        "Bytes of segments copied to the tier, without their indexes.",
        "KIP-405, KIP-930",
        original="remotebytesout",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.COUNTER,
        "RemoteCopyRequestsPerSec",
        "remotecopyrequests",
        "Attempts to copy a segment to the tier.",
        "KIP-930",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.COUNTER,
        "RemoteCopyErrorsPerSec",
        "remotecopyerrors",
        "Copies of a segment that failed.",
        "KIP-405, KIP-930",
        original="remotewriteerror",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.GAUGE,
        "RemoteCopyLagBytes",
        "remotecopylagbytes",
        "Bytes that are due to be copied and are not yet in the tier.",
        "KIP-963",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.GAUGE,
        "RemoteCopyLagSegments",
        "remotecopylagsegments",
        "Segments that are due to be copied and are not yet in the tier.",
        "KIP-963",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.COUNTER,
        "RemoteDeleteRequestsPerSec",
        "remotedeleterequests",
        "Attempts to delete a segment from the tier.",
        "KIP-963",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.COUNTER,
        "RemoteDeleteErrorsPerSec",
        "remotedeleteerrors",
        "Deletions from the tier that failed.",
        "KIP-963",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.GAUGE,
        "RemoteDeleteLagBytes",
        "remotedeletelagbytes",
        "Bytes in the tier that have expired and are not yet deleted.",
        "KIP-963",
        writer=Writer.COPIER,
    ),
    _topic_row(
        Kind.GAUGE,
        "RemoteDeleteLagSegments",
        "remotedeletelagsegments",
        "Segments in the tier that have expired and are not yet deleted.",
        "KIP-963",
        writer=Writer.COPIER,
    ),
)

_METADATA_ROWS = (
    _topic_row(
        Kind.GAUGE,
        "RemoteLogMetadataCount",
        "remotelogmetadatacount",
        "Segments in the metadata, in any state.",
        "KIP-963",
    ),
    _topic_row(
        Kind.GAUGE,
        "RemoteLogSizeBytes",
        "remotelogsizebytes",
        "Bytes of the segments in the metadata.",
        "KIP-963",
    ),
    _topic_row(
        Kind.GAUGE,
        "RemoteLogSizeComputationTime",
        "remotelogsizecomputationtime",
        "Duration of the last walk over a topic's segments for its size, in milliseconds.",
        "KIP-963",
        writer=Writer.COPIER,
    ),
    Kip405Row(
        mbean=f"{_BROKER_TOPIC}BuildRemoteLogAuxStateRequestsPerSec",
        origin="KIP-963",
        no_meaning=_NO_FOLLOWER,
    ),
    Kip405Row(
        mbean=f"{_BROKER_TOPIC}BuildRemoteLogAuxStateErrorsPerSec",
        origin="KIP-963",
        no_meaning=_NO_FOLLOWER,
    ),
)

_POOL_ROWS = (
    Kip405Row(
        mbean=f"{_MANAGER}RemoteLogManagerTasksAvgIdlePercent",
        origin="KIP-405",
        family=Family(
            name=_MANAGER_PREFIX + "remotelogmanagertasksavgidle_percent",
            kind=Kind.GAUGE,
            help="Idle share of the copier's slots over the last minute, 0 to 1.",
        ),
        writer=Writer.COPIER,
    ),
    Kip405Row(
        mbean=f"{_MANAGER}RemoteLogReaderFetchRateAndTimeMs",
        origin="KIP-1018",
        family=Family(
            name=_MANAGER_PREFIX + "remotelogreaderfetchrateandtimems",
            kind=Kind.TIMER,
            help="Duration of one read from the tier, in milliseconds.",
        ),
    ),
    Kip405Row(
        mbean=f"{_THREAD_POOL}RemoteLogReaderTaskQueueSize",
        origin="KIP-405; domain of Kafka 4.2",
        family=Family(
            name=_THREAD_POOL_PREFIX + "remotelogreadertaskqueuesize",
            kind=Kind.GAUGE,
            help="Reads from the tier that wait for a slot.",
        ),
    ),
    Kip405Row(
        mbean=f"{_THREAD_POOL}RemoteLogReaderAvgIdlePercent",
        origin="KIP-405; domain of Kafka 4.2",
        family=Family(
            name=_THREAD_POOL_PREFIX + "remotelogreaderavgidle_percent",
            kind=Kind.GAUGE,
            help="Idle share of the tier's read slots over the last minute, 0 to 1.",
        ),
    ),
    Kip405Row(
        mbean=f"{_OLD_THREAD_POOL}RemoteLogReaderTaskQueueSize",
        origin="KIP-405",
        no_meaning=_OLD_DOMAIN,
    ),
    Kip405Row(
        mbean=f"{_OLD_THREAD_POOL}RemoteLogReaderAvgIdlePercent",
        origin="KIP-405",
        no_meaning=_OLD_DOMAIN,
    ),
    Kip405Row(
        mbean=f"{_MANAGER}RetentionSizeInPercent",
        origin="KIP-1257",
        no_meaning=_NO_RETENTION,
    ),
    Kip405Row(
        mbean=f"{_MANAGER}LocalRetentionSizeInPercent",
        origin="KIP-1257",
        no_meaning=_NO_RETENTION,
    ),
)

_PURGATORY_SIZE = Family(
    name=_PURGATORY_PREFIX + "purgatorysize",
    kind=Kind.GAUGE,
    help="Requests that wait for the tier.",
    labels=("delayedOperation",),
)
_DELAYED_OPERATIONS = Family(
    name=_PURGATORY_PREFIX + "numdelayedoperations",
    kind=Kind.GAUGE,
    help="Requests that wait for the tier and have a deadline, which all have here.",
    labels=("delayedOperation",),
)

_WAITING_ROWS = (
    Kip405Row(
        mbean="kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec",
        origin="KIP-405",
        family=Family(
            name="kafka_server_delayedremotefetchmetrics_expires",
            kind=Kind.COUNTER,
            help="Reads from the tier that missed the deadline of their Fetch; the fill goes on.",
        ),
    ),
    Kip405Row(
        mbean="kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec",
        origin="KIP-1075",
        family=Family(
            name="kafka_server_delayedremotelistoffsetsmetrics_expires",
            kind=Kind.COUNTER,
            help="Look-ups by time in the tier that missed the deadline of their ListOffsets.",
            labels=("topic", "partition"),
        ),
    ),
    Kip405Row(
        mbean=f"{_PURGATORY}PurgatorySize,delayedOperation=RemoteFetch", origin="KIP-405", family=_PURGATORY_SIZE
    ),
    Kip405Row(
        mbean=f"{_PURGATORY}NumDelayedOperations,delayedOperation=RemoteFetch",
        origin="KIP-405",
        family=_DELAYED_OPERATIONS,
    ),
    Kip405Row(
        mbean=f"{_PURGATORY}PurgatorySize,delayedOperation=RemoteListOffsets",
        origin="KIP-1075",
        family=_PURGATORY_SIZE,
    ),
    Kip405Row(
        mbean=f"{_PURGATORY}NumDelayedOperations,delayedOperation=RemoteListOffsets",
        origin="KIP-1075",
        family=_DELAYED_OPERATIONS,
    ),
)

_QUOTA_ROWS = tuple(
    Kip405Row(mbean=f"kafka.server:type={bean}", origin="KIP-956", no_meaning=_NO_QUOTA)
    for bean in (
        "RLMCopy,name=byte-rate",
        "RLMFetch,name=byte-rate",
        "RemoteLogManager,name=remote-fetch-throttle-time-avg",
        "RemoteLogManager,name=remote-fetch-throttle-time-max",
        "RemoteLogManager,name=remote-copy-throttle-time-avg",
        "RemoteLogManager,name=remote-copy-throttle-time-max",
    )
)

ROWS: tuple[Kip405Row, ...] = (
    *_FETCH_ROWS,
    *_COPY_ROWS,
    *_METADATA_ROWS,
    *_POOL_ROWS,
    *_WAITING_ROWS,
    *_QUOTA_ROWS,
)
"""Every remote MBean of Kafka 4.3, in the order of spec/kafka-remote.md §8.1.

Attributes of Kafka's own metrics (KIP-956) are written `name=` here for want of a bean name.
"""
