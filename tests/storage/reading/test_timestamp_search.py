"""Time look-ups in the tier: which segment decides, and which record in it; against a search that reads everything."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.log.batch_records import ScanLimitError
from storage.log.batch_walk import IndexMismatchError, find_batch_by_time
from storage.log.log_walk import CorruptLogError
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.metadata.serde import MetadataRecord
from storage.model import IndexType, RemoteLogSegmentMetadata, RemoteLogSegmentState
from storage.reading import timestamp_search
from storage.reading.timestamp_search import FoundTimestamp, TimestampSearch
from tests.support.metadata_records import COPY_FINISHED, COPY_STARTED, DELETE_FINISHED, DELETE_STARTED, forget, moved
from tests.support.segments import SyntheticSegment, build_segment, metadata_of
from tests.support.tier import PARTITION, MemoryStore, Tier, catalog_of, lineage_of, open_tier
from tests.support.timed_batches import CODECS, CONTROL, TRANSACTIONAL, ZSTD, framed_batch, timed_batch, timed_messages

FAR = 2**62


def segment_of(*batches: bytes, end_offset: int | None = None, interval_bytes: int = 0) -> SyntheticSegment:
    return build_segment(batches, end_offset=end_offset, interval_bytes=interval_bytes)


def run_of(first: int, count: int = 10, *, step_ms: int = 10, **fields: Any) -> bytes:
    """A batch of `count` records, the one at offset n of time 10 n."""
    return timed_batch(first, [(delta, (first + delta) * step_ms) for delta in range(count)], **fields)


def plain_segment(first: int = 0, batches: int = 10, **fields: Any) -> SyntheticSegment:
    return segment_of(*(run_of(first + 10 * number, **fields) for number in range(batches)))


async def look_up(
    tier: Tier, timestamp_ms: int, *, log_start: int = 0, local_start: int = FAR
) -> FoundTimestamp | None:
    search = tier.storage.timestamps
    segment = search.candidate(
        PARTITION, timestamp_ms, log_start_offset=log_start, local_log_start_offset=local_start, lineage=tier.lineage
    )
    return None if segment is None else await search.search(segment, timestamp_ms, log_start_offset=log_start)


# --- which segment ---


class View:
    """Metadata alone: what `candidate` decides by."""

    def __init__(
        self, metadatas: Sequence[RemoteLogSegmentMetadata], lineage: LeaderEpochLineage | None = None
    ) -> None:
        self.catalog = catalog_of(metadatas)
        self.lineage = lineage_of(metadatas) if lineage is None else lineage
        nothing: Any = None
        self.search = TimestampSearch(catalog=self.catalog, parts=nothing, cache=nothing, answers=nothing)

    def start(
        self, timestamp_ms: int, *, log_start: int = 0, local_start: int = FAR, over_holes: bool = False
    ) -> int | None:
        """The candidate's start offset."""
        found = self.search.candidate(
            PARTITION,
            timestamp_ms,
            log_start_offset=log_start,
            local_log_start_offset=local_start,
            lineage=self.lineage,
            over_holes=over_holes,
        )
        return None if found is None else found.start_offset


def metadata(
    start: int, end: int, newest_ms: int, epochs: dict[int, int] | None = None, attempt: int = 0
) -> RemoteLogSegmentMetadata:
    made = metadata_of(PARTITION, plain_segment(start, 1), copy_attempt=attempt)
    return replace(made, end_offset=end, max_timestamp_ms=newest_ms, segment_leader_epochs=epochs or {0: start})


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [plain_segment(0)])


def test_the_first_segment_that_is_not_older_decides() -> None:
    view = View([metadata(0, 99, 500), metadata(100, 199, 300), metadata(200, 299, 900)])
    assert [view.start(time) for time in (0, 300, 500, 501, 900, 901)] == [0, 0, 0, 200, 200, None]
    below = [view.start(100, log_start=start) for start in (99, 100, 199, 200, 299, 300)]
    assert below == [0, 100, 100, 200, 200, None], "segments below the log start do not count"
    # A candidate that the broker has, too, is the broker's.
    brokers = [view.start(time, local_start=start) for time, start in ((501, 200), (501, 201), (500, 200))]
    assert brokers == [None, 200, 0]


def test_an_unfinished_or_deleted_segment_does_not_count() -> None:
    view = View([metadata(0, 99, 500), metadata(100, 199, 600)])
    view.catalog.apply(
        replace(metadata(200, 299, 900), state=RemoteLogSegmentState.COPY_SEGMENT_STARTED), initialized=True
    )
    assert view.start(700) is None
    found = view.search.candidate(PARTITION, 0, log_start_offset=0, local_log_start_offset=FAR, lineage=view.lineage)
    assert found is not None
    assert not view.search.is_gone(found)
    forget(view.catalog, PARTITION.topic_id, PARTITION.partition)
    assert view.search.is_gone(found)
    assert view.start(0) is None


def test_epochs_are_walked_upwards_from_the_log_starts_own() -> None:
    lineage = LeaderEpochLineage(5, {0: (0, 150), 2: (2, 300), 5: (5, 1000)})
    segments = [
        metadata(0, 199, 500, {0: 0, 2: 150}),
        metadata(200, 299, 600, {2: 200}),
        metadata(300, 399, 700, {5: 300}),
    ]
    view = View(segments, lineage)
    assert [view.start(time) for time in (500, 501, 601, 701)] == [0, 200, 300, None]
    assert [view.start(0, log_start=start) for start in (150, 199, 200, 300, 399)] == [0, 0, 200, 300, 300]
    # Borders that the broker forgot behind its log start are not looked at.
    lineage = LeaderEpochLineage(4, {0: (0, 180), 2: (2, 180), 4: (4, 1000)})
    assert View([metadata(100, 299, 500, {0: 100, 2: 120, 4: 170})], lineage).start(0, log_start=180) == 100


def test_dead_branches_are_never_candidates() -> None:
    """After an unclean election: epoch 1 is gone, epoch 2 begins at 250."""
    lineage = LeaderEpochLineage(2, {0: (0, 250), 1: (0, 250), 2: (2, 1000)})
    alive = [metadata(0, 249, 100, {0: 0}), metadata(250, 400, 900, {2: 250})]
    dead = [
        metadata(200, 299, 500, {1: 200}, attempt=1),
        metadata(210, 299, 500, {0: 210}, attempt=2),
        metadata(220, 299, 500, {2: 220}, attempt=3),
        metadata(230, 299, 500, {0: 230, 2: 240}, attempt=4),
    ]
    view = View([*dead, *alive], lineage)
    assert view.start(101, over_holes=True) == 250
    assert view.start(101) is None, "no look-up by offset goes on over dead ones either"
    assert View(alive, lineage).start(101) == 250
    assert View(dead, lineage).start(101, over_holes=True) is None


# --- half a catalog ---


def test_a_segment_behind_a_hole_does_not_decide() -> None:
    """Failed before: what the metadata topic had lost was stepped over, and newer records were found."""
    whole = [metadata(0, 99, 500), metadata(100, 199, 700), metadata(200, 299, 600), metadata(300, 399, 900)]
    times = (0, 501, 701)
    assert [View(whole).start(time) for time in times] == [0, 100, 300]
    for missing, found in ((0, [None, None, None]), (1, [0, None, None]), (2, [0, 100, None])):
        view = View([each for each in whole if each is not whole[missing]])
        assert [view.start(time) for time in times] == found
        assert [view.start(time, log_start=whole[missing].end_offset + 1) for time in (701,)] == [300]
    assert View([whole[0], whole[3]]).start(501, over_holes=True) == 300
    # A segment that ends its epoch, and the first of the next one.
    lineage = LeaderEpochLineage(2, {0: (0, 150), 2: (2, 1000)})
    across = [metadata(0, 99, 500), metadata(100, 149, 600), metadata(150, 199, 700, {2: 150})]
    assert View(across, lineage).start(601) == 150
    assert View([across[0], across[2]], lineage).start(601) is None


@dataclass(frozen=True, slots=True)
class History:
    """What a metadata topic tells of one partition, record by record, and what brokers say of it now."""

    records: Sequence[MetadataRecord]
    log_start: int
    lineage: LeaderEpochLineage

    @classmethod
    def draw(cls, chance: random.Random) -> Self:
        """Epochs that change with and within segments, branches that were cut, segments copied twice, retention."""
        made: list[RemoteLogSegmentMetadata] = []
        records: list[MetadataRecord] = []
        answers: dict[int, tuple[int, int]] = {}
        epoch = start = newest = epoch_start = 0
        for number in range(chance.randrange(4, 30)):
            end, epochs = start + chance.randrange(9, 99), {epoch: max(start, epoch_start)}
            if chance.random() < 0.3:
                border = chance.randrange(start, end + 1)
                answers[epoch] = (epoch, border)
                if chance.random() < 0.4:
                    dead = epoch + 1
                    answers[dead] = (epoch, border)
                    lost = {epoch: start, dead: border + chance.randrange(0, 5)}
                    records += _copied(metadata(start, border + 50, chance.randrange(900), lost, attempt=100 + number))
                epoch, epoch_start = epoch + 2, border
                epochs = {epoch: border} if border == start else {**epochs, epoch: border}
            newest += chance.randrange(-20, 60)
            if chance.random() < 0.1:
                oldest = newest - chance.randrange(9)
                records += _copied(metadata(start, start + 3, oldest, {min(epochs): start}, attempt=200 + number))
            made.append(metadata(start, end, newest, epochs, attempt=number))
            records += _copied(made[-1])
            start = end + 1
        gone = made[: chance.randrange(len(made))] if chance.random() < 0.5 else []
        records += [moved(each, state) for each in gone for state in (DELETE_STARTED, DELETE_FINISHED)]
        log_start = gone[-1].end_offset + 1 if gone else 0
        return cls(records, log_start, LeaderEpochLineage(epoch, answers | {epoch: (epoch, start)}))

    def view(self, first_record: int) -> View:
        """Read from that record of the topic on."""
        view = View([], self.lineage)
        for record in self.records[first_record:]:
            view.catalog.apply(record, initialized=False)
        asked = {epoch: self.lineage.end_offset(epoch) for epoch in view.catalog.epochs(*KEY)}
        ends = {epoch: (epoch, end) if end is not None else (-1, -1) for epoch, end in asked.items()}
        view.lineage = LeaderEpochLineage(self.lineage.leader_epoch, ends)
        return view


KEY = (PARTITION.topic_id, PARTITION.partition)


def _copied(segment: RemoteLogSegmentMetadata) -> list[MetadataRecord]:
    return [replace(segment, state=COPY_STARTED), moved(segment, COPY_FINISHED)]


def test_of_a_topic_that_lost_its_oldest_records_no_answer_is_another() -> None:
    """Failed before: half of the answers were those of a later segment."""
    chance, same, left = random.Random(34), 0, 0
    for _ in range(12):
        history = History.draw(chance)
        whole = history.view(0)
        times = [chance.randrange(-10, 1000) for _ in range(5)]
        expected = [whole.start(time, log_start=history.log_start) for time in times]
        for cut in range(len(history.records)):
            found = [history.view(cut).start(time, log_start=history.log_start) for time in times]
            for ours, right in zip(found, expected, strict=True):
                assert ours in (None, right), (history, cut)
                same += ours is not None
                left += ours is None and right is not None
    assert same > 50
    assert left > 50


def test_a_lineage_that_ends_before_the_tier_is_outdated() -> None:
    segments = [metadata(0, 99, 500), metadata(100, 199, 600)]
    search = View(segments).search
    lineages = [LeaderEpochLineage(0, {0: (0, end)}) for end in (150, 199, 200)]
    assert [search.is_outdated(PARTITION, lineage) for lineage in lineages] == [True, True, False]
    assert not search.is_outdated(PARTITION, LeaderEpochLineage(0, {}))


# --- which record ---


async def test_the_first_record_of_that_time_or_later(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [plain_segment(0), plain_segment(100)], block_bytes=100)
    for time, offset in ((0, 0), (1, 1), (10, 1), (555, 56), (990, 99), (991, 100), (1990, 199)):
        assert await look_up(tier, time) == FoundTimestamp(offset * 10, offset, 0)
    assert await look_up(tier, 1991) is None
    for log_start in (0, 1, 5, 9, 10, 57, 99):
        assert await look_up(tier, 0, log_start=log_start) == FoundTimestamp(log_start * 10, log_start, 0)


async def test_old_messages_are_searched(nursery: trio.Nursery) -> None:
    for magic in [0, 1]:
        log = timed_messages(magic, [(0, 10), (1, 20)]) + timed_messages(magic, [(2, 30), (5, 5), (6, 40)], codec=1)
        segment = replace(
            plain_segment(0, 1), log=log, end_offset=6, max_timestamp_ms=40, offset_index=b"", time_index=b""
        )
        tier = open_tier(nursery, [segment], block_bytes=50)
        assert await tier.read_bytes(0) == log, "a Fetch gets them as they are"
        found = {time: await look_up(tier, time) for time in (0, 20, 21, 31, 41)}
        if magic == 0:
            assert set(found.values()) == {None}
        else:
            expected = {0: (10, 0), 20: (20, 1), 21: (30, 2), 31: (40, 6)}
            assert found == {time: FoundTimestamp(*at, -1) for time, at in expected.items()} | {41: None}


# --- what it costs ---


async def test_only_what_the_indexes_lead_to_is_read(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [plain_segment(0, 2000, value_bytes=100)], block_bytes=4096)
    segment = tier.logs[0][0]
    assert await look_up(tier, 150_000) == FoundTimestamp(150_000, 15_000, 0)
    read_bytes = sum((end or 0) - start + 1 for start, end in tier.store.log_fetches())
    assert 0 < read_bytes <= timestamp_search.FIRST_WINDOW_BYTES + 3 * 4096 < segment.segment_size_bytes / 10
    assert (tier.store.index_fetches(IndexType.TIMESTAMP), tier.store.index_fetches(IndexType.OFFSET)) == (1, 1)
    assert await look_up(tier, 150_000) is not None
    assert tier.store.index_fetches() == 2


async def test_a_search_holds_a_window_for_a_while(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time index all of the segment is walked."""
    monkeypatch.setattr(timestamp_search, "FIRST_WINDOW_BYTES", 1000)
    monkeypatch.setattr(timestamp_search, "WINDOW_BYTES_MAX", 4000)
    segment = replace(plain_segment(0, 300), time_index=b"")
    tier = open_tier(nursery, [segment], block_bytes=500, inflight_bytes_max=20_000)
    assert await look_up(tier, 2999 * 10) == FoundTimestamp(29_990, 2999, 0)
    await tier.settled()
    assert tier.inflight_bytes == 0


def lying_batch(count: int, first: int = 0) -> bytes:
    """A batch that says it has a record of time 500, and has none."""
    batch = timed_batch(first, [(delta, 5) for delta in range(count)], codec=ZSTD, value_bytes=0)
    return framed_batch(first, batch[61:], flags=ZSTD, last_delta=count - 1, times=(5, 500), record_count=count)


class Looks:
    """Counts the slices of searches, and notes whose they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[int] = []
        self.records = 0
        self.at_once = 0
        self.most_at_once = 0
        self._look: Callable[..., Any] = timestamp_search.look_through
        monkeypatch.setattr(timestamp_search, "look_through", self)

    def __call__(self, records: Any, asked: Any) -> Any:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.of.append(asked.timestamp_ms)
        record, count = self._look(records, asked)
        self.records += count
        self.at_once -= 1
        return record, count


async def test_a_search_decodes_only_so_many_records(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: 12 KiB of zstd with 20 million records held the interpreter for 48 s."""
    monkeypatch.setattr(timestamp_search, "RECORDS_AT_ONCE", 10)
    monkeypatch.setattr(timestamp_search, "RECORDS_MAX", 1000)
    looks = Looks(monkeypatch)
    tier = open_tier(nursery, [segment_of(*(lying_batch(300, 300 * number) for number in range(10)))])
    with pytest.raises(ScanLimitError, match="records"):
        await look_up(tier, 400)
    assert 1000 < looks.records <= 1010


async def test_a_search_inflates_only_so_many_bytes(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamp_search, "INFLATED_BYTES_MAX", 100_000)
    tier = open_tier(nursery, [segment_of(run_of(0), lying_batch(300, 10), lying_batch(20_000, 310))])
    assert await look_up(tier, 50) == FoundTimestamp(50, 5, 0)
    with pytest.raises(ScanLimitError, match="bytes"):
        await look_up(tier, 400)


async def test_searches_take_turns_slice_by_slice(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: 20,000 records at a time, of all searches at once."""
    monkeypatch.setattr(timestamp_search, "RECORDS_AT_ONCE", 10)
    looks = Looks(monkeypatch)
    tier = open_tier(nursery, [segment_of(lying_batch(500))])
    async with trio.open_nursery() as searching:
        for time in (400, 401, 402):
            searching.start_soon(look_up, tier, time)
    assert looks.most_at_once == 1
    assert len(looks.of) == 3 * 51
    first = looks.of.index
    assert max(map(first, (400, 401, 402))) < 51, "none waits until another is done"


async def test_many_headers_are_not_walked_on_the_loop(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    walk: Callable[..., Any] = find_batch_by_time
    walked_in: set[threading.Thread] = set()

    def noted(*arguments: Any) -> Any:
        walked_in.add(threading.current_thread())
        return walk(*arguments)

    monkeypatch.setattr(timestamp_search, "find_batch_by_time", noted)
    for batches, on_loop in ((100, True), (2000, False)):
        walked_in.clear()
        tier = open_tier(nursery, [plain_segment(0, batches)], block_bytes=2**20)
        assert await look_up(tier, 15) == FoundTimestamp(20, 2, 0)
        assert (threading.current_thread() in walked_in) == on_loop, batches


# --- trouble ---


async def test_a_time_index_missing_or_wrong_only_costs_a_longer_walk(nursery: trio.Nursery) -> None:
    for content in (b"x", b"\xff" * 12, None):
        tier = open_tier(nursery, [plain_segment(0)])
        if content is None:
            assert isinstance(tier.store.inner, MemoryStore)
            del tier.store.inner.objects[tier.logs[0][0].segment_id.id]["timeindex"]
        else:
            tier.store.replace(content, index_type=IndexType.TIMESTAMP)
        assert await look_up(tier, 555) == FoundTimestamp(560, 56, 0), content


async def test_an_offset_index_that_does_not_agree_with_the_log_is_rebuilt(nursery: trio.Nursery) -> None:
    right = plain_segment(0)
    wrong = replace(right, offset_index=plain_segment(0, value_bytes=25).offset_index)
    tier = open_tier(nursery, [wrong])
    assert await look_up(tier, 555) == FoundTimestamp(560, 56, 0)
    assert tier.sample("tidegate_index_rebuilds_total", {"index": "offset"}) == 1


async def test_a_damaged_batch_is_fetched_once_more(nursery: trio.Nursery) -> None:
    segment = plain_segment(0)
    for at, times in ((35, 1), (70, 1), (70, None)):
        tier = open_tier(nursery, [segment], block_bytes=200)
        tier.store.flip_bit(tier.logs[0][0], segment.batch_positions[5] + at, times=times)
        if times is None:
            with pytest.raises(CorruptLogError, match="CRC"):
                await look_up(tier, 555)
        else:
            assert await look_up(tier, 555) == FoundTimestamp(560, 56, 0), at
        assert tier.sample("tidegate_cache_quarantined_blocks_total") > 0
        await tier.settled()
        assert tier.inflight_bytes == 0


async def test_records_that_cannot_be_decoded_are_named(nursery: trio.Nursery) -> None:
    bad = framed_batch(0, b"no zstd", flags=ZSTD, times=(0, 500))
    tier = open_tier(nursery, [segment_of(bad)])
    with pytest.raises(CorruptObjectError, match="batch at 0: zstd") as caught:
        await look_up(tier, 5)
    assert not isinstance(caught.value, IndexMismatchError)
    assert len(tier.store.log_fetches()) == 1


# --- against a search that reads everything ---

TIMES = st.integers(0, 40)
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 3), TIMES), min_size=1, max_size=6),  # gap before, time
        st.sampled_from(CODECS),
        st.one_of(st.none(), TIMES),  # LogAppendTime
        st.booleans(),  # a control batch
        st.sampled_from([0, 5, 300]),  # bytes of a value
    ),
    min_size=1,
    max_size=8,
)

Truth = list[tuple[int, int, int]]
"""Offset, time and leader epoch of each record of a segment."""


def built(drawn: Sequence[Any], first_offset: int, leader_epoch: int) -> tuple[SyntheticSegment, Truth]:
    batches, truth, offset = [], [], first_offset
    for records, codec, append_time, is_control, value_bytes in drawn:
        deltas, delta = [], 0
        for number, (gap, time) in enumerate(records):
            delta += gap if number else 0
            deltas.append((delta, time))
        batches.append(
            timed_batch(
                offset,
                deltas,
                codec=codec,
                leader_epoch=leader_epoch,
                append_time_ms=append_time,
                attributes=TRANSACTIONAL | CONTROL if is_control else 0,
                value_bytes=value_bytes,
            )
        )
        for each, time in deltas:
            truth.append((offset + each, time if append_time is None else append_time, leader_epoch))
        offset += delta + records[0][0]
    return segment_of(*batches, interval_bytes=200), truth


def by_reading_all(
    segments: Sequence[tuple[SyntheticSegment, Truth]], timestamp_ms: int, log_start: int
) -> FoundTimestamp | None:
    for segment, truth in segments:
        if segment.max_timestamp_ms < timestamp_ms or segment.end_offset < log_start:
            continue
        for offset, time, leader_epoch in truth:
            if time >= timestamp_ms and offset >= log_start:
                return FoundTimestamp(time, offset, leader_epoch)
        return None
    return None


@given(st.lists(BATCHES, min_size=1, max_size=3), st.integers(0, 60), st.sampled_from([64, 500, 10_000]), st.booleans())
@example([[([(1, 5), (1, 9), (1, 3)], ZSTD, None, False, 5)]], 1, 64, True)
def test_every_look_up_is_that_of_a_search_which_reads_everything(
    drawn: Sequence[Any], log_start: int, block_bytes: int, has_time_index: bool
) -> None:
    segments: list[tuple[SyntheticSegment, Truth]] = []
    for number, batches in enumerate(drawn):
        first = segments[-1][0].end_offset + 1 if segments else 0
        segment, truth = built(batches, first, leader_epoch=number)
        segments.append((segment if has_time_index else replace(segment, time_index=b""), truth))

    async def check() -> None:
        async with trio.open_nursery() as nursery:
            tier = open_tier(nursery, [segment for segment, _ in segments], block_bytes=block_bytes)
            for time in range(0, 42, 3):
                found = await look_up(tier, time, log_start=log_start)
                assert found == by_reading_all(segments, time, log_start), time
            nursery.cancel_scope.cancel()

    trio.run(check)
