"""Staged segments beside what Kafka's own recovery makes of the same `.log`: `rebuild_segment` of tools/oracle.

    rebuild = KafkaRebuild(oracle, folder)
    for segment in staged:      # of one partition, in log order
        assert rebuild.differences(segment) == {}

Every byte counts but where DIFFERENCES says so.
"""

from dataclasses import astuple
from pathlib import Path

from standalone.copier.staging import StagedSegment
from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.offset_index import INDEX_INTERVAL_BYTES
from storage.indexes.producer_snapshot import ProducerState, parse_producer_snapshot
from tests.support.oracle import Oracle


class KafkaRebuild:
    """One partition, whose epochs and producers Kafka's classes carry from segment to segment as ours do.

    Two files need not be the same. Where nothing was aborted a broker may have an empty `.txnindex`; the tier then has
    none (KIP-405). A `.snapshot` is compared by its producers: a broker writes them as its hash map gives them, and
    reads them in any order.
    """

    def __init__(self, oracle: Oracle, folder: Path, *, index_interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self._oracle = oracle
        self._folder = folder
        self._index_interval_bytes = index_interval_bytes
        self._lineage: list[tuple[int, int]] = []
        self._producers: tuple[ProducerState, ...] = ()

    def differences(self, segment: StagedSegment) -> dict[str, tuple[object, object]]:
        """Return what Kafka makes otherwise of the partition's next segment: by suffix our content and Kafka's."""
        kafkas = self._rebuilt(segment)
        name = f"{segment.start_offset:020}"
        aborts, snapshot = kafkas / f"{name}.txnindex", kafkas / f"{segment.end_offset + 1:020}.snapshot"
        ours = producer_states(segment)
        found: dict[str, tuple[object, object]] = {
            "log": (segment.files.log_segment.read_bytes(), (kafkas / f"{name}.log").read_bytes()),
            "index": (segment.files.offset_index.read_bytes(), (kafkas / f"{name}.index").read_bytes()),
            "timeindex": (segment.files.time_index.read_bytes(), (kafkas / f"{name}.timeindex").read_bytes()),
            "txnindex": (transaction_index(segment), aborts.read_bytes() if aborts.exists() else b""),
            "leader_epoch_checkpoint": (
                segment.files.leader_epoch_index,
                (kafkas / "leader-epoch-checkpoint").read_bytes(),
            ),
            "snapshot": (_by_id(ours), _by_id(parse_producer_snapshot(snapshot.read_bytes()))),
        }
        self._lineage, self._producers = list(parse_leader_epochs(segment.files.leader_epoch_index)), ours
        return {suffix: both for suffix, both in found.items() if both[0] != both[1]}

    def _rebuilt(self, segment: StagedSegment) -> Path:
        """A folder with the segment's log, and all else as Kafka has made it."""
        folder = self._folder / f"{segment.start_offset:020}"
        folder.mkdir(parents=True)
        (folder / f"{segment.start_offset:020}.log").write_bytes(segment.files.log_segment.read_bytes())
        request = {
            "do": "rebuild_segment",
            "folder": str(folder),
            "base_offset": segment.start_offset,
            "lineage": self._lineage,
            "producers": [astuple(state) for state in self._producers],
            "index_interval_bytes": self._index_interval_bytes,
        }
        (answer,) = self._oracle.ask([request])
        assert answer == {"size": segment.size_bytes, "dropped": 0}
        return folder


def producer_states(segment: StagedSegment) -> tuple[ProducerState, ...]:
    """Return what its producer snapshot holds."""
    assert segment.files.producer_snapshot_index is not None
    return parse_producer_snapshot(segment.files.producer_snapshot_index.read_bytes())


def transaction_index(segment: StagedSegment) -> bytes:
    """Empty where there is none."""
    path = segment.files.transaction_index
    return b"" if path is None else path.read_bytes()


def _by_id(states: tuple[ProducerState, ...]) -> dict[int, ProducerState]:
    return {state.producer_id: state for state in states}
