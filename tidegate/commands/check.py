"""`tidegate check FILE`: ask everything that `serve` will need, and say what is wrong.

In this order: what is odd about the keys; what of them is insecure; the upstream brokers, each of them; this machine
(ports, memory, the folders of cache and audit log, open files; `check_machine`); the metadata topic (reached, ids,
retention, readable); the topics that the tier holds (may we describe them?); the tier (segments of every age;
`check_tier`); and last the keys. Whatever one of them runs into, the others are looked at.

ACLs that Tidegate's own identity needs, found out against a broker with StandardAuthorizer: Read (which implies
Describe) on Topic __remote_log_metadata, Describe on each topic to be served. Nothing on Cluster. DescribeConfigs on
__remote_log_metadata is for this command only, to see the retention: without it that check is a warning.
"""

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import trio

from metrics.troubles import TROUBLES, TroubleId
from protocol.client.cluster_view import TopicMetadata
from protocol.client.errors import UpstreamError
from protocol.client.messages import DESCRIBE_CONFIGS, LIST_OFFSETS, Question
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.addresses import NodeAddress
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC, KafkaMetadataTopicClient
from proxy.upstream.partition_questions import FrontierClient
from storage.checks.finding import FindingKind
from storage.checks.partition_check import PartitionState, check_partition
from storage.config.client_settings import client_settings, kafka_principal
from storage.config.model import Mode, UpstreamConfig
from storage.config.registry import MetadataManagerKind, metadata_manager_kind
from storage.errors import MetadataOffsetOutOfRange, MetadataRecordError, RemoteStorageError, StorageConfigError
from storage.metadata import serde
from storage.metadata.catalog import Catalog
from storage.metadata.reading import NO_TOPIC_ID, MetadataEvent
from storage.model import TopicIdPartition, Uuid, uuid_to_text
from tidegate import exit_codes
from tidegate.commands.check_copy import check_copy
from tidegate.commands.check_machine import check_machine, check_security
from tidegate.commands.check_tier import check_tier
from tidegate.commands.report import Report
from tidegate.commands.selection import finished
from tidegate.config.model import Config
from tidegate.logs import configure_logs
from tidegate.reasons import Reasons, catalog_full
from tidegate.upkeep import BROKER_ANSWER_S_MAX

if TYPE_CHECKING:
    from protocol.client.offset_questions import Partition

ROLE = "check"

SCAN_TIME_LIMIT_S = 30.0
"""For reading the metadata topic; what was seen until then is used."""
TOPICS_SHOWN_MAX = 20
"""Topics that are gone, or that we may not describe: beyond this, only their number is shown."""

_TOPIC_RESOURCE = 2
_TOPIC_AUTHORIZATION_FAILED = 29
_UNKNOWN_TOPIC_OR_PARTITION = 3
_LOCAL_LOG_STARTS_VERSION = 8


def run(
    config: Config,
    out: TextIO,
    *,
    opens_all: bool = False,
    as_json: bool = False,
    shows_defaults: bool = False,
    workers: int | None = None,
) -> int:
    """Check a configuration that has been loaded, printing to `out`.

    Args:
        opens_all: open every segment, and read the metadata topic to its end however long that takes.
        as_json: one document instead of lines (`tidegate.commands.report`).
        shows_defaults: list keys that nobody set, too.
        workers: how many there will be; None: as `proxy.workers` says, `auto` taken for one.

    Returns:
        exit_codes.DONE or exit_codes.FOUND_WRONG; exit_codes.USAGE where `serve` would refuse the configuration.
    """
    configure_logs("critical")  # the report says what is wrong; a log line between would say it twice
    report = Report(out, as_json=as_json, progress=sys.stderr, complete=Reasons(config).complete)
    with report.section("Configuration"):
        for warning in config.warnings:
            report.warning(
                warning, TroubleId.IDENTITY_UNCLEAR if warning == config.identity_trouble else TroubleId.CONFIG_ODD
            )
        if not config.warnings:
            report.ok("the keys fit together")
    with report.section("Security"):
        check_security(config, report)
    with report.section("Identity"):
        _tell_identities(config, report)
    is_usable = True
    try:
        with report.guarded("the check"):
            is_usable = trio.run(_check, config, report, opens_all, workers or max(1, config.proxy.workers))
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None  # the command line knows what to do with that one
        raise
    report.keys(config.effective, shows_defaults=shows_defaults)
    report.verdict()
    if not is_usable:
        return exit_codes.USAGE
    return exit_codes.FOUND_WRONG if report.wrong_count else exit_codes.DONE


def _tell_identities(config: Config, report: Report) -> None:
    """Who asks the brokers for what, and which line of which file says so."""
    asked = [("brokers and topics are asked", config.upstream), (f"{METADATA_TOPIC} is read", config.metadata_client)]
    if config.mode is Mode.STANDALONE:
        asked.append((f"{METADATA_TOPIC} is written", config.metadata_producer))
    for what, client in asked:
        security = client.security
        how = security.protocol if security.sasl is None else f"{security.protocol} and {security.sasl.mechanism}"
        where = f"{client.identity_at}; " if client.identity_at else ""
        servers = ",".join(map(str, client.bootstrap_servers))
        report.ok(f"{what} as {kafka_principal(security)}, by {how} ({where}at {servers})")


async def _check(config: Config, report: Report, opens_all: bool, workers: int) -> bool:
    """Return whether `serve` would take the configuration."""
    reached, is_usable = False, True
    async with trio.open_nursery() as nursery:
        upstream = Cluster(client_settings(config.upstream), nursery)
        known = [(config.upstream, upstream)]
        metadata = _cluster_of(config.metadata_client, known, nursery)
        written = _cluster_of(config.metadata_producer, known, nursery)
        with report.section("Upstream brokers"):
            reached = await _check_brokers(config, upstream, report)
        with report.section("This machine"):
            nodes = [NodeAddress(node.node_id, node.host, node.port) for node in upstream.brokers.values()]
            is_usable = await check_machine(config, nodes, report, workers)
        scan = _Scan(Catalog(config.catalog.segments_max))
        try:
            kind = metadata_manager_kind(config.remote_log_metadata_manager_class_name)
        except StorageConfigError as error:
            report.wrong(str(error))
            is_usable, kind = False, MetadataManagerKind.IN_MEMORY
        if kind is MetadataManagerKind.TOPIC_BASED and (reached or metadata is not upstream):
            with report.section("Metadata topic"):
                if config.mode is Mode.STANDALONE and await _is_metadata_topic_to_come(metadata):
                    report.ok(f"there is no {METADATA_TOPIC} yet: nothing has been copied")
                else:
                    limit_s = math.inf if opens_all else SCAN_TIME_LIMIT_S
                    await _check_metadata_topic(metadata, scan, report, limit_s)
        if reached and config.mode is Mode.STANDALONE:
            with report.section("Copying"):
                await check_copy(config, upstream, metadata, written, report)
        if reached:
            with report.section("Topics in the tier"):
                await _check_topics(config, upstream, scan, report)
        with report.section("Tier"):
            is_usable &= await trio.to_thread.run_sync(
                partial(check_tier, config, scan.catalog, report, opens_all=opens_all)
            )
        nursery.cancel_scope.cancel()
    return is_usable


def _cluster_of(client: UpstreamConfig, known: list[tuple[UpstreamConfig, Cluster]], nursery: trio.Nursery) -> Cluster:
    """The same cluster as one that is known, unless this one has other servers or another identity."""
    for other, cluster in known:
        if other == client:
            return cluster
    known.append((client, Cluster(client_settings(client), nursery)))
    return known[-1][1]


async def _check_brokers(config: Config, cluster: Cluster, report: Report) -> bool:
    """Return whether at least one broker answers."""
    try:
        await cluster.refresh()
    except UpstreamError as error:
        report.wrong(Reasons(config).no_broker(error), TroubleId.UPSTREAM_UNAVAILABLE)
        return False
    report.ok(f"cluster {cluster.cluster_id}, brokers: {len(cluster.brokers)}")
    reached = False
    said = await cluster.ask_each(BROKER_ANSWER_S_MAX)
    for node in cluster.brokers.values():
        where, answer = f"broker {node.node_id} at {node.host}:{node.port}", said[node.node_id]
        if isinstance(answer, str):
            silent = TROUBLES[TroubleId.BROKER_SILENT].sentence(f"{where}: {answer}")
            report.wrong(silent, TroubleId.BROKER_SILENT)
            continue
        reached = True
        newest = cluster.newest_version(node.node_id, LIST_OFFSETS.key) or 0
        if config.mode is Mode.REPLICA and newest < _LOCAL_LOG_STARTS_VERSION:
            report.wrong(
                f"{where}: ListOffsets ends at version {newest}; remote storage needs Kafka 3.6 or later: upgrade it"
            )
        else:
            report.ok(where)
    return reached


async def _is_metadata_topic_to_come(cluster: Cluster) -> bool:
    try:
        [topic] = await cluster.learn_topics([METADATA_TOPIC])
    except UpstreamError:
        return False  # which the next question reports
    return topic.error_code == _UNKNOWN_TOPIC_OR_PARTITION


async def _check_metadata_topic(cluster: Cluster, scan: "_Scan", report: Report, limit_s: float) -> None:
    client = KafkaMetadataTopicClient(cluster)
    try:
        topic = await client.describe()
    except RemoteStorageError as error:
        report.wrong(str(error), TroubleId.CATALOG_NOT_READ)
        return
    report.ok(f"{METADATA_TOPIC} has {topic.partition_count} partitions")
    if not any(topic.topic_id):
        report.wrong(f"{METADATA_TOPIC} {NO_TOPIC_ID}", TroubleId.CATALOG_NOT_READ)
    configs = await _metadata_topic_configs(cluster, report)
    _check_retention(configs, report)
    readable = True
    with trio.move_on_after(limit_s) as scope:
        for partition in range(topic.partition_count):
            try:
                await _scan_partition(client, partition, scan)
                report.progress(f"{partition + 1} of {topic.partition_count} metadata partitions read")
            except RemoteStorageError as error:
                report.wrong(str(error), TroubleId.METADATA_PARTITION_NOT_READ)
                readable = False
                break
    if scope.cancelled_caught:
        report.warning(
            f"{METADATA_TOPIC}: only {scan.records} records were read in {limit_s:g} s; --all reads them all"
        )
    elif readable:
        scan.is_whole = True
        report.ok(f"{scan.records} records read, {scan.undecodable} of them not decodable")
    _tell_of_lost(scan, configs, report)


def _tell_of_lost(scan: "_Scan", configs: Mapping[str, str], report: Report) -> None:
    """Report what the records that were read do not tell."""
    if scan.cut:
        report.warning(
            f"partitions of {METADATA_TOPIC} do not begin at offset 0 any more: {', '.join(scan.cut)}; what they said "
            "before is lost, also when a broker starts again"
        )
    if scan.unkeyed and configs.get("cleanup.policy") == "compact":
        report.warning(
            f"{METADATA_TOPIC} has cleanup.policy=compact, and {scan.unkeyed} of its records have no key: the broker"
            " deletes such records, and their segments cannot be found any more; set it to delete"
        )
    if scan.catalog.refused_partitions:
        report.warning(catalog_full(scan.catalog.segments_max, scan.catalog.refused_partitions), TroubleId.CATALOG_FULL)
    if scan.undecodable:
        report.warning(f"{scan.undecodable} records cannot be decoded; the first: {scan.first_undecodable}")


async def _metadata_topic_configs(cluster: Cluster, report: Report) -> Mapping[str, str]:
    """Return how long the metadata topic keeps records; empty if that is not told."""
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
    if offset:
        scan.cut.append(f"{partition} (at {offset})")
    while offset < end:
        try:
            fetched = await client.fetch(partition, offset, max_wait_ms=0)
        except MetadataOffsetOutOfRange:
            return  # retention went past us meanwhile: nothing of this range is left
        for event in fetched.records:
            scan.take(event)
        if fetched.next_offset <= offset:
            return  # no batch though there should be one: transactions that are open, or a log created again
        offset = fetched.next_offset


async def _check_topics(config: Config, cluster: Cluster, scan: "_Scan", report: Report) -> None:
    """Each topic with segments in the tier: may we describe it, and does its leader tell where the local log starts?

    In standalone mode the copier deletes the segments of topics that are gone, and the local log is upstream's whole.
    """
    is_own, segments = config.mode is Mode.STANDALONE, scan.segments_of_topics()
    if not segments:
        report.ok("none yet")
        return
    try:
        found = await cluster.learn_topics(sorted({name for name, _ in segments}))
    except UpstreamError as error:
        report.wrong(str(error))
        return
    living = {(topic.name, topic.topic_id) for topic in found if topic.error_code == 0}
    denied = [topic.name or "" for topic in found if topic.error_code == _TOPIC_AUTHORIZATION_FAILED]
    for name in denied[:TOPICS_SHOWN_MAX]:
        report.wrong(f"ACL Describe on Topic {name} is missing: brokers read all of it", TroubleId.NOT_DESCRIBED)
    if len(denied) > TOPICS_SHOWN_MAX:
        line = cluster.settings.grant(["Describe"], "topic", ["*"])
        report.wrong(
            f"ACL Describe is missing on {len(denied) - TOPICS_SHOWN_MAX} topics more; grant it on all: {line}",
            TroubleId.NOT_DESCRIBED,
        )
    for topic in found:
        if topic.error_code not in (0, _TOPIC_AUTHORIZATION_FAILED, _UNKNOWN_TOPIC_OR_PARTITION):
            report.wrong(f"topic {topic.name}: Metadata answered with error code {topic.error_code}; ask again later")
    untold = {topic.name for topic in found if topic.error_code not in (0, _UNKNOWN_TOPIC_OR_PARTITION)}
    gone = {key: count for key, count in segments.items() if key not in living and key[0] not in untold}
    if not is_own:
        _tell_of_gone(gone, report)
    elif gone:
        report.ok(f"{len(gone)} topics were deleted, and the copier deletes what the tier has of them")
    described = [topic for topic in found if topic.error_code == 0]
    report.ok(f"{len(described)} of {len(found)} topics can be described")
    if described and not is_own:
        await _check_frontier(cluster, described[0], report)
        await _check_holes(cluster, described, scan, report)


def _tell_of_gone(gone: Mapping[tuple[str, bytes], int], report: Report) -> None:
    """Topics that were deleted, and perhaps created again, while the tier still has segments of them."""
    for (name, topic_id), count in [*gone.items()][:TOPICS_SHOWN_MAX]:
        report.warning(
            f"topic {name} with id {uuid_to_text(Uuid(topic_id))} was deleted, and {count} of its segments are in the "
            "tier: nobody can read them; brokers delete them within minutes, and if they do not (remote storage was "
            f"off meanwhile), delete what is below {name}-{uuid_to_text(Uuid(topic_id))} in the store by hand"
        )
    if len(gone) > TOPICS_SHOWN_MAX:
        report.warning(f"segments of {len(gone) - TOPICS_SHOWN_MAX} more topics that were deleted are in the tier")


async def _check_frontier(cluster: Cluster, topic: TopicMetadata, report: Report) -> None:
    """Ask one leader for one local log start, as `serve` does all the time."""
    partition, leader = next(iter(sorted(topic.partitions.items())))
    where = f"{topic.name}-{partition}"
    try:
        answers = await FrontierClient(cluster, ROLE).local_log_starts(
            leader.leader_id, [(topic.name or "", partition)]
        )
    except UpstreamError as error:
        report.wrong(f"the local log start of {where} cannot be learned: {error}; check the broker that leads it")
        return
    [answer] = answers.values()
    if answer.error_code == 0:
        report.ok(f"{where}: the local log starts at {answer.offset}")
    else:
        report.wrong(
            f"the local log start of {where} cannot be learned: error code {answer.error_code}; ask again later"
        )


async def _check_holes(cluster: Cluster, topics: Sequence[TopicMetadata], scan: "_Scan", report: Report) -> None:
    """Partitions with offsets from the log start on that no segment holds, though later ones are in some."""
    if not scan.is_whole:
        return
    by_leader: dict[int, dict[Partition, TopicIdPartition]] = {}
    by_id = {topic.topic_id: topic for topic in topics}
    for partition in scan.catalog.partitions():
        topic = by_id.get(partition.topic_id)
        leader = None if topic is None else topic.partitions.get(partition.partition)
        if leader is not None:
            by_leader.setdefault(leader.leader_id, {})[partition.topic, partition.partition] = partition
    holed: list[str] = []
    for node_id, partitions in by_leader.items():
        queries = [(*key, int(OffsetTimestamp.EARLIEST)) for key in partitions]
        try:
            starts = await FrontierClient(cluster, ROLE).list_offsets(node_id, queries)
        except UpstreamError as error:
            report.wrong(f"where logs start cannot be learned: {error}; check broker {node_id}")
            continue
        holed += [
            f"{name}-{number}: {hole}"
            for (name, number, _), start in starts.items()
            if not start.error_code and (hole := _first_hole(scan.catalog, partitions[name, number], start.offset))
        ]
    for each in holed[:TOPICS_SHOWN_MAX]:
        report.wrong(
            f"{each}, and later ones are in some: what {METADATA_TOPIC} said of them is lost. Brokers read them as long"
            " as they run, and look-ups by time are theirs; a dump of the metadata brings them back (metadata import)"
        )
    if len(holed) > TOPICS_SHOWN_MAX:
        report.wrong(f"{len(holed) - TOPICS_SHOWN_MAX} partitions more have such holes")


def _first_hole(catalog: Catalog, partition: TopicIdPartition, log_start: int) -> str | None:
    """A phrase; None without one. The log start is younger than the catalog: what was deleted meanwhile is below it."""
    segments = catalog.list_segments(partition.topic_id, partition.partition)
    end = max((each.end_offset + 1 for each in finished(segments)), default=0)
    state = PartitionState(log_start_offset=log_start, local_log_start_offset=end)
    found = check_partition(partition, segments, state, now_ms=0)
    return next((each.detail for each in found if each.kind is FindingKind.GAP), None) if log_start < end else None


@dataclass(slots=True)
class _Scan:
    """What the metadata topic's records amount to, as far as this command needs it."""

    catalog: Catalog
    records: int = 0
    unkeyed: int = 0
    undecodable: int = 0
    first_undecodable: str = ""
    is_whole: bool = False
    """All records were read that the topic has."""
    cut: list[str] = field(default_factory=list)
    """Metadata partitions that have lost their first records."""

    def take(self, event: MetadataEvent) -> None:
        self.records += 1
        self.unkeyed += event.key is None
        is_keyed = event.key is not None
        try:
            if event.value is not None:
                self.catalog.apply(serde.decode(event.value), initialized=False, is_keyed=is_keyed)
            elif event.key is not None:
                self.catalog.apply_tombstone(event.key, initialized=False)
        except MetadataRecordError as error:
            self.undecodable += 1
            self.first_undecodable = self.first_undecodable or f"{event.partition}/{event.offset}: {error}"
        except RemoteStorageError:
            return  # a state that cannot be, which `serve` passes over too

    def segments_of_topics(self) -> Counter[tuple[str, bytes]]:
        """Return how many finished segments there are, by topic name and id."""
        partitions = (segment.topic_id_partition for segment in self.catalog.finished_segments())
        return Counter((partition.topic, bytes(partition.topic_id)) for partition in partitions)
