"""What the partitions of one copier share."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from metrics.copy_meters import CopyMeter
from standalone.copier.config import CopyConfig
from standalone.copier.kept import Kept, KeptStore
from standalone.copier.limits import CopyRate, Slots
from standalone.copier.metadata_feed import MetadataFeed, Publish
from standalone.copier.progress import PartitionProgress
from standalone.copier.seams import BrokerLog, Retention
from standalone.copier.steps import StepRunner
from standalone.copier.threads import WorkerThreads
from standalone.copier.waits import Noted, Waiting
from storage.metadata.event_log import MetadataEventLog
from storage.model import TopicIdPartition, Uuid
from storage.remote_storage_manager import RemoteStorageManager

RETRY_S_MAX: Final = 30.0
"""Between two tries of what cannot be done now."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


Confirm = Callable[[Sequence[TopicIdPartition]], Awaitable[Sequence[TopicIdPartition]]]
"""Those of the partitions whose topics surely are gone, as every broker says now. Raises RemoteStorageError."""


@dataclass(kw_only=True)
class CopierTools:
    """Made inside a trio run.

    Args:
        event_log: reads the metadata topic, and `publish` writes it.
        kept_log_starts, kept_notes: the tier's log starts, and notes of deletions that wait.
        retention_of: what the tier keeps of a topic, `upstream_retention` what upstream does; may change.
        deletions_stopped: why nothing may be deleted now, a sentence; None: it may.
        is_disabled: copy.disable, as it is now.
        is_copied: whether what is new in a topic goes to the tier; may change.
        copies_all: a segment ends where upstream's log ends, however small it is.
    """

    settings: CopyConfig
    brokers: BrokerLog
    event_log: MetadataEventLog
    publish: Publish
    storage: RemoteStorageManager
    kept_log_starts: KeptStore[int]
    kept_notes: KeptStore[Noted]
    meter: CopyMeter
    retention_of: Callable[[str], Retention]
    upstream_retention: Callable[[str], Retention]
    confirm_gone: Confirm
    deletions_stopped: Callable[[], str | None]
    is_disabled: Callable[[], bool]
    is_copied: Callable[[str], bool]
    threads: WorkerThreads
    now_ms: Callable[[], int]
    new_id: Callable[[], Uuid] = lambda: Uuid(secrets.token_bytes(16))
    copies_all: bool = False

    def __post_init__(self) -> None:
        settings = self.settings
        self.granted: dict[TopicIdPartition, int] = {}
        """The partitions that the group gives us, with its generation then."""
        self.feed = MetadataFeed(self.event_log, self.publish, self.threads)
        self.log_starts = Kept(self.kept_log_starts, self.granted, settings.interval_ms / 2000)
        self.notes = Kept(self.kept_notes, self.granted, settings.interval_ms / 2000)
        self.slots = Slots(settings.concurrent_max, self.meter.on_slots)
        self.rate = CopyRate(settings.bytes_per_second_max)
        self.steps = StepRunner(self.feed, self.storage, self.threads, self.meter)

    def tell_waiting(self, partition: TopicIdPartition, progress: PartitionProgress, waiting: Waiting | None) -> None:
        """Show what of the partition waits to be deleted; in the log each time that something begins to."""
        before, progress.deletion = progress.deletion, waiting
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
