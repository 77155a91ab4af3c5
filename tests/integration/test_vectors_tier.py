"""A frozen tier that a real broker wrote: what is known of it without an object of the tier.

What is read from it: test_vectors_tier_replay.py.
"""

from dataclasses import replace
from pathlib import Path

from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex
from storage.model import RemoteLogSegmentState
from tests.support.frozen_tier import NAMES, Recorded
from tests.support.vectors import vector

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def left_by_the_broker(name: str, suffix: str) -> Path:
    (path,) = vector("aiven-tier", "broker", name).glob(f"*{suffix}")
    return path


# --- lineage ---


def test_the_lineage_holds_exactly_the_finished_segments() -> None:
    for recorded in map(Recorded, NAMES):
        finished = [(entry["start"], entry["end"]) for entry in recorded.said["segments"]]
        held = [
            (metadata.start_offset, metadata.end_offset)
            for metadata in recorded.segments
            if recorded.lineage.holds(metadata, max(metadata.start_offset, recorded.log_start))
        ]
        assert held == finished
        for metadata in recorded.segments:
            from_offset = max(metadata.start_offset, recorded.log_start)
            longer = replace(metadata, end_offset=recorded.high_watermark)
            assert not recorded.lineage.holds(longer, from_offset), "it ends behind the log"


def test_a_branch_that_was_cut_is_not_on_the_lineage() -> None:
    recorded = Recorded("epochs-0")
    of_three_epochs = recorded.segments[0]
    assert of_three_epochs.segment_leader_epochs == {0: 0, 2: 600, 4: 950}
    for epochs in ({0: 0, 2: 601, 4: 950}, {0: 0, 2: 600, 6: 950}, {0: 0, 4: 950}, {0: 0, 2: 600}):
        assert not recorded.lineage.holds(replace(of_three_epochs, segment_leader_epochs=epochs))


def test_the_checkpoint_that_the_broker_left_is_the_lineage_that_it_tells() -> None:
    for recorded in map(Recorded, NAMES):
        checkpoint = parse_leader_epochs(left_by_the_broker(recorded.name, "leader-epoch-checkpoint").read_bytes())
        ends = [*(start for _, start in checkpoint[1:]), recorded.high_watermark]
        told = {epoch: answer for epoch, answer in recorded.epoch_answers.items() if answer[0] == epoch}
        assert told == {epoch: (epoch, end) for (epoch, _), end in zip(checkpoint, ends, strict=True)}
        assert checkpoint[0][1] == recorded.log_start


def test_the_highest_offset_is_the_latest_tiered_one() -> None:
    for recorded in map(Recorded, NAMES):
        for answers in recorded.said["list_offsets"].values():
            latest_tiered = answers["-5"]
            highest = recorded.catalog.highest_offset_for_epoch(
                recorded.key.topic_id, recorded.key.partition, latest_tiered["epoch"]
            )
            assert highest == latest_tiered["offset"] == recorded.local_log_start - 1


# --- aborted transactions ---


def test_the_transaction_index_that_the_broker_left_is_read() -> None:
    index = TransactionIndex(left_by_the_broker("txn-0", ".txnindex").read_bytes())
    (abort,) = index
    assert isinstance(abort, AbortedTransaction)
    assert (abort.producer_id, abort.first_offset, abort.last_offset) == (5004, 8646, 8656)
