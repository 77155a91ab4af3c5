"""Transaction indexes in memory: absent is empty, corrupt is an error. For the rest see `test_segment_parts`."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from storage.cache import segment_parts
from storage.cache.segment_parts import TransactionIndexes
from storage.errors import CorruptObjectError, IndexLostError, RemoteResourceNotFoundError
from storage.indexes.transaction_index import AbortedTransaction, encode_transaction_index
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.object_store.retries import ATTEMPTS_MAX, CORRUPT_ATTEMPTS_MAX, FRESH_MS
from tests.support.cases import case
from tests.support.segments import FIRST_TIMESTAMP_MS, SyntheticSegment, build_segment, data_batch, metadata_of
from tests.support.tier import PARTITION, MemoryStore, Tier, open_reader

TRANSACTION = IndexType.TRANSACTION
ABSENT = RemoteResourceNotFoundError("no such object")


def segment_at(base_offset: int, *, aborts: int = 1) -> SyntheticSegment:
    """Ten offsets, with so many aborts of one record each."""
    aborted = [AbortedTransaction(7, at, at + 1, at + 2) for at in range(base_offset, base_offset + 2 * aborts, 2)]
    return build_segment([data_batch(base_offset, record_count=10)], aborted=aborted)


def open_unflagged_tier(nursery: trio.Nursery, segments: Sequence[SyntheticSegment], *, age_ms: int = FRESH_MS) -> Tier:
    """As brokers before 4.0 leave it: no segment says that it has no transaction index."""
    store, logs = MemoryStore(), []
    for segment in segments:
        metadata = replace(metadata_of(PARTITION, segment), txn_index_empty=False)
        store.objects[metadata.segment_id.id] = segment.objects()
        logs.append((metadata, segment.log))
    return open_reader(nursery, store, logs, now_ms=lambda: FIRST_TIMESTAMP_MS + age_ms)


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_unflagged_tier(nursery, [segment_at(0), segment_at(10, aborts=0), segment_at(20, aborts=3)])


def of(tier: Tier, number: int) -> RemoteLogSegmentMetadata:
    return tier.logs[number][0]


def cache_of(tier: Tier) -> TransactionIndexes:
    return tier.storage.parts.transaction_indexes


async def test_a_segment_that_says_it_has_none_is_not_asked(tier: Tier) -> None:
    metadata = replace(of(tier, 0), txn_index_empty=True)
    assert len(await cache_of(tier).get(metadata)) == 0
    assert (tier.store.index_fetches(), tier.store.opens()) == (0, 0)


async def test_an_absent_index_is_empty_and_remembered_apart(tier: Tier) -> None:
    indexes, metadata = cache_of(tier), of(tier, 1)
    for _ in range(2):
        assert len(await indexes.get(metadata)) == 0
    assert tier.store.index_fetches(TRANSACTION) == 1
    tier.store.replace(b"", index_type=TRANSACTION)
    await indexes.get(of(tier, 0))
    for each in (metadata, of(tier, 0)):
        assert (indexes.is_known_empty(each), indexes.resident(each)) == (True, None)


async def test_of_the_empty_ones_the_oldest_is_forgotten_first(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_parts, "EMPTY_MAX", 2)
    tier = open_unflagged_tier(nursery, [segment_at(base) for base in (0, 10, 20)])
    tier.store.fail(ABSENT, index_type=TRANSACTION, times=None)
    for number in (0, 1, 2):
        await cache_of(tier).get(of(tier, number))
    assert [cache_of(tier).is_known_empty(of(tier, number)) for number in (0, 1, 2)] == [False, True, True]


# --- trouble ---


async def test_an_index_absent_soon_after_finished_is_waited_for(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A lost one was taken for "no aborts" and remembered."""
    for age_ms, attempts in [(FRESH_MS - 1, ATTEMPTS_MAX), (FRESH_MS, 1)]:
        tier = open_unflagged_tier(nursery, [segment_at(0), segment_at(10)], age_ms=age_ms)
        lost, absent = of(tier, 0), of(tier, 1)
        tier.store.fail(IndexLostError("a.indexes is gone"), index_type=TRANSACTION, times=None)
        told = r"transaction index of .*: a\.indexes is gone"
        with case(age_ms), pytest.raises(CorruptObjectError, match=told):
            await cache_of(tier).get(lost)
        assert tier.store.index_fetches(TRANSACTION) == attempts
        assert cache_of(tier).at_hand(lost) is None
        tier.store.heal()
        assert len(await cache_of(tier).get(lost)) == 1
        tier.store.fail(ABSENT, index_type=TRANSACTION, times=None)
        assert len(await cache_of(tier).get(absent)) == 0
        assert tier.store.index_fetches(TRANSACTION) == 2 * attempts + 1


async def test_a_corrupt_index_is_an_error_in_the_end(nursery: trio.Nursery) -> None:
    for base_offset, content in [
        (0, b"x"),
        (0, b"\xff" * 34),
        (0, encode_transaction_index([AbortedTransaction(7, 0, 10, 11)])),
        (10, encode_transaction_index([AbortedTransaction(7, 0, 9, 10)])),
    ]:
        tier = open_unflagged_tier(nursery, [segment_at(base_offset)])
        tier.store.replace(content, index_type=TRANSACTION, times=CORRUPT_ATTEMPTS_MAX)
        with case(base_offset, content), pytest.raises(CorruptObjectError, match="transaction index of"):
            await cache_of(tier).get(of(tier, 0))
        assert tier.store.index_fetches(TRANSACTION) == CORRUPT_ATTEMPTS_MAX
        assert len(await cache_of(tier).get(of(tier, 0))) == 1
