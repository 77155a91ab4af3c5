"""The part of `check` that asks the object store: does it answer, and can segments of every age be opened?

Oldest and newest segment are read; of those between, SEGMENTS_MAX spread over the time of their copies are opened,
since a key pair that was rotated away or a bucket's life-cycle rule shows in old ones only. With `--all` every one is.
Errors of one kind are one line: a store that is gone is not two hundred faults.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from metrics.troubles import TroubleId
from protocol.record_batches import HEADER_BYTES, MAGIC_POSITION
from storage.config.model import Mode
from storage.config.registry import folder_of, open_remote_storage_manager
from storage.errors import CorruptObjectError, IcebergSegmentError, RemoteStorageError
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager
from tidegate.commands.check_writing import check_writing
from tidegate.commands.report import Report
from tidegate.config.model import Config
from tidegate.reasons import Reasons
from tidegate.start_lines import python_tls, store_words
from tidegate.upkeep import try_tier

SEGMENTS_MAX = 200
AT_ONCE = 16
"""Segments that are opened side by side; a store answers after tens of milliseconds."""
PROGRESS_EVERY = 500


def check_tier(config: Config, catalog: Catalog, report: Report, *, opens_all: bool) -> bool:
    """Blocking. False: the plug-in's configuration is wrong, so that `serve` would not start."""
    try:
        manager = open_remote_storage_manager(
            config.remote_storage_manager_class_name, config.remote_storage_config, prefix=config.remote_storage_prefix
        )
    except RemoteStorageError as error:
        report.wrong(str(error))
        return False
    try:
        _check_store(config, manager, catalog, report, opens_all)
    finally:
        manager.close()
    return True  # whatever the store says: `serve` waits for it


def _check_store(
    config: Config, manager: RemoteStorageManager, catalog: Catalog, report: Report, opens_all: bool
) -> None:
    try:
        manager.warm_up()
        manager.ask()
    except RemoteStorageError as error:
        report.wrong(f"the store does not answer: {Reasons(config).segment(error)}", TroubleId.TIER_UNAVAILABLE)
        return
    words = ", ".join(f"{name} {value}" for name, value in store_words(config).items())
    report.ok(f"the store answers ({words})")
    if (slower := python_tls(config)) is not None:
        (report.warning if config.tier.tls_native else report.ok)(slower)
    if config.mode is Mode.STANDALONE and (config.copy.is_enabled or config.copy.topics is not None):
        check_writing(folder_of(manager), report)
    ends = _oldest_and_newest(catalog)
    if not ends:
        report.ok("no finished segment is known yet, so no object was read")
        return
    troubles = _Troubles(config, _trouble_of(manager, catalog))
    for segment in ends:
        _read(manager, segment, troubles, report)
    chosen: Iterable[RemoteLogSegmentMetadata] = catalog.finished_segments()
    total = catalog.finished_count
    if not opens_all:
        chosen, total = _spread(catalog), min(SEGMENTS_MAX, total)
    opened = _open_all(manager, chosen, total, troubles, report)
    troubles.tell(report, opened)
    if not troubles.first:
        known = catalog.finished_count
        rest = "" if opened == known else f" of {known}, spread over time (--all opens every one)"
        report.ok(f"{opened} segments were opened{rest}")


def _trouble_of(manager: RemoteStorageManager, catalog: Catalog) -> TroubleId:
    """Return what `serve` would name it that segments cannot be read."""
    try:
        try_tier(manager, catalog.some_segments)
    except RemoteStorageError:
        return TroubleId.TIER_UNAVAILABLE
    return TroubleId.TIER_READS_FAIL


class _Troubles:
    """What went wrong, by kind of error: what was said first, and in how many of the segments that were opened."""

    def __init__(self, config: Config, trouble: TroubleId) -> None:
        self.config = config
        self._trouble = trouble
        self._reasons = Reasons(config)
        self.first: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def note(self, segment: RemoteLogSegmentMetadata, error: RemoteStorageError, *, is_opened: bool) -> None:
        kind = type(error).__name__
        self._counts[kind] += is_opened
        self.first.setdefault(kind, f"segment {segment.segment_id}: {self._reasons.segment(error)}")

    def tell(self, report: Report, opened: int) -> None:
        """A line for each kind."""
        for kind, sentence in self.first.items():
            others = self._counts[kind] - 1
            more = f" (and {others} more like it, of {opened} that were opened)" if others > 0 else ""
            if kind == CorruptObjectError.__name__ and self._counts[kind] == opened:
                more += f"; as all of them are, {self._reasons.first_look}"
            if kind == IcebergSegmentError.__name__:
                report.warning(f"{sentence}{more}", TroubleId.ICEBERG_SEGMENTS)
            else:
                report.wrong(f"{sentence}{more}", self._trouble)


def _read(
    manager: RemoteStorageManager, segment: RemoteLogSegmentMetadata, troubles: _Troubles, report: Report
) -> None:
    try:
        data = manager.fetch_log_segment(segment, 0, HEADER_BYTES - 1)
    except RemoteStorageError as error:
        troubles.note(segment, error, is_opened=False)
        return
    if len(data) <= MAGIC_POSITION or data[MAGIC_POSITION] != 2:
        report.wrong(
            f"segment {segment.segment_id} does not begin with a record batch: another program wrote it, or "
            f"{troubles.config.remote_storage_prefix}encryption.* and the class are not the broker's",
            TroubleId.TIER_READS_FAIL,
        )
    else:
        report.ok(f"segment {segment.segment_id}, offsets {segment.start_offset} to {segment.end_offset}: read")


def _open_all(
    manager: RemoteStorageManager,
    segments: Iterable[RemoteLogSegmentMetadata],
    total: int,
    troubles: _Troubles,
    report: Report,
) -> int:
    def attempt(segment: RemoteLogSegmentMetadata) -> RemoteStorageError | None:
        try:
            manager.open_log_segment(segment)
            if not manager.has_manifests:
                manager.fetch_log_segment(segment, 0, HEADER_BYTES - 1)
        except RemoteStorageError as error:
            return error
        return None

    opened = 0
    left = iter(segments)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while batch := list(islice(left, PROGRESS_EVERY)):
            for segment, error in zip(batch, threads.map(attempt, batch), strict=True):
                opened += 1
                if error is not None:
                    troubles.note(segment, error, is_opened=True)
            report.progress(f"{opened} of {total} segments opened")
    report.progress("")
    return opened


def _oldest_and_newest(catalog: Catalog) -> list[RemoteLogSegmentMetadata]:
    oldest = newest = None
    for segment in catalog.finished_segments():
        if oldest is None or segment.event_timestamp_ms < oldest.event_timestamp_ms:
            oldest = segment
        if newest is None or segment.event_timestamp_ms >= newest.event_timestamp_ms:
            newest = segment
    if oldest is None or newest is None:
        return []
    return [oldest] if oldest is newest else [oldest, newest]


def _spread(catalog: Catalog) -> Iterator[RemoteLogSegmentMetadata]:
    """SEGMENTS_MAX at most, at equal steps in the order of their copies. Holds two numbers a segment."""
    by_time = sorted((each.event_timestamp_ms, number) for number, each in enumerate(catalog.finished_segments()))
    last = max(len(by_time) - 1, 1)
    steps = min(SEGMENTS_MAX, len(by_time))
    chosen = {by_time[step * last // max(steps - 1, 1)][1] for step in range(steps)} if by_time else set()
    return (each for number, each in enumerate(catalog.finished_segments()) if number in chosen)
