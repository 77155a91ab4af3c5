"""Aborted transactions out of the tier's own objects, and where the tier alone cannot tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from storage.errors import CorruptObjectError
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.indexes import transaction_index
from storage.indexes.producer_snapshot import ProducerState
from storage.model import IndexType
from table.planning import tier_transactions
from table.planning.partition_view import OffsetRange, PartitionView, ServedSegment, WantedOffsets
from table.planning.tier_transactions import TierTransactions, UndecidedTransactionError
from table.tasks import AbortedTransaction
from tests.support.checked_tier import SEGMENTS, aiven_tier
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import build_segment, data_batch, object_path, publish, topic_partition

PARTITION = topic_partition()
SEGMENT_OFFSETS = 100


@dataclass(slots=True)
class Tier:
    """A chain of segments of 100 offsets each, with their objects."""

    tier_dir: Path
    storage: ScriptedStore
    view: PartitionView

    @property
    def transactions(self) -> TierTransactions:
        return TierTransactions(self.storage)

    @property
    def fetched(self) -> list[tuple[IndexType, int]]:
        """Indexes, by kind and start offset of the segment."""
        starts = {link.segment.segment_id.id: link.segment.start_offset for link in self.view.segments}
        return [(call.index_type, starts[call.segment_id]) for call in self.storage.calls if call.index_type]

    def remove(self, segment: int, suffix: str) -> None:
        object_path(self.tier_dir, self.view.segments[segment].segment, suffix).unlink()


def tier_of(
    tier_dir: Path,
    *,
    segments: int,
    aborted: Sequence[AbortedTransaction] = (),
    still_open: Mapping[int, Sequence[int]] | None = None,
    knows_empty: bool = False,
) -> Tier:
    """A tier whose indexes name these aborts.

    Args:
        still_open: by number of segment, the first offsets of transactions open at its end.
        knows_empty: whether metadata say which segments have no transaction index.
    """
    links = []
    for number in range(segments):
        base = number * SEGMENT_OFFSETS
        entries = [
            transaction_index.AbortedTransaction(
                each.producer_id, each.first_offset, each.last_offset, min(each.last_offset + 1, base + 1)
            )
            for each in sorted(aborted, key=lambda each: each.last_offset)
            if base <= each.last_offset < base + SEGMENT_OFFSETS
        ]
        segment = build_segment(
            [data_batch(base, record_count=SEGMENT_OFFSETS, value_bytes=10)],
            aborted=entries,
            producers=[ProducerState(7, 0, 0, 0, 0, 0, 0, first) for first in (still_open or {}).get(number, [-1])],
        )
        metadata = publish(tier_dir, PARTITION, segment)
        metadata = metadata if knows_empty else replace(metadata, txn_index_empty=False)
        links.append(ServedSegment(metadata, base, base + SEGMENT_OFFSETS))
    view = PartitionView(partition=PARTITION, log_start_offset=0, end_offset=10_000, segments=tuple(links))
    return Tier(tier_dir, ScriptedStore(LocalTieredStorage({"dir": str(tier_dir)})), view)


INSIDE = AbortedTransaction(1, 20, 40)
CROSSING = AbortedTransaction(2, 150, 330)


def test_an_abort_is_found_where_its_marker_is_a_segment_later(tmp_path: Path) -> None:
    tier = tier_of(tmp_path, segments=5, aborted=[INSIDE, CROSSING], still_open={1: [150], 2: [150]})

    assert tier.transactions.aborted(tier.view, 0, 500) == (INSIDE, CROSSING)
    assert tier.transactions.aborted(tier.view, 100, 200) == (CROSSING,)
    assert tier.transactions.aborted(tier.view, 0, 100) == (INSIDE,)
    assert tier.transactions.aborted(tier.view, 41, 150) == ()
    assert tier.transactions.aborted(tier.view, 331, 500) == ()
    assert tier.transactions.aborted(tier.view, 200, 200) == ()
    # The search ends with the segment after which nothing is open.
    tier.storage.calls.clear()
    tier.transactions.aborted(tier.view, 100, 200)
    assert max(start for _, start in tier.fetched) == 300
    # Each partition wanted gets its own.
    wants = [
        WantedOffsets(view=tier.view, first_offset=first, tier_end_offset=end, end_offset=end)
        for first, end in ((0, 100), (100, 500))
    ]
    assert [want.aborted for want in tier.transactions.with_aborted(wants)] == [(INSIDE,), (CROSSING,)]


def test_no_index_is_fetched_that_can_have_no_abort(tmp_path: Path) -> None:
    """A later one where nothing is open, and one that the metadata call empty."""
    tier = tier_of(tmp_path / "unknown", segments=9)
    tier.transactions.aborted(tier.view, 100, 200)
    assert tier.fetched == [(IndexType.TRANSACTION, 100), (IndexType.PRODUCER_SNAPSHOT, 100)]

    tier = tier_of(tmp_path / "empty", segments=9, knows_empty=True)
    assert tier.transactions.aborted(tier.view, 0, 900) == ()
    assert tier.fetched == []


def test_without_a_snapshot_the_search_goes_on_to_the_end(tmp_path: Path) -> None:
    tier = tier_of(tmp_path, segments=5, aborted=[CROSSING])
    for number in range(5):
        tier.remove(number, "snapshot")

    assert tier.transactions.aborted(tier.view, 100, 200) == (CROSSING,)


def test_the_last_stable_offset_is_the_first_of_what_is_open_at_the_tiers_end(tmp_path: Path) -> None:
    tier = tier_of(tmp_path, segments=3, still_open={0: [20], 2: [250, 130, 299]})

    assert tier.transactions.last_stable_offset(tier.view) == 130
    # From before the log start: nothing is left to read.
    assert tier.transactions.last_stable_offset(replace(tier.view, log_start_offset=150)) == 150
    (view,) = tier.transactions.with_last_stable_offsets([tier.view])
    assert view.readable_end_offset == 130


def test_with_nothing_open_the_tier_is_stable_to_its_end(tmp_path: Path) -> None:
    tier = tier_of(tmp_path, segments=2)

    assert tier.transactions.last_stable_offset(tier.view) == 200
    assert tier.transactions.last_stable_offset(replace(tier.view, segments=(), log_start_offset=70)) == 70

    # Without a snapshot of the last segment nothing is guessed.
    tier.remove(1, "snapshot")
    with pytest.raises(UndecidedTransactionError, match="no producer snapshot"):
        tier.transactions.last_stable_offset(tier.view)


def test_a_transaction_that_is_open_where_a_hole_begins_is_not_guessed_about(tmp_path: Path) -> None:
    tier = tier_of(tmp_path, segments=4, still_open={1: [150]})
    links = tier.view.segments
    view = replace(tier.view, segments=(*links[:2], links[3]), holes=(OffsetRange(200, 300),))

    for first, end in ((0, 400), (100, 200)):
        with pytest.raises(UndecidedTransactionError, match="up to 299"):
            tier.transactions.aborted(view, first, end)
    assert tier.transactions.aborted(view, 0, 100) == ()
    assert tier.transactions.aborted(view, 300, 400) == ()


def test_an_index_that_the_store_lacks_is_no_segment_without_aborts(tmp_path: Path) -> None:
    checked = aiven_tier(tmp_path)
    links = tuple(ServedSegment(each, each.start_offset, each.end_offset + 1) for each in checked.metadatas)
    view = PartitionView(partition=PARTITION, log_start_offset=0, end_offset=10_000, segments=links)
    number, aborting = next((n, each) for n, each in enumerate(SEGMENTS) if each.transaction_index)
    assert TierTransactions(checked.manager).aborted(view, aborting.base_offset, aborting.end_offset + 1)
    checked.path(checked.metadatas[number], "indexes").unlink()
    with pytest.raises(CorruptObjectError, match=r"transaction index of .*\.indexes"):
        TierTransactions(checked.manager).aborted(view, aborting.base_offset, aborting.end_offset + 1)


def test_an_index_with_a_marker_outside_of_its_segment_is_another_segments(tmp_path: Path) -> None:
    tier = tier_of(tmp_path, segments=4, aborted=[CROSSING])
    one, other = (object_path(tmp_path, tier.view.segments[number].segment, "txnindex") for number in (3, 0))
    other.write_bytes(one.read_bytes())

    with pytest.raises(CorruptObjectError, match="marker at offset 330 lies outside"):
        tier.transactions.aborted(tier.view, 0, 100)


def test_what_was_fetched_is_kept_and_the_oldest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = tier_of(tmp_path, segments=5, aborted=[INSIDE, CROSSING], still_open={1: [150], 2: [150]})
    transactions = tier.transactions
    for _ in range(2):
        assert transactions.aborted(tier.view, 0, 500) == (INSIDE, CROSSING)
        assert transactions.last_stable_offset(tier.view) == 500
    fetched = tier.fetched
    assert len(set(fetched)) == len(fetched) == 6

    monkeypatch.setattr(tier_transactions, "KEPT_BYTES_MAX", tier_transactions.KEPT_BYTES_EACH)
    transactions = tier.transactions
    for _ in range(2):
        transactions.aborted(tier.view, 400, 500)
    assert [start_offset for _, start_offset in tier.fetched[len(fetched) :]] == [400]
    for start_offset in (0, 400):
        transactions.aborted(tier.view, start_offset, start_offset + 100)
    assert (IndexType.TRANSACTION, 400) in tier.fetched[len(fetched) + 1 :]
