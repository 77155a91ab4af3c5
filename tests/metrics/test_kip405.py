"""The table of MBeans against a list of its own: each that Kafka 4.3 has for remote storage, and its exposed name."""

import re

from metrics.kip405 import ABSENT, EXPORTED, Kind, Writer
from metrics.meters import Meters

TOPIC = "kafka.server:type=BrokerTopicMetrics,name="
MANAGER = "kafka.log.remote:type=RemoteLogManager,name="
POOL = "kafka.log.remote:type=RemoteStorageThreadPool,name="
OLD_POOL = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="
PURGATORY = "kafka.server:type=DelayedOperationPurgatory,name="

OF_TOPIC = "kafka_server_brokertopicmetrics_"
OF_MANAGER = "kafka_log_remote_remotelogmanager_"
OF_POOL = "kafka_log_remote_remotestoragethreadpool_"
OF_PURGATORY = "kafka_server_delayedoperationpurgatory_"

EXPOSED = {
    f"{TOPIC}RemoteFetchBytesPerSec": f"{OF_TOPIC}remotefetchbytes_total",
    f"{TOPIC}RemoteFetchRequestsPerSec": f"{OF_TOPIC}remotefetchrequests_total",
    f"{TOPIC}RemoteFetchErrorsPerSec": f"{OF_TOPIC}remotefetcherrors_total",
    f"{TOPIC}RemoteCopyBytesPerSec": f"{OF_TOPIC}remotecopybytes_total",
    f"{TOPIC}RemoteCopyRequestsPerSec": f"{OF_TOPIC}remotecopyrequests_total",
    f"{TOPIC}RemoteCopyErrorsPerSec": f"{OF_TOPIC}remotecopyerrors_total",
    f"{TOPIC}RemoteCopyLagBytes": f"{OF_TOPIC}remotecopylagbytes",
    f"{TOPIC}RemoteCopyLagSegments": f"{OF_TOPIC}remotecopylagsegments",
    f"{TOPIC}RemoteDeleteRequestsPerSec": f"{OF_TOPIC}remotedeleterequests_total",
    f"{TOPIC}RemoteDeleteErrorsPerSec": f"{OF_TOPIC}remotedeleteerrors_total",
    f"{TOPIC}RemoteDeleteLagBytes": f"{OF_TOPIC}remotedeletelagbytes",
    f"{TOPIC}RemoteDeleteLagSegments": f"{OF_TOPIC}remotedeletelagsegments",
    f"{TOPIC}RemoteLogMetadataCount": f"{OF_TOPIC}remotelogmetadatacount",
    f"{TOPIC}RemoteLogSizeBytes": f"{OF_TOPIC}remotelogsizebytes",
    f"{TOPIC}RemoteLogSizeComputationTime": f"{OF_TOPIC}remotelogsizecomputationtime",
    f"{MANAGER}RemoteLogManagerTasksAvgIdlePercent": f"{OF_MANAGER}remotelogmanagertasksavgidle_percent",
    f"{MANAGER}RemoteLogReaderFetchRateAndTimeMs": f"{OF_MANAGER}remotelogreaderfetchrateandtimems_count",
    f"{POOL}RemoteLogReaderTaskQueueSize": f"{OF_POOL}remotelogreadertaskqueuesize",
    f"{POOL}RemoteLogReaderAvgIdlePercent": f"{OF_POOL}remotelogreaderavgidle_percent",
    "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec": (
        "kafka_server_delayedremotefetchmetrics_expires_total"
    ),
    "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec": (
        "kafka_server_delayedremotelistoffsetsmetrics_expires_total"
    ),
    f"{PURGATORY}PurgatorySize,delayedOperation=RemoteFetch": f"{OF_PURGATORY}purgatorysize",
    f"{PURGATORY}NumDelayedOperations,delayedOperation=RemoteFetch": f"{OF_PURGATORY}numdelayedoperations",
    f"{PURGATORY}PurgatorySize,delayedOperation=RemoteListOffsets": f"{OF_PURGATORY}purgatorysize",
    f"{PURGATORY}NumDelayedOperations,delayedOperation=RemoteListOffsets": f"{OF_PURGATORY}numdelayedoperations",
}
NOT_EXPOSED = {
    f"{TOPIC}BuildRemoteLogAuxStateRequestsPerSec",
    f"{TOPIC}BuildRemoteLogAuxStateErrorsPerSec",
    f"{OLD_POOL}RemoteLogReaderTaskQueueSize",
    f"{OLD_POOL}RemoteLogReaderAvgIdlePercent",
    f"{MANAGER}RetentionSizeInPercent",
    f"{MANAGER}LocalRetentionSizeInPercent",
    "kafka.server:type=RLMCopy,name=byte-rate",
    "kafka.server:type=RLMFetch,name=byte-rate",
    "kafka.server:type=RemoteLogManager,name=remote-fetch-throttle-time-avg",
    "kafka.server:type=RemoteLogManager,name=remote-fetch-throttle-time-max",
    "kafka.server:type=RemoteLogManager,name=remote-copy-throttle-time-avg",
    "kafka.server:type=RemoteLogManager,name=remote-copy-throttle-time-max",
}


def test_every_mbean_is_exported_once_under_its_name_or_has_a_reason_why_not() -> None:
    assert {row.mbean: row.family.exposed_name for row in EXPORTED} == EXPOSED
    assert {bean.mbean for bean in ABSENT} == NOT_EXPOSED
    assert (len(EXPORTED), len(ABSENT)) == (len(EXPOSED), len(NOT_EXPOSED))
    assert all(len(bean.why) > 20 for bean in ABSENT)


def test_meters_are_counters_and_topic_beans_have_the_topic_label() -> None:
    for row in EXPORTED:
        assert (row.family.kind is Kind.COUNTER) is row.bean.endswith("PerSec"), row.bean
        assert (row.family.labels == ("topic",)) is ("BrokerTopicMetrics" in row.mbean), row.bean


def test_first_names_are_those_of_kip_405() -> None:
    assert {row.bean: row.original_name for row in EXPORTED if row.original_name} == {
        "BrokerTopicMetrics.RemoteFetchRequestsPerSec": f"{OF_TOPIC}remotereadrequests",
        "BrokerTopicMetrics.RemoteFetchBytesPerSec": f"{OF_TOPIC}remotebytesin",
        "BrokerTopicMetrics.RemoteFetchErrorsPerSec": f"{OF_TOPIC}remotereaderror",
        "BrokerTopicMetrics.RemoteCopyBytesPerSec": f"{OF_TOPIC}remotebytesout",
        "BrokerTopicMetrics.RemoteCopyErrorsPerSec": f"{OF_TOPIC}remotewriteerror",
    }


def test_only_what_copies_or_deletes_waits_for_the_copier() -> None:
    for row in EXPORTED:
        by_copier = re.search(r"Copy|Delete|ManagerTasks|ComputationTime", row.bean) is not None
        assert (row.writer is Writer.COPIER) is by_copier, row.bean


def test_a_reader_registers_its_own_rows_and_no_other() -> None:
    registered = {family for family in Meters().registry.families if not family.name.startswith("tidegate_")}
    assert registered == {row.family for row in EXPORTED if row.writer is Writer.READER}
