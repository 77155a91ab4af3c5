"""The keys of `copy.*`: what is copied, how fast, and what is deleted from the tier (docs/configuration.md)."""

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.config.keys import Reload, key
from storage.config.value_kinds import BOOLEAN, GIB, KIB, PATH, TEXT, TIB, Kind, integer, optional, size

_CENTURY_MS = 100 * 365 * 86_400_000
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Topics by name, and by regular expressions that a whole name must match."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...] = ()

    def holds(self, topic: str) -> bool:
        """Return whether the topic is meant."""
        return topic in self.names or any(pattern.fullmatch(topic) for pattern in self.patterns)

    def mark(self, client_id: str) -> str:
        """The client id of a member that was given these topics; it may have its host's name before."""
        return f"{client_id}-{self._digest()}"

    def marks(self, client_id: str) -> bool:
        """Return whether a member was given these topics too, as its client id says."""
        return client_id.endswith(f"-{self._digest()}")

    def _digest(self) -> str:
        items = sorted({*self.names, *(pattern.pattern for pattern in self.patterns)})
        return hashlib.sha256(",".join(items).encode()).hexdigest()[:16]


def parse_topic_names(value: str) -> TopicNames:
    """Names and expressions that begin with `^`, separated by commas. Raises ValueError."""
    items = [item.strip() for item in value.split(",") if item.strip()]
    names = frozenset(item for item in items if not item.startswith("^"))
    for name in sorted(names):
        if _TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
            raise ValueError(f"{name} is no topic name, and a regular expression begins with ^")
    if not items:
        raise ValueError("must be topic names, separated by commas")
    try:
        return TopicNames(names, tuple(re.compile(item) for item in items if item.startswith("^")))
    except re.error as error:
        raise ValueError(f"{error.pattern!r} is no regular expression: {error.msg}") from error


TOPICS = Kind("topics, …", parse_topic_names)


def _parse_share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError("must be a number above 0, and 1 at most")
    return share


SHARE = Kind("0 < share ≤ 1", _parse_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyConfig:
    """What a copier does. `retention_ms` and `retention_bytes` −1: for ever."""

    is_enabled: bool = key(
        "copy.enabled",
        BOOLEAN,
        "Copy inside `serve`; `tidegate copy` copies whatever this says.",
        section="Copying (standalone mode)",
        default="false",
    )
    topics: TopicNames | None = key(
        "copy.topics",
        optional(TOPICS),
        "Topics to copy: names, and regular expressions that begin with `^`. Compacted topics and those with "
        "`remote.storage.enable=true` are refused.",
    )
    group_id: str = key(
        "copy.group.id",
        TEXT,
        "Consumer group by which copiers of one tier share the partitions.",
        default="tidegate.copier",
    )
    interval_ms: int = key(
        "copy.interval.ms", integer(100, 86_400_000), "Between two looks at a partition.", default="30000"
    )
    concurrent_max: int = key(
        "copy.concurrent.max", integer(1, 1024), "Partitions that are copied or deleted from at once.", default="10"
    )
    bytes_per_second_max: int | None = key(
        "copy.max.bytes.per.second", optional(size(64 * KIB, TIB)), "Bytes of log copied per second, of all partitions."
    )
    lag_ms: int = key(
        "copy.lag.ms", integer(0, _CENTURY_MS), "A segment waits until its newest record is this old.", default="0"
    )
    lag_bytes: int = key(
        "expert.copy.lag.bytes",
        size(0, 1024 * TIB),
        "A segment waits until there is so much log behind it.",
        default="0",
    )
    segment_bytes: int = key(
        "copy.segment.bytes",
        size(64 * KIB, 2 * GIB - 1),
        "A segment ends before it would be larger, unless one batch is.",
        default="1 GiB",
    )
    segment_ms: int = key(
        "copy.segment.ms",
        integer(1000, _CENTURY_MS),
        "A segment ends at this age. Keep it far below upstream's `retention.ms`.",
        default="3600000",
    )
    staging_path: Path | None = key(
        "copy.staging.path",
        optional(PATH),
        "Folder for segments under way, of one process only: up to `copy.segment.bytes` for each partition.",
        default_words="`<cache.path>/staging`",
    )
    is_disabled: bool = key(
        "copy.disable",
        BOOLEAN,
        "Copy nothing more; serving and retention go on.",
        default="false",
        reload=Reload.AT_ONCE,
    )
    retention_ms: int = key(
        "copy.retention.ms",
        integer(-1, _CENTURY_MS),
        "Segments whose newest record is older are deleted from the tier; −1: none.",
        default="-1",
    )
    retention_bytes: int = key(
        "copy.retention.bytes",
        integer(-1, 2**62),
        "While a partition is larger than this, its oldest segments are deleted from the tier; −1: none.",
        default="-1",
    )
    delete_grace_ms: int = key(
        "copy.delete.grace.ms",
        integer(0, _CENTURY_MS),
        "What DeleteRecords or a topic's deletion takes out of the tier waits so long, and can be held meanwhile.",
        default="86400000",
    )
    delete_share_max: float = key(
        "copy.delete.share.max",
        SHARE,
        "A deletion of more than this share of a partition, and of more than one segment, waits for "
        "`copy.delete.grace.ms`.",
        default="0.1",
    )
    retention_from_topic: bool = key(
        "copy.retention.from.topic",
        BOOLEAN,
        "The topic's own `retention.ms` and `retention.bytes` hold for the tier too.",
        default="false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopicConfig:
    """How the metadata topic is made if it is missing: the metadata plug-in's own keys, named as the broker names them.

    `replication_factor` None: three, or as many as there are brokers. `in_sync_min` None: two of three replicas, else
    the broker's default.
    """

    partition_count: int = 50
    replication_factor: int | None = None
    retention_ms: int = -1
    in_sync_min: int | None = None


METADATA_TOPIC_KEYS: Final = {
    "remote.log.metadata.topic.num.partitions": ("partition_count", 1, 10_000),
    "remote.log.metadata.topic.replication.factor": ("replication_factor", 1, 32_767),
    "remote.log.metadata.topic.retention.ms": ("retention_ms", -1, 2**63 - 1),
    "remote.log.metadata.topic.min.isr": ("in_sync_min", 1, 32_767),
}
"""By the plug-in's key: the field above, and between which numbers it may be."""
