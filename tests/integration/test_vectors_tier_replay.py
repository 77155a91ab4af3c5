"""A real broker's Fetch answers, given again from its own frozen tier: every recorded one, in every field.

Catalog, lineage, storage manager, caches and reader are the application's, over the objects and keys as the broker
had them; what the broker says of its offsets and its local log is taken from what is recorded. Lists of aborted
transactions are compared as sets: the broker gives them in no order.
"""

import functools
import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any, NamedTuple

import pytest
import trio

from protocol.fetch.messages import FetchRequest, PartitionAnswer
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from proxy.fetch.assembly import TierPart, lacks_aborts, plan_fetch, tier_answer
from proxy.fetch.known import AbortedTail, AbortedTails, Authority, Frontier
from storage.reading.reader import OffsetNotInTierError
from tests.support.frozen_tier import (
    FETCH_MAX_BYTES,
    MIB,
    NAMES,
    Recorded,
    broken_up,
    fetch_request,
    open_frozen_tier,
    recorded_answers,
)
from tidegate.tier_storage import TierStorage

BLOCK_BYTES_MIN = 64 * 1024  # of `expert.cache.block.bytes`; the plug-in's chunks are as small
MEMORY_BYTES_MIN = MIB  # of `cache.memory.bytes`
NO_READAHEAD = 0
OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)


class Sizes(NamedTuple):
    """Settings of the reading side; the defaults are the configuration's."""

    block_bytes: int = MIB
    memory_bytes_max: int = 256 * MIB
    readahead_stream_bytes_max: int = 128 * MIB

    def __str__(self) -> str:
        blocks, memory, readahead = self.block_bytes >> 10, self.memory_bytes_max >> 20, self[2] >> 20
        return f"blocks {blocks} KiB, memory {memory} MiB, read-ahead {readahead} MiB"


DEFAULTS = Sizes()
SMALLEST = Sizes(BLOCK_BYTES_MIN, MEMORY_BYTES_MIN)
ALL_SIZES = [
    Sizes(block_bytes, memory_bytes, readahead_bytes)
    for block_bytes in (BLOCK_BYTES_MIN, MIB)
    for memory_bytes in (MEMORY_BYTES_MIN, 256 * MIB)
    for readahead_bytes in (NO_READAHEAD, 128 * MIB)
]
"""The defaults of the configuration, and the smallest that it lets through."""


class Kind(Enum):
    """What a recorded Fetch needs."""

    TIER = auto()
    """The tier and a good probe: the answer is Tidegate's."""
    ABORTED_TRANSACTIONS = auto()
    """Besides, transaction indexes of the tier."""
    BROKER = auto()
    """The offset is below the log start, in the local log, or beyond it: nothing of it is the tier's."""


EXPECTED_COUNTS = {Kind.TIER: 3308, Kind.ABORTED_TRANSACTIONS: 484, Kind.BROKER: 296}


class Entry(NamedTuple):
    """One recorded Fetch."""

    recorded: Recorded
    fetch: dict[str, Any]

    @property
    def kind(self) -> Kind:
        offset = self.fetch["offset"]
        if not self.recorded.is_in_tier(offset):
            return Kind.BROKER
        if self.fetch["iso"] == IsolationLevel.READ_COMMITTED and self.recorded.may_have_aborts(offset):
            return Kind.ABORTED_TRANSACTIONS
        return Kind.TIER


def entries() -> Iterator[Entry]:
    """All of them, partition by partition, offsets ascending."""
    for name in NAMES:
        recorded = Recorded(name)
        for fetch in recorded.said["fetch"]:
            yield Entry(recorded, fetch)


# --- answer by answer ---


@pytest.mark.needs("vectors")
@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
async def test_every_recorded_answer_of_the_tier_is_given_to_the_byte(nursery: trio.Nursery, sizes: Sizes) -> None:
    storage = open_frozen_tier(nursery, **sizes._asdict())
    counts: Counter[Kind] = Counter()
    for entry in entries():
        kind = entry.kind
        if kind is Kind.BROKER:
            await require_refusal(storage, entry)
        else:
            await require_same_answer(storage, entry, reader="the only one")
        counts[kind] += 1
    assert counts == EXPECTED_COUNTS
    assert counts.total() == 4088


@pytest.mark.needs("vectors")
@pytest.mark.parametrize(
    ("sizes", "one_in"),
    [
        (DEFAULTS, 1),
        (DEFAULTS._replace(block_bytes=BLOCK_BYTES_MIN, readahead_stream_bytes_max=NO_READAHEAD), 1),
        # Each is a GET or more here.
        (DEFAULTS._replace(memory_bytes_max=MEMORY_BYTES_MIN, readahead_stream_bytes_max=NO_READAHEAD), 4),
        (SMALLEST, 4),
    ],
    ids=str,
)
async def test_readers_side_by_side_in_any_order_get_the_same_answers(
    nursery: trio.Nursery, sizes: Sizes, one_in: int
) -> None:
    storage = open_frozen_tier(nursery, **sizes._asdict())
    asked = [entry for entry in entries() if entry.kind is not Kind.BROKER]
    random.Random(4).shuffle(asked)
    left = asked[::one_in]

    async def read_on(reader: str) -> None:
        while left:
            await require_same_answer(storage, left.pop(), reader=reader)

    async with trio.open_nursery() as readers:
        for number in range(8):
            readers.start_soon(read_on, f"reader {number}")


async def require_same_answer(storage: TierStorage, entry: Entry, *, reader: str) -> None:
    """Plan, read and assemble: every field as the broker gave it."""
    recorded, fetch = entry
    # Whose segments reach into the local log are not read for READ_COMMITTED; here all end below it.
    assert storage.reader.segment_for(recorded.key, fetch["offset"], recorded.lineage).end_offset < (
        recorded.local_log_start
    )
    part = planned(entry)
    assert part.minimum_one_batch
    records = await storage.reader.read(
        recorded.key,
        fetch["offset"],
        max_bytes=part.budget_bytes,
        minimum_one_batch=part.minimum_one_batch,
        lineage=recorded.lineage,
        reader=reader,
        committed=fetch["iso"] == IsolationLevel.READ_COMMITTED,
    )
    authority = authority_of(recorded)
    assert not lacks_aborts(authority, records)
    try:
        answer = tier_answer(request_of(entry), part, authority, records)
        given = b"".join(answer.records)
    finally:
        records.release()
    batches, tail_bytes = broken_up(given)
    assert {
        "error": answer.error_code,
        "hw": answer.high_watermark,
        "lso": answer.last_stable_offset,
        "log_start": answer.log_start_offset,
        "len": answer.records_bytes,
        "sha256": hashlib.sha256(given).hexdigest(),
        "base": batches[0].base_offset,
        "batches": len(batches),
        "last": batches[-1].last_offset,
        "tail": tail_bytes,
    } == {field: said for field, said in fetch.items() if field not in ("offset", "max", "iso", "aborted")}
    assert records.size_bytes == fetch["len"]
    aborted = answer.aborted_transactions
    assert (aborted is None) == (fetch["aborted"] is None)
    assert sorted(aborted or ()) == sorted(tuple(pair) for pair in fetch["aborted"] or ())


async def require_refusal(storage: TierStorage, entry: Entry) -> None:
    """Nothing of the tier is handed out: below the log start it is not read, above the tier it has nothing."""
    recorded, fetch = entry
    if fetch["offset"] < recorded.log_start:
        assert planned(entry).budget_bytes == 0
        assert fetch["error"] == OUT_OF_RANGE
        if fetch["offset"] >= recorded.segments[0].start_offset:
            return  # the segment that the log starts in holds it still
    else:
        assert fetch["offset"] > recorded.segments[-1].end_offset
        assert (fetch["error"] == OUT_OF_RANGE) == (fetch["offset"] > recorded.high_watermark)
    with pytest.raises(OffsetNotInTierError):
        await storage.reader.read(
            recorded.key, fetch["offset"], max_bytes=fetch["max"], minimum_one_batch=True, lineage=recorded.lineage
        )


def planned(entry: Entry) -> TierPart:
    """The tier's part of the request, as planned with all that a broker says of the partition."""
    recorded = entry.recorded
    frontier = Frontier(recorded.local_log_start, 0, recorded.said["leader_epoch"], 0.0, recorded.log_start)
    (part,) = plan_fetch(request_of(entry), [recorded.key], lambda _: frontier, lambda *_: True, lambda *_: False).tier
    return part


def request_of(entry: Entry) -> FetchRequest:
    recorded, fetch = entry
    return fetch_request(
        [(recorded.key, fetch["offset"])],
        isolation=fetch["iso"],
        max_bytes=FETCH_MAX_BYTES,
        partition_max_bytes=fetch["max"],
    )


def authority_of(recorded: Recorded) -> Authority:
    """What a probe of the recorded broker would have said."""
    return Authority(
        recorded.high_watermark,
        recorded.last_stable_offset,
        recorded.log_start,
        leader_epoch=recorded.said["leader_epoch"],
        local_log_start_offset=recorded.local_log_start,
        given_at_s=0.0,
        aborted_tail=aborted_tail_of(recorded),
    )


@functools.cache
def aborted_tail_of(recorded: Recorded) -> AbortedTail | None:
    """What the broker's recorded answer at the local log start tells."""
    start = recorded.local_log_start
    asked = (fetch for fetch in recorded.said["fetch"] if (fetch["offset"], fetch["iso"]) == (start, 1))
    fetch = next(asked, None)
    if fetch is None:
        return None
    answer = PartitionAnswer(
        None,
        recorded.key.topic_id,
        recorded.key.partition,
        fetch["error"],
        fetch["hw"],
        fetch["lso"],
        fetch["log_start"],
        aborted_transactions=None if fetch["aborted"] is None else [(pid, first) for pid, first in fetch["aborted"]],
        records=(memoryview(bytes(fetch["len"])),),
    )
    return AbortedTails().learn(1, recorded.key, start, recorded.said["leader_epoch"], answer)


# --- two partitions ---


@pytest.mark.needs("vectors")
async def test_two_partitions_of_the_tier_share_the_limit_to_the_byte(nursery: trio.Nursery) -> None:
    storage = open_frozen_tier(nursery)
    partitions = {number: Recorded(f"plain-{number}") for number in (0, 1)}
    checked = 0
    for asked in recorded_answers()["fetch_two_partitions"]:
        if not all(partitions[number].is_in_tier(offset) for number, offset in asked["wants"]):
            continue
        request = fetch_request(
            [(partitions[number].key, offset) for number, offset in asked["wants"]],
            isolation=asked["iso"],
            max_bytes=asked["max_bytes"],
            partition_max_bytes=asked["partition_max_bytes"],
        )
        plan = plan_fetch(
            request,
            [partitions[number].key for number, _ in asked["wants"]],
            lambda key: Frontier(partitions[key.partition].local_log_start, 0, 0, 0.0),
            lambda *_: True,
            lambda *_: False,
        )
        given = [await share_of(storage, partitions[part.partition.partition], part) for part in plan.tier]
        assert [(number, len(data), hashlib.sha256(data).hexdigest()) for number, data in given] == [
            (answer["partition"], answer["len"], answer["sha256"]) for answer in asked["answers"]
        ]
        checked += 1
    assert checked == 36


async def share_of(storage: TierStorage, recorded: Recorded, part: TierPart) -> tuple[int, bytes]:
    """Partition and record bytes of one part; one without a budget is not read."""
    if not part.budget_bytes:
        return recorded.key.partition, b""
    records = await storage.reader.read(
        recorded.key,
        part.asked.fetch_offset,
        max_bytes=part.budget_bytes,
        minimum_one_batch=part.minimum_one_batch,
        lineage=recorded.lineage,
    )
    data = b"".join(records.buffers)
    records.release()
    return recorded.key.partition, data


# --- consumers ---
