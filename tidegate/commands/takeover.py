"""`tidegate takeover FILE --log-dir DIR`: prepare a broker that is down to own the tier (docs/standalone.md#takeover).

A broker that turns remote storage on over a tier of ours deletes it: segments of epochs that its own
`leader-epoch-checkpoint` no longer knows are garbage to it, and so are those below its log start. So both are restored
from the tier, for each partition that is at the broker and in the tier by the same topic id:

- the epochs of what the broker has deleted, from the last segment's checkpoint (`restored_lineage`);
- the log start, where `log-start-offset-checkpoint` names one that is above the tier's. That is also what DeleteRecords
  has committed, which the brokers that run tell; with `--offline` nobody does.

Nothing is written unless all partitions can be restored. The broker cannot start meanwhile, since its lock is held.
A second run finds nothing left to do.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import trio

from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.copier.index_files import encode_leader_epochs
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.log_starts import LOG_START_GROUP, CommittedLogStarts
from standalone.takeover import broker_folders
from standalone.takeover.broker_folders import LEADER_EPOCHS, LOG_STARTS, PartitionFolder
from standalone.takeover.restored_lineage import LineageConflictError, restored_lineage
from storage.config.model import Mode
from storage.errors import CorruptObjectError, MetadataRecordError, RemoteStorageError, TierError
from storage.indexes.leader_epochs import LeaderEpochs, parse_leader_epochs
from storage.metadata.catalog import Catalog
from storage.metadata.record_batches import parse_batches
from storage.metadata.serde import decode
from storage.model import IndexType, RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from storage.registry import open_remote_storage_manager
from storage.remote_storage_manager import RemoteStorageManager
from tidegate import exit_codes
from tidegate.commands.output import Progress, print_json, print_table
from tidegate.commands.selection import finished, holes
from tidegate.commands.tier import open_tier, run_command
from tidegate.config.model import Config

EPOCHS_SHOWN_MAX: Final = 4

LOG_STARTS_UNKNOWN: Final = (
    f"the offsets of group {LOG_START_GROUP} cannot be known with --offline: what DeleteRecords has deleted beyond the "
    "tier's first segment is there again, unless a copier has deleted its segments"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverOptions:
    """`topic` None: all. `is_offline`: the metadata topic is read from the log folders, since no broker runs."""

    log_dirs: Sequence[Path]
    topic: str | None = None
    writes: bool = False
    is_offline: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tier:
    """`log_starts`: what is committed; None: that cannot be known."""

    catalog: Catalog
    log_starts: Mapping[TopicIdPartition, int] | None
    storage_manager: RemoteStorageManager
    metadata_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Restored:
    """One partition, now and then. A log start of None: not named in the checkpoint."""

    log_dir: Path
    folder: PartitionFolder
    epochs_now: LeaderEpochs
    epochs: LeaderEpochs
    log_start_now: int | None
    log_start: int | None
    warnings: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.folder.partition.topic}:{self.folder.partition.partition}"

    @property
    def is_done(self) -> bool:
        return self.epochs == self.epochs_now and self.log_start == self.log_start_now


def run(config: Config, options: TakeoverOptions, out: TextIO) -> int:
    """Show the plan, and write it if `writes`; exit_codes.FOUND_WRONG if the broker cannot be prepared."""
    if config.mode is not Mode.STANDALONE:
        print("WRONG   mode=replica: the brokers own this tier already", file=out)
        return exit_codes.USAGE
    return run_command(lambda: _take_over(config, options, out))


async def _take_over(config: Config, options: TakeoverOptions, out: TextIO) -> int:
    with broker_folders.locked(options.log_dirs):
        async with _opened(config, options) as tier:
            plan, problems = await trio.to_thread.run_sync(_plan, tier, options)
            if not plan and not problems:
                raise TierError(
                    "no partition in these folders is in the tier by its topic id: name all of the broker's log.dirs, "
                    "and see `tidegate ls FILE`"
                )
            if options.writes and not problems:
                await trio.to_thread.run_sync(_write, plan)
            if options.as_json:
                print_json(out, _document(plan, problems, options, tier))
            else:
                _show(plan, problems, out)
                if tier.log_starts is None:
                    print(f"warning {LOG_STARTS_UNKNOWN}", file=out)
                _tell_outcome(plan, problems, options, tier.metadata_partitions, out)
    return exit_codes.FOUND_WRONG if problems else exit_codes.DONE


@asynccontextmanager
async def _opened(config: Config, options: TakeoverOptions) -> AsyncIterator[_Tier]:
    if not options.is_offline:
        with Progress("reading metadata", "records") as progress:
            async with open_tier(config, told=progress.told) as tier:
                progress.close()
                if tier.problems():
                    raise TierError(tier.problems()[0])
                committed = CommittedLogStarts(GroupOffsets(tier.upstream, LOG_START_GROUP))
                yield _Tier(
                    catalog=tier.catalog,
                    log_starts=await committed.fetch(tier.catalog.partitions()),
                    storage_manager=tier.storage_manager,
                    metadata_partitions=tier.metadata.description.partition_count,
                )
        return
    storage_manager = open_remote_storage_manager(
        config.remote_storage_manager_class_name, config.remote_storage_config, prefix=config.remote_storage_prefix
    )
    try:
        catalog = Catalog(config.catalog.segments_max)
        count = await trio.to_thread.run_sync(_read_metadata, options.log_dirs, catalog)
        yield _Tier(catalog=catalog, log_starts=None, storage_manager=storage_manager, metadata_partitions=count)
    finally:
        storage_manager.close()


def _read_metadata(log_dirs: Sequence[Path], catalog: Catalog) -> int:
    """Read the metadata topic's logs; how many partitions it has.

    Raises:
        TierError: not all of it is here, or a record cannot be read.
    """
    folders = {
        folder.partition.partition: folder.path
        for log_dir in log_dirs
        for folder in broker_folders.partition_folders(log_dir)
        if folder.partition.topic == METADATA_TOPIC
    }
    if not folders or set(folders) != set(range(len(folders))):
        raise TierError(
            f"{METADATA_TOPIC} is not in these folders as a whole: with --offline they must be all of the log.dirs of "
            "a broker that has all of its partitions; without, the other brokers are asked"
        )
    for number, folder in sorted(folders.items()):
        for log in sorted(folder.glob("*.log")):
            try:
                _apply_all(log.read_bytes(), number, catalog)
            except (RemoteStorageError, MetadataRecordError) as error:
                raise TierError(f"{log}: {error}") from error
    return len(folders)


def _apply_all(data: bytes, number: int, catalog: Catalog) -> None:
    for event in parse_batches(data, number).records:
        if event.value is not None:
            catalog.apply(decode(event.value), initialized=False, is_keyed=event.key is not None)
        elif event.key is not None:
            catalog.apply_tombstone(event.key, initialized=False)


# --- the plan ---


def _plan(tier: _Tier, options: TakeoverOptions) -> tuple[list[_Restored], list[str]]:
    """What is to be done, and why some of it cannot be."""
    plan: list[_Restored] = []
    problems: list[str] = []
    for log_dir in options.log_dirs:
        log_starts = broker_folders.read_log_starts(log_dir)
        for folder in broker_folders.partition_folders(log_dir):
            partition = folder.partition
            if options.topic not in (None, partition.topic):
                continue
            segments = tier.catalog.list_segments(partition.topic_id, partition.partition)
            if not finished(segments):
                continue
            log_start = log_starts.get((partition.topic, partition.partition))
            try:
                plan.append(_restored(tier, log_dir, folder, segments, log_start))
            except (LineageConflictError, CorruptObjectError, RemoteStorageError, TierError) as error:
                problems.append(f"{partition.topic}:{partition.partition}: {error}")
    return plan, problems


def _restored(
    tier: _Tier,
    log_dir: Path,
    folder: PartitionFolder,
    segments: Sequence[RemoteLogSegmentMetadata],
    log_start: int | None,
) -> _Restored:
    own = folder.leader_epochs()
    whole = finished(segments)
    committed = (tier.log_starts or {}).get(folder.partition, 0)
    last = max(whole, key=lambda segment: (max(segment.segment_leader_epochs), segment.end_offset))
    checkpoint = tier.storage_manager.fetch_index(last, IndexType.LEADER_EPOCH)
    log_begin, log_end = folder.log_range()
    epochs = restored_lineage(own, parse_leader_epochs(checkpoint), tier_end=last.end_offset, log_end_offset=log_end)
    unfinished = sum(each.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED for each in segments)
    gaps = [*holes(segments), *([(last.end_offset + 1, log_begin - 1)] if last.end_offset + 1 < log_begin else [])]
    warnings = [f"offsets {first} to {end} are neither in the tier nor at the broker" for first, end in gaps]
    if unfinished:
        warnings.append(f"{unfinished} segments are half copied: stop every copier before, in order")
    return _Restored(
        log_dir=log_dir,
        folder=folder,
        epochs_now=own,
        epochs=epochs,
        log_start_now=log_start,
        log_start=_log_start(log_start, whole[0], log_begin, committed),
        warnings=tuple(warnings),
    )


def _log_start(named: int | None, first: RemoteLogSegmentMetadata, log_begin: int, committed: int) -> int | None:
    """The log start for the checkpoint.

    One inside the tier's first segment is of DeleteRecords, and stays. Any other above the tier is where the broker's
    own log begins: it comes into the checkpoint with `remote.storage.enable`, and would have the tier deleted.
    """
    start = max(first.start_offset, committed)
    if named is not None and start <= named <= first.end_offset:
        return named
    is_as_it_should = max(named or 0, log_begin) <= first.start_offset == start
    return named if is_as_it_should else start


# --- what is done ---


def _write(plan: Sequence[_Restored]) -> None:
    for each in plan:
        if each.epochs != each.epochs_now:
            broker_folders.replace(each.folder.path / LEADER_EPOCHS, encode_leader_epochs(each.epochs))
    for log_dir in dict.fromkeys(each.log_dir for each in plan):
        now = broker_folders.read_log_starts(log_dir)
        then = dict(now)
        for each in plan:
            if each.log_dir == log_dir and each.log_start is not None:
                then[each.folder.partition.topic, each.folder.partition.partition] = each.log_start
        if then != now:
            broker_folders.replace(log_dir / LOG_STARTS, broker_folders.encode_log_starts(then))


def _document(
    plan: Sequence[_Restored], problems: Sequence[str], options: TakeoverOptions, tier: _Tier
) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "topic": each.folder.partition.topic,
                "partition": each.folder.partition.partition,
                "folder": str(each.folder.path),
                "leader_epochs_before": each.epochs_now,
                "leader_epochs": each.epochs,
                "log_start_before": each.log_start_now,
                "log_start": each.log_start,
                "warnings": each.warnings,
            }
            for each in plan
        ],
        "problems": list(problems),
        "written": options.writes and not problems,
        "metadata_partitions": tier.metadata_partitions,
        "committed_log_starts_known": tier.log_starts is not None,
    }


def _show(plan: Sequence[_Restored], problems: Sequence[str], out: TextIO) -> None:
    headings = ("partition", "leader epochs at the broker", "and with the tier's", "log start", "and then")
    rows = [
        (
            each.place,
            _shown(each.epochs_now),
            "as they are" if each.epochs == each.epochs_now else _shown(each.epochs),
            "not named" if each.log_start_now is None else str(each.log_start_now),
            "as it is" if each.log_start == each.log_start_now else str(each.log_start),
        )
        for each in plan
    ]
    if rows:
        print_table(out, headings, rows)
    for each in plan:
        for warning in each.warnings:
            print(f"warning {each.place}: {warning}", file=out)
    for problem in problems:
        print(f"WRONG   {problem}", file=out)


def _shown(epochs: LeaderEpochs) -> str:
    """`epoch@offset`, the first and the last."""
    words = [f"{epoch}@{start_offset}" for epoch, start_offset in epochs]
    if len(words) > EPOCHS_SHOWN_MAX:
        words[EPOCHS_SHOWN_MAX - 1 : -1] = [f"… {len(words) - EPOCHS_SHOWN_MAX} more …"]
    return " ".join(words) or "none"


def _tell_outcome(
    plan: Sequence[_Restored], problems: Sequence[str], options: TakeoverOptions, metadata_partitions: int, out: TextIO
) -> None:
    count = sum(not each.is_done for each in plan)
    if problems:
        print(
            "nothing was written: a broker must not own a part of the tier only; docs/standalone.md#takeover", file=out
        )
        return
    if not count:
        outcome = "nothing is left to do: the broker's checkpoints are those of the tier"
    elif not options.writes:
        outcome = f"{count} partitions are to be restored; this was a dry run: --yes does it"
    else:
        outcome = f"{count} partitions restored; what the files held is beside them, *{broker_folders.BACKUP_SUFFIX}"
    print(f"ok      {outcome}", file=out)
    print(
        "next    the broker must load its logs with remote storage on: remote.storage.enable=true set on the topics "
        f"before it starts, and rlmm.config.remote.log.metadata.topic.num.partitions={metadata_partitions} "
        "(docs/standalone.md#takeover)",
        file=out,
    )
