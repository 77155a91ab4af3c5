"""A frozen tier that a real broker wrote, and that broker's own answers: what needs no object of the tier.

The catalog is made of the broker's metadata records. Where a test reads, it reads the local log that the broker
left, as one segment: a read from the tier and one from the local log follow the same rules.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from proxy.fetch.assembly import plan_fetch
from proxy.fetch.known import Frontier
from storage.indexes.leader_epochs import parse_leader_epochs
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState
from storage.reader import OffsetNotInTierError
from tests.support.frozen_tier import NAMES, Recorded, fetch_request, open_frozen_tier, recorded_answers
from tests.support.segments import uuid_of
from tests.support.tier import MemoryStore, open_reader
from tests.support.vectors import vector

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture(params=NAMES)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(request.param)


def left_by_the_broker(name: str, suffix: str) -> Path:
    (path,) = vector("aiven-tier", "broker", name).glob(f"*{suffix}")
    return path


# --- lineage ---


def test_the_lineage_holds_exactly_the_finished_segments(recorded: Recorded) -> None:
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


@pytest.mark.parametrize("name", NAMES)
def test_the_checkpoint_that_the_broker_left_is_the_lineage_that_it_tells(name: str) -> None:
    recorded = Recorded(name)
    checkpoint = parse_leader_epochs(left_by_the_broker(name, "leader-epoch-checkpoint").read_bytes())
    ends = [*(start for _, start in checkpoint[1:]), recorded.high_watermark]
    told = {epoch: answer for epoch, answer in recorded.epoch_answers.items() if answer[0] == epoch}
    assert told == {epoch: (epoch, end) for (epoch, _), end in zip(checkpoint, ends, strict=True)}
    assert checkpoint[0][1] == recorded.log_start


# --- which segment ---


async def test_every_recorded_fetch_is_led_to_the_segment_that_answered_it(
    nursery: trio.Nursery, recorded: Recorded
) -> None:
    reader = open_frozen_tier(nursery).reader
    fetches = recorded.fetches()
    assert len(fetches) > 400
    for fetch in fetches:
        segment = reader.segment_for(recorded.key, fetch["offset"], recorded.lineage)
        assert segment.start_offset <= fetch["base"] <= fetch["offset"] <= segment.end_offset
        assert fetch["last"] <= segment.end_offset
        assert fetch["len"] <= segment.segment_size_bytes
        assert segment.state is FINISHED


async def test_offsets_of_the_local_log_are_in_no_segment(nursery: trio.Nursery, recorded: Recorded) -> None:
    reader = open_frozen_tier(nursery).reader
    for offset in (recorded.local_log_start, recorded.high_watermark - 1, recorded.high_watermark, 2**62):
        with pytest.raises(OffsetNotInTierError):
            reader.segment_for(recorded.key, offset, recorded.lineage)


def test_the_highest_offset_is_the_latest_tiered_one(recorded: Recorded) -> None:
    for answers in recorded.said["list_offsets"].values():
        latest_tiered = answers["-5"]
        highest = recorded.catalog.highest_offset_for_epoch(
            recorded.key.topic_id, recorded.key.partition, latest_tiered["epoch"]
        )
        assert highest == latest_tiered["offset"] == recorded.local_log_start - 1


def test_a_time_is_looked_for_in_the_first_segment_that_is_not_older(recorded: Recorded) -> None:
    checked = 0
    for asked in recorded.said["list_offsets_by_time"]:
        answer = asked["iso0"]
        if not 0 <= answer["offset"] < recorded.local_log_start:
            continue
        candidate = next(
            metadata
            for metadata in recorded.segments
            if metadata.max_timestamp_ms >= asked["query"] and metadata.end_offset >= recorded.log_start
        )
        assert candidate.start_offset <= answer["offset"] <= candidate.end_offset
        assert answer["timestamp"] <= candidate.max_timestamp_ms
        checked += 1
    assert checked > 10


# --- aborted transactions ---


def test_the_transaction_index_that_the_broker_left_is_read() -> None:
    index = TransactionIndex(left_by_the_broker("txn-0", ".txnindex").read_bytes())
    (abort,) = index
    assert isinstance(abort, AbortedTransaction)
    assert (abort.producer_id, abort.first_offset, abort.last_offset) == (5004, 8646, 8656)


# --- records and budgets ---


@pytest.mark.parametrize("name", NAMES)
async def test_records_are_those_of_the_brokers_own_answer(nursery: trio.Nursery, name: str) -> None:
    recorded = Recorded(name)
    log = left_by_the_broker(name, ".log").read_bytes()
    metadata = RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(recorded.key, uuid_of(name)),
        start_offset=recorded.local_log_start,
        end_offset=recorded.high_watermark - 1,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=len(log),
        segment_leader_epochs={recorded.said["leader_epoch"]: recorded.local_log_start},
    )
    objects = {"log": log, "index": left_by_the_broker(name, ".index").read_bytes()}
    tier = open_reader(nursery, MemoryStore({metadata.segment_id.id: objects}), [(metadata, log)], block_bytes=5000)
    asked = [
        fetch
        for fetch in recorded.said["fetch"]
        if fetch["iso"] == 0 and recorded.local_log_start <= fetch["offset"] < recorded.high_watermark
    ]
    assert asked
    for fetch in asked:
        records = await tier.reader.read(
            recorded.key, fetch["offset"], max_bytes=fetch["max"], minimum_one_batch=True, lineage=tier.lineage
        )
        assert records.size_bytes == fetch["len"]
        assert hashlib.sha256(b"".join(records.buffers)).hexdigest() == fetch["sha256"]
    assert tier.sample("tidegate_index_rebuilds_total", {"index": "offset"}) == 0


def test_two_partitions_share_the_limit_as_at_the_broker() -> None:
    partitions = {number: Recorded(f"plain-{number}") for number in (0, 1)}
    checked = 0
    for asked in recorded_answers()["fetch_two_partitions"]:
        if any(offset >= partitions[number].local_log_start for number, offset in asked["wants"]):
            continue
        plan = plan_fetch(
            fetch_request(
                [(partitions[number].key, offset) for number, offset in asked["wants"]],
                isolation=asked["iso"],
                max_bytes=asked["max_bytes"],
                partition_max_bytes=asked["partition_max_bytes"],
            ),
            [partitions[number].key for number, _ in asked["wants"]],
            lambda key: Frontier(partitions[key.partition].local_log_start, 0, 0, 0.0),
            lambda *_: True,
            lambda *_: False,
        )
        for part, answer in zip(plan.tier, asked["answers"], strict=True):
            assert answer["partition"] == part.partition.partition
            if part.budget_bytes == 0:
                assert answer["len"] == 0
            elif part.minimum_one_batch:
                assert answer["len"] > 0
            else:
                assert answer["len"] <= part.budget_bytes
            if answer["len"] > part.budget_bytes:
                assert part.minimum_one_batch
        assert sum(part.budget_bytes for part in plan.tier) <= asked["max_bytes"]
        checked += 1
    assert checked == 36
