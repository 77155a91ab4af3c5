"""Segments staged from a real broker's answers: the log's bytes are the broker's own, the indexes what Kafka rebuilds.

From every partition of the differential test's broker: all codecs, transactions, several leader epochs, holes of a
compacted log, huge and tiny batches, logs that were cut inside a batch; and of one whose broker gives the timestamps.
"""

from pathlib import Path

from standalone.copier.staging import PartitionStaging, PartitionState, RollLimits, StagedSegment
from storage.indexes.leader_epochs import parse_leader_epochs
from tests.support.differential_world import DifferentialWorld
from tests.support.oracle import Oracle
from tests.support.raw_client import RawClient
from tests.support.rebuilt_segments import KafkaRebuild, transaction_index

SEGMENT_BYTES = 200_000
FETCH_BYTES = 300_000
FETCH_VERSION = 12
READ_COMMITTED = 1
LONG_AGO_MS = -30 * 86_400_000
"""By the staging's clock. It ends at 0, when no producer is forgotten yet, as by the rebuild none ever is."""


def test_every_log_of_a_real_broker_is_indexed_as_kafka_rebuilds_it(
    differential: DifferentialWorld, oracle: Oracle, tmp_path: Path
) -> None:
    aborts = two_epochs = segments = 0
    with RawClient(*differential.broker_address) as client:
        for known in differential.partitions:
            folder = tmp_path / f"{known.topic}-{known.partition}"
            staged = _staged(client, folder, known.topic, known.partition, known.offsets.log_start_offset)
            rebuild = KafkaRebuild(oracle, folder / "kafkas")
            found = {segment.start_offset: rebuild.differences(segment) for segment in staged}
            assert not any(found.values()), f"{folder.name}: {found}"
            if staged:
                lineage = parse_leader_epochs(staged[-1].files.leader_epoch_index)
                is_copied = [epoch for epoch, start in known.epochs if start <= staged[-1].end_offset]
                assert [epoch for epoch, _ in lineage] == is_copied, folder.name
            segments += len(staged)
            aborts += sum(bool(transaction_index(segment)) for segment in staged)
            two_epochs += sum(len(segment.segment_leader_epochs) > 1 for segment in staged)
    assert segments > len(differential.partitions)
    assert aborts
    assert two_epochs


def _staged(client: RawClient, folder: Path, topic: str, partition: int, start_offset: int) -> list[StagedSegment]:
    """Everything from an offset to the last stable one."""
    found: list[StagedSegment] = []
    limits = RollLimits(segment_bytes=SEGMENT_BYTES)
    staging = PartitionStaging(folder / "ours", limits, PartitionState(next_offset=start_offset))
    while True:
        target = (topic, None, partition, staging.next_offset, FETCH_BYTES)
        (answer,) = client.fetch(FETCH_VERSION, [target], isolation=READ_COMMITTED, max_wait_ms=0).partitions
        assert answer.error_code == 0
        if staging.next_offset >= answer.last_stable_offset:
            return [*found, *staging.roll_if_due(now_ms=0)]
        found += staging.take(answer.records, now_ms=LONG_AGO_MS)
