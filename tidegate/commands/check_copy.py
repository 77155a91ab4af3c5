"""The part of `check` that asks what a copier needs (mode standalone): topics, rights, time.

Which rights our own identity has, upstream says itself where it is asked to (Metadata and DescribeGroups tell what may
be done with each topic and group): Read and DescribeConfigs on topics, Write on the metadata topic, Read on the
copiers' group and on that of the log starts. Whether the metadata topic may be created is tried without creating it.
"""

import shutil
from collections.abc import Iterable, Mapping
from typing import Any, Final

import trio

from metrics.troubles import TroubleId
from protocol.client.conversation import drive_async
from protocol.client.errors import GroupAuthorizationError, UpstreamError
from protocol.client.groups import DESCRIBE_GROUPS, find_coordinator
from protocol.client.leaders import AskMetadata, Step, code_name
from protocol.client.messages import METADATA, Question
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.cluster_clock import controller_time_s
from standalone.copier.config import CopyConfig
from standalone.copy_topics import CopyTopic, find_topics, topic_configs
from standalone.metadata_guard import configs_trouble
from standalone.serving.deletion_notes import DELETIONS_GROUP
from standalone.serving.log_starts import LOG_START_GROUP
from storage.backoff import Backoff
from storage.errors import RemoteStorageError
from storage.sizes import shown_size
from tidegate.commands.report import Report
from tidegate.config.load import copy_problems
from tidegate.config.model import Config

ROLE: Final = "check"

COORDINATOR_ATTEMPTS_MAX: Final = 7
"""Spread over some seconds."""

_READ, _WRITE, _DESCRIBE_CONFIGS = 3, 4, 10
_RIGHTS: Final = {_READ: "Read", _WRITE: "Write", _DESCRIBE_CONFIGS: "DescribeConfigs"}
"""Kafka's AclOperation codes."""
_UNKNOWN_RIGHTS: Final = -(2**31)
_GROUP_AUTHORIZATION_FAILED: Final = 30
_UNKNOWN_TOPIC: Final = 3
_COMING: Final = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""

DANGER: Final = (
    "brokers that get remote storage over this tier later delete what is in it, unless it was handed over to them "
    "before: read docs/standalone.md first"
)


async def check_copy(config: Config, cluster: Cluster, metadata: Cluster, written: Cluster, report: Report) -> None:
    """Check what `tidegate copy`, and `serve` with `copy.enabled`, would need. Upstream has answered before.

    Args:
        metadata: as the identity that reads the metadata topic.
        written: as the one that writes it.
    """
    report.warning(DANGER)
    problems = copy_problems(config)
    if config.copy.topics is None and not config.copy.is_enabled:
        report.ok("copy.topics is not set: another process copies")
        return
    for problem in problems:
        report.wrong(problem)
    if config.copy.topics is None:
        return
    try:
        topics = await find_topics(cluster, config.copy.topics)
        await _check_topics(cluster, config.copy, topics, report)
        await _check_metadata_topic(config, metadata, written, report)
        for group in (config.copy.group_id, LOG_START_GROUP, DELETIONS_GROUP):
            await _check_group(cluster, group, report)
        await _check_clock(cluster, report)
    except UpstreamError as error:
        report.wrong(f"what a copier needs is not known: {error}")


async def _check_topics(cluster: Cluster, copy: CopyConfig, topics: Mapping[str, CopyTopic], report: Report) -> None:
    assert copy.topics is not None, "checked before"
    for name in sorted(copy.topics.names - topics.keys()):
        report.warning(f"copy.topics: there is no topic {name} yet, or ACL Describe on it is missing")
    for topic in topics.values():
        if topic.refused is not None:
            report.wrong(f"copy.topics: {topic.name} is not copied: {topic.refused}", TroubleId.TOPIC_NOT_COPIED)
    copied = [topic for topic in topics.values() if topic.refused is None]
    for name, missing in (await _missing_rights(cluster, [topic.name for topic in copied], (_READ,))).items():
        report.wrong(f"ACL {missing} on Topic {name} is missing: it cannot be copied", TroubleId.COPY_STALLED)
    for topic in copied:
        _check_time(copy, topic, report)
        _check_size(copy, topic, report)
    if copied:
        _check_staging(copy, sum(topic.partition_count for topic in copied), report)
        report.ok(f"{len(copied)} topics would be copied, {sum(topic.partition_count for topic in copied)} partitions")
    elif not topics:
        report.warning("copy.topics: no topic there is would be copied")


def _check_time(copy: CopyConfig, topic: CopyTopic, report: Report) -> None:
    """A record must be in the tier long before upstream deletes it."""
    retention_ms = int(topic.configs.get("retention.ms", "-1"))
    takes_ms = copy.segment_ms + copy.lag_ms + 2 * copy.interval_ms
    if not 0 <= retention_ms < 2 * takes_ms:
        return
    said = (
        f"topic {topic.name}: records may be in the tier only after {takes_ms} ms (copy.segment.ms + copy.lag.ms + "
        "2 × copy.interval.ms), and "
    )
    if retention_ms <= takes_ms:
        report.wrong(f"{said}upstream deletes them before that: retention.ms={retention_ms}", TroubleId.COPY_LATE)
    else:
        report.warning(f"{said}that is more than half of upstream's retention.ms={retention_ms}")


def _check_size(copy: CopyConfig, topic: CopyTopic, report: Report) -> None:
    """A record waits for its segment: upstream must keep far more than that, or get few records meanwhile."""
    retention_bytes = int(topic.configs.get("retention.bytes", "-1"))
    waits_bytes = copy.segment_bytes + copy.lag_bytes
    if not 0 <= retention_bytes < 2 * waits_bytes:
        return
    takes_s = (copy.segment_ms + copy.lag_ms + 2 * copy.interval_ms) / 1000
    report.warning(
        f"topic {topic.name}: records may be in the tier only after {waits_bytes} bytes (copy.segment.bytes + "
        f"expert.copy.lag.bytes), and upstream keeps retention.bytes={retention_bytes} of a partition: it may delete "
        f"them before that where a partition gets more than {retention_bytes / takes_s:.0f} bytes/s"
    )


def _check_staging(copy: CopyConfig, partitions: int, report: Report) -> None:
    """One copier may have all partitions, each with a segment under way."""
    path = copy.staging_path
    if path is None:
        return  # which was said
    try:
        existing = next(each for each in (path, *path.absolute().parents) if each.exists())
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        report.wrong(f"copy.staging.path {path} cannot be looked at: {error.strerror}")
        return
    needed_bytes = copy.segment_bytes * partitions
    needed = f"{partitions} partitions may take {shown_size(needed_bytes)} (copy.segment.bytes each)"
    said = f"copy.staging.path {path}: {needed}"
    if needed_bytes > free_bytes:
        report.warning(f"{said}, and {shown_size(free_bytes)} are free: lower copy.segment.bytes, or run more copiers")
    else:
        report.ok(f"{said}, and {shown_size(free_bytes)} are free")


async def _check_metadata_topic(config: Config, metadata: Cluster, written: Cluster, report: Report) -> None:
    [topic] = await metadata.learn_topics([METADATA_TOPIC])
    if topic.error_code == 0:
        for name, missing in (await _missing_rights(written, [METADATA_TOPIC], (_WRITE,))).items():
            report.wrong(f"ACL {missing} on Topic {name} is missing: nothing can be copied", TroubleId.COPY_STALLED)
        configs = (await topic_configs(metadata, [METADATA_TOPIC]))[METADATA_TOPIC]
        if isinstance(configs, str):
            report.wrong(
                f"{configs}: a copier deletes nothing from the tier without it", TroubleId.METADATA_TOPIC_UNSAFE
            )
        elif (trouble := configs_trouble(configs)) is not None:
            report.wrong(trouble, TroubleId.METADATA_TOPIC_UNSAFE)
        return
    if topic.error_code != _UNKNOWN_TOPIC:
        report.wrong(f"{METADATA_TOPIC}: Metadata says {code_name(topic.error_code)}")
        return
    # librdkafka, which nothing else here needs.
    from standalone.copier.librdkafka import client_properties
    from standalone.copier.metadata_topic import create_metadata_topic

    def attempt() -> bool:
        return create_metadata_topic(
            client_properties(config.metadata_producer, ROLE),
            config.metadata_topic,
            topic=METADATA_TOPIC,
            broker_count=len(metadata.brokers),
            validates_only=True,
        )

    try:
        await trio.to_thread.run_sync(attempt)
    except RemoteStorageError as error:
        report.wrong(str(error))
    else:
        report.ok(f"{METADATA_TOPIC} is not there yet, and a copier may make it")


async def _check_clock(cluster: Cluster, report: Report) -> None:
    try:
        await controller_time_s(cluster)
    except UpstreamError as error:
        report.warning(f"the brokers' clock is not known, so that a wrong one of this machine may not be seen: {error}")


async def _missing_rights(cluster: Cluster, names: Iterable[str], needed: Iterable[int]) -> dict[str, str]:
    """By topic, the rights that are missing; brokers without an authorizer, which allow everything, have none."""
    asked = [{"name": name, "topic_id": None} for name in names]
    if not asked:
        return {}
    values = {
        "topics": asked,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": False,
    }
    if not cluster.brokers:
        await cluster.refresh()
    question: Question[Any] = Question(METADATA, values)
    response = await cluster.ask(next(iter(cluster.brokers)), ROLE, question)
    found = {topic.name: _missing(int(topic.topic_authorized_operations), needed) for topic in response.topics}
    return {name: missing for name, missing in found.items() if missing}


def _missing(rights: int, needed: Iterable[int]) -> str:
    if rights == _UNKNOWN_RIGHTS:
        return ""
    return " and ".join(_RIGHTS[right] for right in needed if not rights >> right & 1)


async def _described(cluster: Cluster, group: str) -> Any:
    """The group, as its coordinator describes it; the first question has the brokers make the topic that groups are
    kept in, and a broker reads that before it says anything."""

    async def answer(step: Step) -> list[Any]:
        if isinstance(step, AskMetadata):
            await cluster.refresh()
            return []
        return await cluster.ask_all(ROLE, step)

    values = {"groups": [group], "include_authorized_operations": True}
    question: Question[Any] = Question(DESCRIBE_GROUPS, values)
    backoff = Backoff()
    for is_last in (*[False] * (COORDINATOR_ATTEMPTS_MAX - 1), True):
        try:
            node_id = await drive_async(find_coordinator(cluster, cluster.settings, group), answer)
            [described] = (await cluster.ask(node_id, ROLE, question)).groups
            if is_last or described.error_code not in _COMING:
                return described
        except UpstreamError as error:
            if is_last or not error.retriable:
                raise
        await trio.sleep(backoff.next_delay_s())
    raise AssertionError("the last attempt returns or raises")


async def _check_group(cluster: Cluster, group: str, report: Report) -> None:
    denied = f"ACL Read on Group {group} is missing: nothing can be copied"
    try:
        described = await _described(cluster, group)
    except GroupAuthorizationError:
        report.wrong(denied, TroubleId.COPY_GROUP_TROUBLE)
        return
    code = int(described.error_code)
    if code == _GROUP_AUTHORIZATION_FAILED or (not code and _missing(int(described.authorized_operations), (_READ,))):
        report.wrong(denied, TroubleId.COPY_GROUP_TROUBLE)
    elif code:
        report.warning(f"rights on group {group} are not known: {code_name(code)}")
    else:
        report.ok(f"group {group} may be used")
