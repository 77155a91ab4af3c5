"""`tidegate check FILE`: ask everything that `serve` will need, and say what is wrong.

In this order: the effective keys; the upstream brokers, each of them; the metadata topic (reached, ids, retention,
readable); the topics that the tier holds (may we describe them?); the tier (first bytes of one segment).

ACLs that Tidegate's own identity needs, found out against a broker with StandardAuthorizer: Read (which implies
Describe) on Topic __remote_log_metadata, Describe on each topic to be served. Nothing on Cluster. DescribeConfigs on
__remote_log_metadata is for this command only, to see the retention: without it that check is a warning.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import trio

from protocol.client.errors import UpstreamError
from protocol.client.leaders import TopicMetadata
from protocol.client.messages import DESCRIBE_CONFIGS, LIST_OFFSETS, Question
from proxy.commands.report import Report
from proxy.config.model import Config
from proxy.process import exit_codes
from proxy.process.logs import configure_logs
from proxy.upstream.cluster import Cluster, FrontierClient
from proxy.upstream.metadata_topic import METADATA_TOPIC, KafkaMetadataTopicClient
from storage.config.client_settings import client_settings
from storage.errors import MetadataOffsetOutOfRange, RemoteStorageError
from storage.metadata import serde
from storage.metadata.event_log import MetadataEvent
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from storage.registry import MetadataManagerKind, metadata_manager_kind, open_remote_storage_manager

ROLE = "check"

SCAN_TIME_LIMIT_S = 30.0
"""For reading the metadata topic; what was seen until then is used."""
SCAN_SEGMENTS_MAX = 10_000
"""Segments held while reading; the oldest are let go, one that is alive is enough."""
SCAN_TOPICS_MAX = 10_000

FIRST_BYTES = 61
"""A record batch's header: enough to see that the object is a log segment."""

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_TOPIC_RESOURCE = 2
_TOPIC_AUTHORIZATION_FAILED = 29
_UNKNOWN_TOPIC_OR_PARTITION = 3
_LOCAL_LOG_STARTS_VERSION = 8


def run(config: Config, out: TextIO) -> int:
    """Check a configuration that has been loaded, printing to `out`.

    Returns:
        exit_codes.DONE or exit_codes.FOUND_WRONG.
    """
    configure_logs("error")  # the report says what is wrong; a log line between would say it twice
    report = Report(out)
    report.section("Configuration")
    report.keys(config.effective)
    for warning in config.warnings:
        report.warning(warning)
    try:
        trio.run(_check, config, report)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None  # the command line knows what to do with that one
        raise
    report.verdict()
    return exit_codes.FOUND_WRONG if report.wrong_count else exit_codes.DONE


async def _check(config: Config, report: Report) -> None:
    async with trio.open_nursery() as nursery:
        upstream = Cluster(client_settings(config.upstream), nursery)
        metadata = _metadata_cluster(config, upstream, nursery)
        report.section("Upstream brokers")
        reached = await _check_brokers(upstream, report)
        scan = _Scan()
        if metadata_manager_kind(config.remote_log_metadata_manager_class_name) is MetadataManagerKind.TOPIC_BASED:
            report.section("Metadata topic")
            await _check_metadata_topic(metadata, scan, report)
        if reached:
            report.section("Topics in the tier")
            await _check_topics(upstream, scan, report)
        report.section("Tier")
        await trio.to_thread.run_sync(_check_tier, config, scan, report)
        nursery.cancel_scope.cancel()


def _metadata_cluster(config: Config, upstream: Cluster, nursery: trio.Nursery) -> Cluster:
    """The same cluster unless the broker's file names other servers or another identity for the metadata client."""
    same = config.metadata_client == config.upstream
    return upstream if same else Cluster(client_settings(config.metadata_client), nursery)


async def _check_brokers(cluster: Cluster, report: Report) -> bool:
    """Whether at least one broker answers."""
    try:
        await cluster.refresh()
    except UpstreamError as error:
        report.wrong(str(error))
        return False
    report.ok(f"cluster {cluster.cluster_id}, brokers: {len(cluster.brokers)}")
    reached = False
    for node in cluster.brokers.values():
        where = f"broker {node.node_id} at {node.host}:{node.port}"
        try:
            connection = await cluster.connection_to(node.node_id, ROLE)
        except UpstreamError as error:
            report.wrong(f"{where}: {error}")
            continue
        reached = True
        newest = connection.versions.get(LIST_OFFSETS.key, (0, 0))[1]
        if newest < _LOCAL_LOG_STARTS_VERSION:
            report.wrong(f"{where}: ListOffsets ends at version {newest}; remote storage needs Kafka 3.6 or later")
        else:
            report.ok(where)
    return reached


async def _check_metadata_topic(cluster: Cluster, scan: "_Scan", report: Report) -> None:
    client = KafkaMetadataTopicClient(cluster)
    try:
        topic = await client.describe()
    except RemoteStorageError as error:
        report.wrong(str(error))
        return
    report.ok(f"{METADATA_TOPIC} has {topic.partition_count} partitions")
    if not any(topic.topic_id):
        report.wrong(f"{METADATA_TOPIC} has no topic id: the cluster is too old for remote storage")
    configs = await _metadata_topic_configs(cluster, report)
    _check_retention(configs, report)
    readable = True
    with trio.move_on_after(SCAN_TIME_LIMIT_S) as scope:
        for partition in range(topic.partition_count):
            try:
                await _scan_partition(client, partition, scan)
            except RemoteStorageError as error:
                report.wrong(str(error))
                readable = False
                break
    if scope.cancelled_caught:
        report.warning(f"{METADATA_TOPIC}: only {scan.records} records were read in {SCAN_TIME_LIMIT_S:g} s")
    elif readable:
        report.ok(f"{scan.records} records read, {scan.undecodable} of them not decodable")
    if scan.unkeyed and configs.get("cleanup.policy") == "compact":
        report.warning(
            f"{METADATA_TOPIC} has cleanup.policy=compact, and {scan.unkeyed} of its records have no key: the broker"
            " deletes such records, and their segments cannot be found any more; set it to delete"
        )
    if scan.undecodable:
        report.warning(f"{scan.undecodable} records cannot be decoded; the first: {scan.first_undecodable}")


async def _metadata_topic_configs(cluster: Cluster, report: Report) -> Mapping[str, str]:
    """How long the metadata topic keeps records; empty if that is not told."""
    asked = {
        "resource_type": _TOPIC_RESOURCE,
        "resource_name": METADATA_TOPIC,
        "configuration_keys": ["retention.ms", "retention.bytes", "cleanup.policy", "min.compaction.lag.ms"],
    }
    try:
        question: Question[Any] = Question(DESCRIBE_CONFIGS, {"resources": [asked]})
        response = await cluster.ask(next(iter(cluster.brokers)), ROLE, question)
    except UpstreamError as error:
        report.warning(f"the retention of {METADATA_TOPIC} is not known: {error}")
        return {}
    [result] = response.results
    if int(result.error_code) == _TOPIC_AUTHORIZATION_FAILED:
        report.warning(
            f"the retention of {METADATA_TOPIC} is not known: ACL DescribeConfigs on Topic {METADATA_TOPIC} is missing"
            " (only this check needs it)"
        )
        return {}
    if int(result.error_code) != 0:
        report.warning(f"the retention of {METADATA_TOPIC} is not known: error code {int(result.error_code)}")
        return {}
    return {entry.name: entry.value for entry in result.configs}


def _check_retention(configs: Mapping[str, str], report: Report) -> None:
    """Finite retention loses segments' metadata while their objects stay (docs/kafka-tier.md#metadata-topic).

    KIP-1266 compacts the topic, which keeps the last record of each key for ever, and retention does not apply. On the
    way there, records without a key expire before anything is compacted: `compact,delete` with one time for both.
    """
    policies = {policy.strip() for policy in configs.get("cleanup.policy", "delete").split(",")}
    if policies == {"compact"}:
        return
    retention_ms = configs.get("retention.ms", "-1")
    is_being_migrated = policies == {"compact", "delete"} and configs.get("min.compaction.lag.ms") == retention_ms
    for name in ("retention.ms", "retention.bytes"):
        if configs.get(name, "-1") != "-1" and not (is_being_migrated and name == "retention.ms"):
            report.warning(
                f"{METADATA_TOPIC} has {name}={configs[name]}: segments whose metadata expires cannot be found any"
                " more; set it to -1"
            )
    if policies != {"delete"} and not is_being_migrated:
        report.warning(f"{METADATA_TOPIC} has cleanup.policy={configs['cleanup.policy']}; Kafka makes it with delete")


async def _scan_partition(client: KafkaMetadataTopicClient, partition: int, scan: "_Scan") -> None:
    """Read from the log's start to the end that is there now."""
    [(offset, end)] = (await client.offsets([partition])).values()
    while offset < end:
        try:
            fetched = await client.fetch(partition, offset, max_wait_ms=0)
        except MetadataOffsetOutOfRange:
            return  # retention went past us meanwhile: nothing of this range is left
        for event in fetched.records:
            scan.take(event)
        if fetched.next_offset <= offset:
            return  # no batch though there should be one: transactions that are open, or a log made anew
        offset = fetched.next_offset


async def _check_topics(cluster: Cluster, scan: "_Scan", report: Report) -> None:
    """Each topic with segments in the tier: may we describe it, and does its leader tell where the local log starts?"""
    if not scan.topics:
        report.ok("none yet")
        return
    try:
        found = await cluster.learn_topics(sorted(scan.topics))
    except UpstreamError as error:
        report.wrong(str(error))
        return
    described = [topic for topic in found if _is_described(topic, report)]
    report.ok(f"{len(described)} of {len(found)} topics can be described")
    if described:
        await _check_frontier(cluster, described[0], report)


def _is_described(topic: TopicMetadata, report: Report) -> bool:
    if topic.error_code == _TOPIC_AUTHORIZATION_FAILED:
        report.wrong(f"ACL Describe on Topic {topic.name} is missing: its frontier cannot be learned")
    elif topic.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
        report.ok(f"topic {topic.name} is gone, its segments are still being deleted")
    elif topic.error_code != 0:
        report.wrong(f"topic {topic.name}: Metadata answered with error code {topic.error_code}")
    return topic.error_code == 0


async def _check_frontier(cluster: Cluster, topic: TopicMetadata, report: Report) -> None:
    """Ask one leader for one local log start, as `serve` does all the time."""
    partition, leader = next(iter(sorted(topic.partitions.items())))
    where = f"{topic.name}-{partition}"
    try:
        answers = await FrontierClient(cluster, ROLE).local_log_starts(
            leader.leader_id, [(topic.name or "", partition)]
        )
    except UpstreamError as error:
        report.wrong(f"the local log start of {where} cannot be learned: {error}")
        return
    [answer] = answers.values()
    if answer.error_code == 0:
        report.ok(f"{where}: the local log starts at {answer.offset}")
    else:
        report.wrong(f"the local log start of {where} cannot be learned: error code {answer.error_code}")


def _check_tier(config: Config, scan: "_Scan", report: Report) -> None:
    """Blocking: open the storage manager and read the beginning of one segment."""
    try:
        manager = open_remote_storage_manager(config.remote_storage_manager_class_name, config.remote_storage_config)
    except RemoteStorageError as error:
        report.wrong(str(error))
        return
    try:
        segment = scan.newest_finished()
        if segment is None:
            manager.ask()
            report.ok("the store answers; no finished segment is known yet, so no object was read")
            return
        data = manager.fetch_log_segment(segment, 0, FIRST_BYTES - 1)
        magic_position = 16
        if len(data) <= magic_position or data[magic_position] != 2:
            report.wrong(f"segment {segment.segment_id} does not begin with a record batch")
        else:
            report.ok(f"segment {segment.segment_id}, offsets {segment.start_offset} to {segment.end_offset}: read")
    except RemoteStorageError as error:
        report.wrong(str(error))
    finally:
        manager.close()


@dataclass(slots=True)
class _Scan:
    """What the metadata topic's records amount to, as far as this command needs it."""

    records: int = 0
    unkeyed: int = 0
    undecodable: int = 0
    first_undecodable: str = ""
    topics: set[str] = field(default_factory=set)
    segments: OrderedDict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=OrderedDict)

    def take(self, event: MetadataEvent) -> None:
        self.records += 1
        self.unkeyed += event.key is None
        if event.value is None:
            return
        try:
            record = serde.decode(event.value)
        except RemoteStorageError as error:
            self.undecodable += 1
            self.first_undecodable = self.first_undecodable or f"{event.partition}/{event.offset}: {error}"
            return
        if isinstance(record, RemoteLogSegmentMetadata):
            self._keep(record)
        elif isinstance(record, RemoteLogSegmentMetadataUpdate) and record.segment_id in self.segments:
            segment = self.segments[record.segment_id]
            self._keep(replace(segment, state=record.state, custom_metadata=record.custom_metadata))

    def newest_finished(self) -> RemoteLogSegmentMetadata | None:
        return next((segment for segment in reversed(self.segments.values()) if segment.state is _FINISHED), None)

    def _keep(self, segment: RemoteLogSegmentMetadata) -> None:
        """A segment as it is now; of a compacted topic its first record may be of any state."""
        if segment.state > _FINISHED:
            self.segments.pop(segment.segment_id, None)
            return
        self.segments[segment.segment_id] = segment
        if len(self.segments) > SCAN_SEGMENTS_MAX:
            self.segments.popitem(last=False)
        if segment.state is _FINISHED and len(self.topics) < SCAN_TOPICS_MAX:
            self.topics.add(segment.topic_id_partition.topic)
