"""What the partitions of one copier share."""

from collections.abc import Callable
from dataclasses import dataclass

from metrics.copy_meters import CopyMeter
from standalone.copier.config import CopyConfig
from standalone.copier.kept import Kept
from standalone.copier.limits import CopyRate, Slots
from standalone.copier.metadata_feed import MetadataFeed
from standalone.copier.seams import BrokerLog, Retention
from standalone.copier.steps import StepRunner
from standalone.copier.threads import Threads
from standalone.copier.waits import Noted
from storage.model import Uuid
from storage.remote_storage_manager import RemoteStorageManager


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
