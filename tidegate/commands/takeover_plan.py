"""What `tidegate takeover` is going to do at one broker, and why it must not (docs/standalone.md#takeover).

Rule 1. No replica runs that was not taken over: its log begins above the tier, and as a leader it has all others begin
        there too, which deletes what the tier has below.
Rule 2. No replica leads that ends below the tier, or has nothing. It is rebuilt by a leader that runs already.
Rule 3. The dump is of this cluster, and no record of the metadata topic in these folders is newer.
Rule 4. Nothing is done at a broker of which a part cannot be.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.takeover import broker_folders
from standalone.takeover.broker_folders import PartitionFolder
from standalone.takeover.cluster_facts import PartitionFacts, RunningReplicas
from standalone.takeover.restored_lineage import LineageConflictError, restored_lineage
from storage.errors import CorruptObjectError, RemoteStorageError, TierError
from storage.indexes.leader_epochs import LeaderEpochs, parse_leader_epochs
from storage.model import IndexType, RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from storage.remote_storage_manager import RemoteStorageManager
from tidegate.commands.selection import finished, holes
from tidegate.commands.takeover_dump import DUMP_AGAIN, TakeoverDump


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """`running`: the replicas that run, of all of the tier's partitions."""

    dump: TakeoverDump
    storage_manager: RemoteStorageManager
    node_id: int
    running: Mapping[TopicIdPartition, RunningReplicas]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
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
        return place_of(self.folder.partition)

    @property
    def is_done(self) -> bool:
        return self.epochs == self.epochs_now and self.log_start == self.log_start_now


@dataclass(slots=True)
class Plan:
    """`rebuilt`: partitions that have nothing here, with the brokers that lead them. `others`: the other brokers that
    hold replicas of the plan's partitions."""

    restored: list[Restored] = field(default_factory=list)
    rebuilt: dict[TopicIdPartition, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    others: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Here:
    """A partition's folder at this broker. `log_start`: as the checkpoint names it."""

    log_dir: Path
    folder: PartitionFolder
    log_start: int | None


def place_of(partition: TopicIdPartition) -> str:
    """As it is written."""
    return f"{partition.topic}:{partition.partition}"


def make_plan(given: Given, log_dirs: Sequence[Path], topic: str | None) -> Plan:
    """Return what is to be done with the folders of one broker; OSError: a file cannot be read.

    Raises:
        TierError: the dump is not the newest, or a folder is not as a broker leaves it.
    """
    here = dict(_folders(log_dirs))
    _check_newest(given.dump, [each.folder for each in here.values()])
    plan, untouched = Plan(), dict[int, list[str]]()
    for partition in sorted(given.dump.catalog.partitions(), key=lambda each: (each.topic, each.partition)):
        segments = given.dump.catalog.list_segments(partition.topic_id, partition.partition)
        facts = given.dump.facts.get(partition, PartitionFacts(partition, (), None))
        is_ours = partition in here or given.node_id in facts.replicas
        if topic not in (None, partition.topic) or not is_ours or not finished(segments):
            continue
        plan.others |= {*facts.replicas} - {given.node_id}
        committed = facts.log_start or 0
        tier_start = max(finished(segments)[0].start_offset, committed)
        running = given.running.get(partition, RunningReplicas(-1, {}))
        for node_id, start in running.log_starts.items():
            if start > tier_start:
                begin = f"{place_of(partition)} begins at {start}, the tier at {tier_start}"
                untouched.setdefault(node_id, []).append(begin)
        try:
            _add(plan, given, partition, here.get(partition), segments, committed, _rebuilder(running, tier_start))
        except (LineageConflictError, CorruptObjectError, RemoteStorageError, TierError) as error:
            plan.problems.append(f"{place_of(partition)}: {error}")
    plan.problems += [_untouched(node_id, places) for node_id, places in sorted(untouched.items())]
    return plan


def _folders(log_dirs: Sequence[Path]) -> Iterator[tuple[TopicIdPartition, _Here]]:
    for log_dir in log_dirs:
        log_starts = broker_folders.read_log_starts(log_dir)
        for folder in broker_folders.partition_folders(log_dir):
            named = log_starts.get((folder.partition.topic, folder.partition.partition))
            yield folder.partition, _Here(log_dir, folder, named)


def _check_newest(dump: TakeoverDump, folders: Collection[PartitionFolder]) -> None:
    """Rule 3, as far as this broker has the metadata topic."""
    for folder in folders:
        number = folder.partition.partition
        if folder.partition.topic != METADATA_TOPIC:
            continue
        if folder.partition.topic_id != dump.metadata_topic_id or number >= len(dump.ends):
            raise TierError(f"{folder.path} is of another {METADATA_TOPIC} than the dump: {DUMP_AGAIN}")
        end = folder.log_range()[1]
        if end > dump.ends[number]:
            raise TierError(
                f"{folder.path} ends at offset {end}, and {dump.ends[number]} was the end when the dump was made: "
                f"{DUMP_AGAIN}"
            )


def _rebuilder(running: RunningReplicas, tier_start: int) -> int | None:
    """The leader by which a replica without the newest records is rebuilt (rule 2)."""
    begins = running.log_starts.get(running.leader_id)
    return None if begins is None or begins > tier_start else running.leader_id


def _untouched(node_id: int, places: Sequence[str]) -> str:
    more = f"; {len(places) - 1} more partitions likewise" if len(places) > 1 else ""
    return (
        f"broker {node_id} runs and was not taken over (its log of {places[0]}{more}): beside it brokers would delete"
        " the tier, so no rolling order works. Stop every broker that was not taken over, in order, and run this again"
    )


def _add(
    plan: Plan,
    given: Given,
    partition: TopicIdPartition,
    here: _Here | None,
    segments: Sequence[RemoteLogSegmentMetadata],
    committed: int,
    rebuilder: int | None,
) -> None:
    if partition not in given.dump.facts:
        raise TierError(f"the dump does not say who holds it: {DUMP_AGAIN}")
    end = -1 if here is None else here.folder.log_range()[1]
    tier_end = _newest(finished(segments)).end_offset
    if end <= tier_end and rebuilder is None:
        what = "nothing of it is in these folders" if here is None else f"the log here ends at {end}"
        raise TierError(
            f"{what}, and the tier's at {tier_end + 1}: this replica must not lead. Name all of the broker's log.dirs; "
            "if a disk was lost, take the other replicas over, start them, and run this again"
        )
    if here is not None:
        plan.restored.append(_restored(given.storage_manager, here, segments, committed))
    if end <= tier_end and rebuilder is not None:
        plan.rebuilt[partition] = rebuilder


def _restored(
    storage_manager: RemoteStorageManager, here: _Here, segments: Sequence[RemoteLogSegmentMetadata], committed: int
) -> Restored:
    own = here.folder.leader_epochs()
    whole = finished(segments)
    last = _newest(whole)
    checkpoint = storage_manager.fetch_index(last, IndexType.LEADER_EPOCH)
    log_begin, log_end = here.folder.log_range()
    epochs = restored_lineage(own, parse_leader_epochs(checkpoint), tier_end=last.end_offset, log_end_offset=log_end)
    unfinished = sum(each.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED for each in segments)
    gaps = [*holes(segments), *([(last.end_offset + 1, log_begin - 1)] if last.end_offset + 1 < log_begin else [])]
    warnings = [f"offsets {first} to {end} are neither in the tier nor at the broker" for first, end in gaps]
    if unfinished:
        warnings.append(f"{unfinished} segments are half copied: stop every copier before, in order")
    return Restored(
        log_dir=here.log_dir,
        folder=here.folder,
        epochs_now=own,
        epochs=epochs,
        log_start_now=here.log_start,
        log_start=_log_start(here.log_start, whole[0], log_begin, committed),
        warnings=tuple(warnings),
    )


def _newest(whole: Sequence[RemoteLogSegmentMetadata]) -> RemoteLogSegmentMetadata:
    return max(whole, key=lambda segment: (max(segment.segment_leader_epochs), segment.end_offset))


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
