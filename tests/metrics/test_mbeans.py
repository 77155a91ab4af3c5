"""Every MBean of Kafka's remote storage is exported or has a reason not to be: the table against a list of its own.

The list is kept here, by the rows of spec/kafka-remote.md section 8.1, so that a row that is lost from the table is
noticed without the specification. Where that lies beside the checkout, the list is held to it.
"""

import re

import pytest

from metrics.kip405 import ROWS, Kip405Names, Writer
from metrics.probes import Probes
from metrics.reference import reference
from metrics.registry import Registry
from tests.support.needs import SPECIFICATION

TOPIC = "kafka.server:type=BrokerTopicMetrics,name="
MANAGER = "kafka.log.remote:type=RemoteLogManager,name="
POOL = "kafka.log.remote:type=RemoteStorageThreadPool,name="
OLD_POOL = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="
PURGATORY = "kafka.server:type=DelayedOperationPurgatory,name="
QUOTA = "kafka.server:type="

MBEANS: dict[str, tuple[str, ...]] = {
    "kafka.server:type=BrokerTopicMetrics,name=RemoteFetchBytesPerSec L": (f"{TOPIC}RemoteFetchBytesPerSec",),
    "...RemoteFetchRequestsPerSec L": (f"{TOPIC}RemoteFetchRequestsPerSec",),
    "...RemoteFetchErrorsPerSec L": (f"{TOPIC}RemoteFetchErrorsPerSec",),
    "...RemoteCopyBytesPerSec L": (f"{TOPIC}RemoteCopyBytesPerSec",),
    "...RemoteCopyRequestsPerSec L": (f"{TOPIC}RemoteCopyRequestsPerSec",),
    "...RemoteCopyErrorsPerSec L": (f"{TOPIC}RemoteCopyErrorsPerSec",),
    "...RemoteCopyLagBytes / RemoteCopyLagSegments L": (
        f"{TOPIC}RemoteCopyLagBytes",
        f"{TOPIC}RemoteCopyLagSegments",
    ),
    "...RemoteDeleteRequestsPerSec / RemoteDeleteErrorsPerSec L": (
        f"{TOPIC}RemoteDeleteRequestsPerSec",
        f"{TOPIC}RemoteDeleteErrorsPerSec",
    ),
    "...RemoteDeleteLagBytes / RemoteDeleteLagSegments L": (
        f"{TOPIC}RemoteDeleteLagBytes",
        f"{TOPIC}RemoteDeleteLagSegments",
    ),
    "...RemoteLogMetadataCount L": (f"{TOPIC}RemoteLogMetadataCount",),
    "...RemoteLogSizeBytes L": (f"{TOPIC}RemoteLogSizeBytes",),
    "...RemoteLogSizeComputationTime L": (f"{TOPIC}RemoteLogSizeComputationTime",),
    "...BuildRemoteLogAuxStateRequestsPerSec / ...ErrorsPerSec L": (
        f"{TOPIC}BuildRemoteLogAuxStateRequestsPerSec",
        f"{TOPIC}BuildRemoteLogAuxStateErrorsPerSec",
    ),
    "kafka.log.remote:type=RemoteLogManager,name=RemoteLogManagerTasksAvgIdlePercent L": (
        f"{MANAGER}RemoteLogManagerTasksAvgIdlePercent",
    ),
    "kafka.log.remote:type=RemoteLogManager,name=RemoteLogReaderFetchRateAndTimeMs L": (
        f"{MANAGER}RemoteLogReaderFetchRateAndTimeMs",
    ),
    "kafka.log.remote:type=RemoteStorageThreadPool,name=RemoteLogReaderTaskQueueSize / "
    "RemoteLogReaderAvgIdlePercent L": (
        f"{POOL}RemoteLogReaderTaskQueueSize",
        f"{POOL}RemoteLogReaderAvgIdlePercent",
    ),
    "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name=(same two) L": (
        f"{OLD_POOL}RemoteLogReaderTaskQueueSize",
        f"{OLD_POOL}RemoteLogReaderAvgIdlePercent",
    ),
    "kafka.log.remote:type=RemoteLogManager,name=RetentionSizeInPercent / LocalRetentionSizeInPercent L": (
        f"{MANAGER}RetentionSizeInPercent",
        f"{MANAGER}LocalRetentionSizeInPercent",
    ),
    "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec L": (
        "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec",
    ),
    "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec L": (
        "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec",
    ),
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize / NumDelayedOperations,"
    "delayedOperation=RemoteFetch / RemoteListOffsets L": tuple(
        f"{PURGATORY}{name},delayedOperation={operation}"
        for name in ("PurgatorySize", "NumDelayedOperations")
        for operation in ("RemoteFetch", "RemoteListOffsets")
    ),
    "kafka.server:type=RLMCopy / RLMFetch, attribute byte-rate L": (
        f"{QUOTA}RLMCopy,name=byte-rate",
        f"{QUOTA}RLMFetch,name=byte-rate",
    ),
    "kafka.server:type=RemoteLogManager, attributes remote-fetch-throttle-time-avg/-max, "
    "remote-copy-throttle-time-avg/-max": tuple(
        f"{QUOTA}RemoteLogManager,name=remote-{what}-throttle-time-{statistic}"
        for what in ("fetch", "copy")
        for statistic in ("avg", "max")
    ),
}
"""A row of the specification to the beans that it stands for."""

SEEN_BY_READER = {row.family.name for row in ROWS if row.family is not None and row.writer is Writer.READER}


def specified_rows() -> list[str]:
    """The first cells of the table in section 8.1."""
    text = SPECIFICATION.read_text(encoding="utf-8")
    section = text.partition("### 8.1 ")[2].partition("### 8.2 ")[0]
    return re.findall(r"^\| (?!MBean)([^|]*[^-| ][^|]*?) \|", section, re.MULTILINE)


def test_the_table_has_every_mbean_and_no_other() -> None:
    assert {row.mbean for row in ROWS} == {mbean for mbeans in MBEANS.values() for mbean in mbeans}


@pytest.mark.needs("specification")
def test_the_list_is_the_specifications() -> None:
    assert sorted(specified_rows()) == sorted(MBEANS)


def test_the_document_has_every_mbean_once_as_exported_or_with_the_reason_why_not() -> None:
    exported, _, absent = reference().partition("## MBeans without a meaning here")
    for mbean in (mbean for mbeans in MBEANS.values() for mbean in mbeans):
        cell = f"| `{mbean}` |"
        assert (exported.count(cell), absent.count(cell)) in ((1, 0), (0, 1)), mbean
    for line in absent.partition("## Tidegate's own")[0].splitlines()[4:]:
        assert not line or len(line.split("|")[2].strip()) > 20, f"no reason: {line}"


@pytest.mark.parametrize("names", Kip405Names)
def test_every_exported_row_of_a_reader_is_in_the_registry_under_the_names_that_are_configured(
    names: Kip405Names,
) -> None:
    registered = {metric.name for metric in Probes(Registry(names)).registry.collect()}
    renamed = {row.family.name for row in ROWS if row.family is not None and row.original_name} & SEEN_BY_READER
    first_names = {row.original_name for row in ROWS if row.writer is Writer.READER} - {None}
    assert (renamed <= registered) is (names is not Kip405Names.ORIGINAL)
    assert (first_names <= registered) is (names is not Kip405Names.CURRENT)
    assert not registered & (renamed if names is Kip405Names.ORIGINAL else set())
    assert not registered & (first_names if names is Kip405Names.CURRENT else set())
    assert registered >= SEEN_BY_READER - renamed
