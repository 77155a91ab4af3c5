"""What the partitions of one copier share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from metrics.copy_meters import CopyMeter
from standalone.copier.config import CopyConfig
from standalone.copier.kept import Kept
from standalone.copier.limits import CopyRate, Slots
from standalone.copier.metadata_feed import MetadataFeed
from standalone.copier.seams import BrokerLog, Retention
from standalone.copier.steps import StepRunner
from standalone.copier.threads import Threads
from standalone.copier.waits import Noted, Waiting
from storage.model import TopicIdPartition, Uuid
from storage.remote_storage_manager import RemoteStorageManager

RETRY_S_MAX: Final = 30.0
"""Between two tries of what cannot be done now."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopierTools:
    """`log_starts`: the tier's; `notes`: of deletions. `deletions_stopped`: why nobody may delete now, a sentence.
    `is_copied`: whether what is new in a topic goes to the tier."""

    settings: CopyConfig
    brokers: BrokerLog
    feed: MetadataFeed
    storage: RemoteStorageManager
    log_starts: Kept[int]
    notes: Kept[Noted]
    meter: CopyMeter
    retention_of: Callable[[str], Retention]
    upstream_retention: Callable[[str], Retention]
    deletions_stopped: Callable[[], str | None]
    is_disabled: Callable[[], bool]
    is_copied: Callable[[str], bool]
    copies_all: bool
    slots: Slots
    rate: CopyRate
    threads: Threads
    steps: StepRunner
    now_ms: Callable[[], int]
    new_id: Callable[[], Uuid]

    def tell_waiting(self, partition: TopicIdPartition, waiting: Waiting | None, before: Waiting | None) -> None:
        """Report what of the partition waits to be deleted, and did before: in the log each time that something begins
        to."""
        shown = (waiting.segments, waiting.size_bytes, waiting.is_alarming) if waiting else (0, 0, False)
        self.meter.on_delete_waiting((partition.topic, partition.partition), *shown)
        if waiting is not None and (before is None or before.why != waiting.why):
            _log.warning(
                "deletion_waits",
                partition=str(partition),
                segments=waiting.segments,
                size_bytes=waiting.size_bytes,
                until_ms=waiting.until_ms,
                reason=waiting.why,
            )
