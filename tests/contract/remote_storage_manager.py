"""What every RemoteStorageManager does: subclass RemoteStorageManagerContract and give it a `tier`.

The suite is the seam's meaning in code (storage/remote_storage_manager.py); a format's own tests hold only
what is particular to it.
"""

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import (
    IllegalMetadataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
)
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType, RemoteLogSegmentMetadata, TopicIdPartition, uuid_to_text
from storage.remote_storage_manager import ObjectContent, OpenedSegment, RemoteStorageManager
from tests.support.aiven_tier import StoreServer
from tests.support.cases import case
from tests.support.segments import (
    SyntheticSegment,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    metadata_of,
    segment_files,
    topic_partition,
    uuid_of,
)

Manager = RemoteStorageManager
OpenManager = Callable[[], Manager]
OpenPlain = Callable[[Mapping[str, str]], Manager]

PARTITION = topic_partition("orders", 3)
ABORTED = AbortedTransaction(producer_id=7, first_offset=0, last_offset=2, last_stable_offset=3)
TRANSACTIONAL = build_segment([data_batch(0, record_count=2), control_batch(2, producer_id=7)], aborted=[ABORTED])
SEGMENT = filled_segment(100, batch_count=30)
THREADS = 8
LATE_S = 100.0
"""What another thread does soon may be this late on a busy machine; nothing waits for it to pass."""


class Copy:
    """Copies a segment through the manager and gives its metadata, with what copy returned in it."""

    def __init__(self, manager: Manager, local_dir: Path) -> None:
        self._manager = manager
        self._local_dir = local_dir

    def __call__(
        self,
        segment: SyntheticSegment,
        *,
        partition: TopicIdPartition = PARTITION,
        copy_attempt: int = 0,
        with_producer_snapshot: bool = True,
        local_name: str = "files",
    ) -> RemoteLogSegmentMetadata:
        metadata = metadata_of(partition, segment, copy_attempt=copy_attempt)
        data = segment_files(self._local_dir / local_name, segment)
        if not with_producer_snapshot:
            data = replace(data, producer_snapshot_index=None)
        return replace(metadata, custom_metadata=self._manager.copy_log_segment_data(metadata, data))


class RemoteStorageManagerContract:
    """A subclass's fixture `open_manager` opens a manager on one tier, empty at first; each call another manager.

    Its fixture `open_elsewhere` does the same on another tier of the same kind.
    """

    @pytest.fixture
    def manager(self, open_manager: OpenManager) -> Manager:
        return open_manager()

    @pytest.fixture
    def copy(self, manager: Manager, tmp_path: Path) -> Copy:
        return Copy(manager, tmp_path / "local")

    @pytest.fixture
    def copied(self, copy: Copy) -> RemoteLogSegmentMetadata:
        return copy(SEGMENT)

    @pytest.fixture
    def opened(self, manager: Manager, copied: RemoteLogSegmentMetadata) -> OpenedSegment:
        return manager.open_log_segment(copied)

    def test_any_range_is_that_slice_of_the_log(self, manager: Manager, copied: RemoteLogSegmentMetadata) -> None:
        randomness, size = random.Random(1), len(SEGMENT.log)
        ranges: list[tuple[int, int | None]] = [(0, 0), (0, 99), (7, 7), (100, 5000), (size - 1, size - 1), (1, None)]
        for _ in range(100):
            start = randomness.randrange(size)
            ranges.append((start, randomness.randrange(start, size)))
        # An end beyond the log is cut to it, and a start beyond it gives nothing.
        ranges += [(10, size), (10, 2**31 - 1), (size, None), (size, size + 5), (size + 1000, None)]
        for start, end in ranges:
            expected = SEGMENT.log[start : None if end is None else end + 1]
            assert manager.fetch_log_segment(copied, start, end) == expected, f"both ends are inclusive: {start}, {end}"

    def test_what_is_no_range_is_the_callers_bug(
        self, manager: Manager, copied: RemoteLogSegmentMetadata, opened: OpenedSegment
    ) -> None:
        for start, end in ((-1, None), (-1, 5), (5, 4)):
            with case(start, end), pytest.raises(ValueError, match="not a range"):
                manager.fetch_log_segment(copied, start, end)
        for start, end in ((-1, 5), (5, 5), (5, 4), (0, len(SEGMENT.log) + 1)):
            with case(start, end), pytest.raises(ValueError, match="not a range"):
                opened.open_stream(start, end)
        with closing(opened.open_stream(0, 10)) as stream:
            stream.read(6)
            for size in (5, -1):
                with pytest.raises(ValueError, match=rf"{size} bytes .*of a stream"):
                    stream.read(size)
            assert stream.read(4) == SEGMENT.log[6:10]

    def test_a_stream_of_any_range_in_any_pieces_is_that_slice_of_the_log(self, opened: OpenedSegment) -> None:
        randomness = random.Random(2)
        for _ in range(50):
            start = randomness.randrange(len(SEGMENT.log))
            end = randomness.randrange(start + 1, len(SEGMENT.log) + 1)
            middle = randomness.randint(start, end)
            with closing(opened.open_stream(start, end)) as stream:
                pieces = [stream.read(middle - start), stream.read(end - middle)]
            assert all(isinstance(piece, bytes | bytearray) for piece in pieces)
            assert pieces == [SEGMENT.log[start:middle], SEGMENT.log[middle:end]]
        for read_bytes in (0, 10):
            stream = opened.open_stream(0, len(SEGMENT.log))
            stream.read(read_bytes)
            stream.close()
            stream.close()
        assert_streamable(opened, SEGMENT)

    def test_what_a_stream_gave_is_the_callers_alone(self, opened: OpenedSegment) -> None:
        with closing(opened.open_stream(0, 2000)) as stream, closing(opened.open_stream(0, 1000)) as another:
            first, same = stream.read(1000), another.read(1000)
            if isinstance(first, bytearray):
                first[:] = bytes(1000)
            second = stream.read(1000)
        assert (same, second) == (SEGMENT.log[:1000], SEGMENT.log[1000:2000])

    def test_streams_of_one_segment_in_many_threads_do_not_disturb_each_other(self, opened: OpenedSegment) -> None:
        started = threading.Barrier(THREADS)

        def read(number: int) -> bool:
            start = 1000 * number
            with closing(opened.open_stream(start, len(SEGMENT.log))) as stream:
                started.wait(LATE_S)
                pieces = [bytes(stream.read(size)) for size in (100, 10_000, len(SEGMENT.log) - start - 10_100)]
            return b"".join(pieces) == SEGMENT.log[start:]

        with ThreadPoolExecutor(THREADS) as threads:
            assert all(threads.map(read, range(THREADS)))

    def test_what_a_get_transfers_covers_the_range_in_whole_chunks(self, opened: OpenedSegment) -> None:
        size, chunk = len(SEGMENT.log), opened.chunk_bytes
        assert chunk >= 1
        assert opened.memory_bytes > 0
        whole = opened.stored_bytes(0, size)
        assert whole > 0
        for start in range(0, size, 997):
            end = min(start + 3000, size)
            first, last = start - start % chunk, min(-(-end // chunk) * chunk, size)
            stored = opened.stored_bytes(start, end)
            assert stored == opened.stored_bytes(first, last), "the range is widened to whole chunks"
            assert 0 < opened.stored_bytes(start, start + 1) <= stored <= whole
            assert stored <= opened.stored_bytes(start, size)

    def test_indexes_come_back_as_they_were(self, manager: Manager, copy: Copy) -> None:
        assert TRANSACTIONAL.offset_index == b"", "an empty one is there, not absent"
        metadata = copy(TRANSACTIONAL)
        opened = manager.open_log_segment(metadata)
        for index_type in IndexType:
            expected = TRANSACTIONAL.objects()[index_type.value]
            assert manager.fetch_index(metadata, index_type) == opened.fetch_index(index_type) == expected, index_type
        with pytest.raises(RemoteResourceNotFoundError):
            manager.open_log_segment(copy(SEGMENT)).fetch_index(IndexType.TRANSACTION)

    def test_transaction_index_and_producer_snapshot_may_be_absent(self, manager: Manager, copy: Copy) -> None:
        metadata = copy(SEGMENT, with_producer_snapshot=False)
        for index_type in (IndexType.TRANSACTION, IndexType.PRODUCER_SNAPSHOT):
            with pytest.raises(RemoteResourceNotFoundError):
                manager.fetch_index(metadata, index_type)
        assert manager.fetch_index(metadata, IndexType.TIMESTAMP) == SEGMENT.time_index

    def test_an_opened_segment_outlives_the_log(self, manager: Manager, copy: Copy) -> None:
        metadata = copy(SEGMENT)
        opened = manager.open_log_segment(metadata)
        manager.delete_log_segment_data(metadata)
        for _ in range(2):
            with pytest.raises(RemoteResourceNotFoundError) as caught:
                opened.open_stream(0, 10)
            assert uuid_to_text(metadata.segment_id.id) in str(caught.value)
        copy(SEGMENT)
        assert_streamable(manager.open_log_segment(metadata), SEGMENT)

    def test_a_tier_has_one_identity_and_every_manager_of_it_reads_what_one_copied(
        self, open_manager: OpenManager, open_elsewhere: OpenManager, manager: Manager, copy: Copy
    ) -> None:
        metadata, another = copy(TRANSACTIONAL), open_manager()
        assert_readable(another, metadata, TRANSACTIONAL)
        assert another.identity == manager.identity != open_elsewhere().identity

    def test_a_repeated_copy_changes_nothing_or_overwrites(self, manager: Manager, copy: Copy) -> None:
        assert copy(TRANSACTIONAL) == copy(TRANSACTIONAL)
        assert_readable(manager, copy(TRANSACTIONAL), TRANSACTIONAL)
        shorter = build_segment([data_batch(0, value_bytes=5)])
        metadata = copy(shorter)
        assert_readable(manager, metadata, shorter)
        with pytest.raises(RemoteResourceNotFoundError):
            manager.fetch_index(metadata, IndexType.TRANSACTION)

    def test_copy_attempts_and_partitions_do_not_mix(self, manager: Manager, copy: Copy) -> None:
        contents = [filled_segment(0, batch_count=count) for count in (1, 2, 3)]
        first = copy(contents[0], copy_attempt=0)
        second = copy(contents[1], copy_attempt=1)
        elsewhere = copy(contents[2], partition=topic_partition("orders", 4))
        for metadata, segment in zip((first, second, elsewhere), contents, strict=True):
            assert_readable(manager, metadata, segment)

    def test_copies_and_fetches_of_many_threads_do_not_disturb_each_other(self, manager: Manager, copy: Copy) -> None:
        def copy_and_read(number: int) -> None:
            # Half of the threads copy one and the same segment, as a copier and its successor may.
            segment = filled_segment(1000 * (number % (THREADS // 2)), batch_count=5)
            assert_readable(manager, copy(segment, local_name=f"thread-{number}"), segment)

        shared = copy(SEGMENT)
        with ThreadPoolExecutor(THREADS) as threads:
            copies = list(threads.map(copy_and_read, range(THREADS)))
            reads = list(threads.map(lambda _: manager.fetch_log_segment(shared, 5, 20000), range(4 * THREADS)))
        assert copies == [None] * THREADS
        assert set(reads) == {SEGMENT.log[5:20001]}

    def test_a_deleted_segment_is_not_found_until_it_is_copied_again(self, manager: Manager, copy: Copy) -> None:
        never = metadata_of(PARTITION, TRANSACTIONAL, copy_attempt=9)
        assert_not_found(manager, never)
        manager.delete_log_segment_data(never)
        metadata, neighbour = copy(TRANSACTIONAL), copy(SEGMENT)
        for _ in range(2):
            manager.delete_log_segment_data(metadata)
            assert_not_found(manager, metadata)
        assert_readable(manager, neighbour, SEGMENT)
        assert {each.segment_id for each in manager.list_objects()} == {neighbour.segment_id}
        assert_readable(manager, copy(TRANSACTIONAL), TRANSACTIONAL)

    def test_a_copy_without_its_local_file_leaves_no_readable_segment(self, manager: Manager, tmp_path: Path) -> None:
        metadata = metadata_of(PARTITION, SEGMENT)
        data = segment_files(tmp_path / "local", SEGMENT)
        data.log_segment.unlink()
        with pytest.raises(RemoteStorageError, match="cannot read the local file"):
            manager.copy_log_segment_data(metadata, data)
        with pytest.raises(RemoteResourceNotFoundError):
            manager.fetch_log_segment(metadata, 0)

    def test_an_inspection_names_the_objects_with_the_sizes_to_be(self, manager: Manager, copy: Copy) -> None:
        absent = manager.inspect_segment(metadata_of(PARTITION, SEGMENT))
        assert {each.size_bytes for each in absent.objects} == {None}
        assert ObjectContent.LOG in {each.content for each in absent.objects}
        assert absent.manifest_problem is None
        for segment in (SEGMENT, TRANSACTIONAL):
            inspection = manager.inspect_segment(copy(segment))
            assert inspection.manifest_problem is None
            assert inspection.opened is not None
            assert_streamable(inspection.opened, segment)
            present = [each for each in inspection.objects if each.size_bytes is not None]
            assert all(each.is_required is False for each in inspection.objects if each not in present)
            assert all(each.expected_bytes in (None, each.size_bytes) for each in present)
            (log,) = [each for each in present if each.content is ObjectContent.LOG]
            assert log.expected_bytes is not None
            held = {index_type for each in present for index_type in each.index_types}
            assert {index_type.value for index_type in held} == set(segment.objects()) - {"log"}

    def test_a_listing_has_just_the_objects_of_what_was_copied(self, manager: Manager, copy: Copy) -> None:
        manager.ask()  # empty, and it answers
        assert list(manager.list_objects()) == []
        metadatas = [copy(SEGMENT), copy(TRANSACTIONAL), copy(SEGMENT, partition=topic_partition("other-3", 0))]
        expected = {
            (each.name, each.size_bytes, metadata.segment_id)
            for metadata in metadatas
            for each in manager.inspect_segment(metadata).objects
            if each.size_bytes is not None
        }
        manager.ask()
        listed = list(manager.list_objects())
        assert {(each.name, each.size_bytes, each.segment_id) for each in listed} == expected
        assert len(listed) == len(expected)
        assert min(each.modified_ms for each in listed) > 1_500_000_000_000
        assert {each.segment_id.topic_id_partition.topic for each in listed if each.segment_id} == {"orders", "other-3"}

    def test_a_listing_of_one_topic_has_no_other_topics_objects(self, manager: Manager, copy: Copy) -> None:
        for topic in ("orders", "orders-3", "order", "3"):
            copy(SEGMENT, partition=topic_partition(topic, 3))
        listed = list(manager.list_objects("orders"))
        assert {each.segment_id for each in listed} == {metadata_of(PARTITION, SEGMENT).segment_id}
        assert list(manager.list_objects("orders-")) == []

    def test_no_topic_name_leads_out_of_the_tier(self, manager: Manager, tmp_path: Path) -> None:
        data = segment_files(tmp_path / "local", SEGMENT)
        for topic in ("", "..", "../../etc", "a/b", "/etc", "a\x00b", "x" * 250):
            metadata = metadata_of(TopicIdPartition(topic=topic, partition=0, topic_id=uuid_of("hostile")), SEGMENT)
            for call in (
                lambda hostile: manager.copy_log_segment_data(hostile, data),
                lambda hostile: manager.fetch_log_segment(hostile, 0),
                manager.open_log_segment,
                lambda hostile: manager.fetch_index(hostile, IndexType.OFFSET),
                manager.delete_log_segment_data,
                manager.inspect_segment,
            ):
                with case(topic), pytest.raises(IllegalMetadataError):
                    call(metadata)


class BucketContract(RemoteStorageManagerContract):
    """Two tiers of plain objects in one bucket of the fixture `server`."""

    bucket_key: str
    absent_is_named_when_asked = True

    @pytest.fixture
    def bucket(self, server: StoreServer) -> Mapping[str, str]:
        # On a busy machine moto, which serves one request at a time, keeps eight threads waiting.
        return {**server.config(server.make_bucket()), "storage.s3.api.call.attempt.timeout": "60000"}

    @pytest.fixture
    def open_manager(self, open_plain: OpenPlain, bucket: Mapping[str, str]) -> OpenManager:
        return lambda: open_plain({**bucket, "key.prefix": "tiers/one/"})

    @pytest.fixture
    def open_elsewhere(self, open_plain: OpenPlain, bucket: Mapping[str, str]) -> OpenManager:
        return lambda: open_plain({**bucket, "key.prefix": "tiers/two-"})

    def test_a_bucket_that_is_not_there_is_no_empty_tier_and_its_key_is_named(
        self, open_plain: OpenPlain, server: StoreServer
    ) -> None:
        """A listing took it for empty, so that a misspelt bucket had no orphans."""
        manager = open_plain(server.config("there-is-no-such-bucket"))
        for topic in (None, "a"):
            with pytest.raises(RemoteStoreNotFoundError, match=rf"check rsm\.config\.storage\.{self.bucket_key}"):
                list(manager.list_objects(topic))
        if self.absent_is_named_when_asked:
            with pytest.raises(RemoteStoreNotFoundError, match=rf"check rsm\.config\.storage\.{self.bucket_key}"):
                manager.ask()


def assert_readable(manager: Manager, metadata: RemoteLogSegmentMetadata, segment: SyntheticSegment) -> None:
    """Every object of the segment is there with its content."""
    assert manager.fetch_log_segment(metadata, 0) == segment.log
    assert_streamable(manager.open_log_segment(metadata), segment)
    for index_type in IndexType:
        if index_type.value in segment.objects():
            assert manager.fetch_index(metadata, index_type) == segment.objects()[index_type.value]


def assert_streamable(opened: OpenedSegment, segment: SyntheticSegment) -> None:
    """The log can be read whole as a stream."""
    with closing(opened.open_stream(0, len(segment.log))) as stream:
        assert stream.read(len(segment.log)) == segment.log


def assert_not_found(manager: Manager, metadata: RemoteLogSegmentMetadata) -> None:
    """No object of the segment is there, and the error names the segment."""
    name = uuid_to_text(metadata.segment_id.id)
    with pytest.raises(RemoteResourceNotFoundError) as caught:
        manager.fetch_log_segment(metadata, 0)
    assert name in str(caught.value)
    with pytest.raises(RemoteResourceNotFoundError) as caught:
        manager.open_log_segment(metadata).open_stream(0, 1)
    assert name in str(caught.value)
    for index_type in IndexType:
        with pytest.raises(RemoteResourceNotFoundError) as caught:
            manager.fetch_index(metadata, index_type)
        assert name in str(caught.value)
