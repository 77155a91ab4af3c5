"""A segment's indexes as the audit takes them: fetched, parsed, and made into checks that follow the walk of the log.

What is wrong with an index by itself, or by the metadata alone, is found here, also when the log is not walked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from storage.checks.finding import Finding, FindingKind, segment_finding
from storage.checks.index_checks import BatchCheck, OffsetIndexCheck, ProducerSnapshotCheck, TimeIndexCheck, cut_problem
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.leader_epochs import LeaderEpochs, parse_leader_epochs
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import TransactionIndex
from storage.log.transaction_check import TransactionIndexCheck
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.object_store.retries import PATIENT_ATTEMPTS_MAX, Wait, call_with_retries
from storage.remote_storage_manager import OpenedSegment

REQUIRED = (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.LEADER_EPOCH, IndexType.PRODUCER_SNAPSHOT)
"""What Kafka copies of every segment; the transaction index only if a transaction was aborted in it."""


@dataclass(slots=True)
class SegmentIndexes:
    """The indexes of one segment. `names`: of the objects that they lie in, for messages, also of absent ones."""

    metadata: RemoteLogSegmentMetadata
    names: Mapping[IndexType, str]
    findings: list[Finding] = field(default_factory=list)
    offsets: OffsetIndexCheck | None = None
    times: TimeIndexCheck | None = None
    offset_index: OffsetIndex | None = None
    _good: int = 0
    """Indexes with content that could be parsed, and below those that could not be."""
    _broken: int = 0
    _checks: dict[IndexType, BatchCheck] = field(default_factory=dict)

    def load(self, opened: OpenedSegment, index_type: IndexType, wait: Wait) -> None:
        """Read one index, which is there by what the format says.

        Raises:
            RemoteStorageError: the store's trouble did not pass.
        """
        try:
            data = call_with_retries(
                lambda: opened.fetch_index(index_type), self.metadata, wait, attempts_max=PATIENT_ATTEMPTS_MAX
            )
            _PARSERS[index_type](self, data)
            self._good += bool(data)
        except CorruptObjectError as error:
            self._broken += 1
            self.add(FindingKind.INDEX, index_type, str(error))
        except RemoteResourceNotFoundError as error:
            self.add(FindingKind.INDEX_MISSING, index_type, str(error))

    @property
    def none_readable(self) -> bool:
        """Return whether several were tried and not one makes sense."""
        return self._broken > 1 and not self._good

    def forget(self, detail: str) -> None:
        """Put one finding in the place of all: it is the object's fault."""
        object_name = next(iter(self.names.values()), None)
        kind = FindingKind.OBJECT_CORRUPT
        self.findings = [segment_finding(kind, self.metadata.segment_id, detail, object_name=object_name)]
        self._checks.clear()

    def without(self, index_type: IndexType) -> None:
        """There is no such index, and there need not be one."""
        if index_type is IndexType.TRANSACTION:
            self._checks[index_type] = TransactionIndexCheck((), self.metadata.start_offset)

    def add(self, kind: FindingKind, index_type: IndexType, detail: str, position: int | None = None) -> None:
        """A finding about an index."""
        shown = f"{index_type.name} index: {detail}" if not detail.startswith(index_type.name) else detail
        self.findings.append(
            segment_finding(
                kind, self.metadata.segment_id, shown, object_name=self.names.get(index_type), position=position
            )
        )

    @property
    def checks(self) -> list[BatchCheck]:
        """Return the checks that see every batch."""
        return list(self._checks.values())

    def conclude(self) -> list[Finding]:
        """After the walk: all findings, one for each index at most."""
        for index_type, check in self._checks.items():
            problems = check.problems
            if problems.first is not None:
                self.add(FindingKind.INDEX, index_type, problems.sentence(), problems.first[0])
        if self.offsets is not None and self.times is not None and self.offsets.problems.first is None:
            cut = cut_problem(self.offsets, self.times) if self.times.problems.first is None else None
            if cut is not None:
                self.add(FindingKind.INDEX, IndexType.OFFSET, cut)
        return self.findings

    def take_offsets(self, data: bytes) -> None:
        self.offset_index = OffsetIndex(data, self.metadata.start_offset, IndexType.OFFSET.name)
        self.offsets = OffsetIndexCheck(data, self.metadata.start_offset)
        self._checks[IndexType.OFFSET] = self.offsets

    def take_times(self, data: bytes) -> None:
        TimeIndex(data, self.metadata.start_offset, IndexType.TIMESTAMP.name)
        self.times = TimeIndexCheck(data, self.metadata.start_offset)
        self._checks[IndexType.TIMESTAMP] = self.times

    def take_transactions(self, data: bytes) -> None:
        index = TransactionIndex(data, IndexType.TRANSACTION.name)
        if len(index) and self.metadata.txn_index_empty:
            self.add(
                FindingKind.INDEX,
                IndexType.TRANSACTION,
                f"it has {len(index)} entries, the metadata says that it is empty",
            )
            return
        self._checks[IndexType.TRANSACTION] = TransactionIndexCheck(index, self.metadata.start_offset)

    def take_snapshot(self, data: bytes) -> None:
        states = parse_producer_snapshot(data, IndexType.PRODUCER_SNAPSHOT.name)
        self._checks[IndexType.PRODUCER_SNAPSHOT] = ProducerSnapshotCheck(states, self.metadata)

    def take_leader_epochs(self, data: bytes) -> None:
        problem = leader_epochs_problem(parse_leader_epochs(data, IndexType.LEADER_EPOCH.name), self.metadata)
        if problem is not None:
            self.add(FindingKind.INDEX, IndexType.LEADER_EPOCH, problem)


_PARSERS: Mapping[IndexType, Callable[[SegmentIndexes, bytes], None]] = {
    IndexType.OFFSET: SegmentIndexes.take_offsets,
    IndexType.TIMESTAMP: SegmentIndexes.take_times,
    IndexType.TRANSACTION: SegmentIndexes.take_transactions,
    IndexType.PRODUCER_SNAPSHOT: SegmentIndexes.take_snapshot,
    IndexType.LEADER_EPOCH: SegmentIndexes.take_leader_epochs,
}


def leader_epochs_problem(checkpoint: LeaderEpochs, metadata: RemoteLogSegmentMetadata) -> str | None:
    """A sentence if a checkpoint is not of this segment: it ends with the segment's own epochs, which begin in it where
    the metadata says, but for the first, which may have begun before (docs/kafka-tier.md#lineage)."""
    segment = metadata.segment_leader_epochs
    first_epoch = min(segment)
    starts = dict(checkpoint)
    for epoch, start in segment.items():
        if epoch not in starts:
            return f"it has no epoch {epoch}, which the metadata has from offset {start}"
        if starts[epoch] > start or (epoch != first_epoch and starts[epoch] != start):
            return f"its epoch {epoch} begins at offset {starts[epoch]}, in the metadata at {start}"
    for epoch, start in checkpoint:
        if start > metadata.end_offset:
            return f"its epoch {epoch} begins at offset {start}, the segment ends at {metadata.end_offset}"
        if epoch not in segment and epoch > first_epoch and start >= metadata.start_offset:
            return f"it has epoch {epoch} from offset {start}, which the metadata does not have"
    return None
