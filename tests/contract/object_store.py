"""What every ObjectStore does: subclass ObjectStoreContract and give it `open_store`.

The suite is the seam's meaning in code (storage/object_store/object_store.py); a store's own tests hold only what is
particular to it.
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import InvalidRangeError, RemoteResourceNotFoundError
from storage.object_store.local_file import LocalFile
from storage.object_store.object_store import ObjectStore
from tests.support.for_each import for_each

OpenStore = Callable[[], ObjectStore]

KEY = "tiered/orders-AAAA/3/00000000000000000100-BBBB.log"
CONTENT = random.Random(5).randbytes(300_000)
THREADS = 8


class ObjectStoreContract:
    """A subclass's fixture `open_store` opens a store on one bucket, empty at first; each call another store.

    A store that uploads in parts is opened with `part_bytes` small enough for `LARGE_PIECES` to need several.
    """

    LARGE_PIECES = (1, 2_000_000, 6_000_000, 5_242_880, 3)
    threads_key = "folder/{folder}/{number}.log"
    """Keys of many threads at once. Folders come and go with their objects, where a store has any."""

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[ObjectStore]:
        store = open_store()
        yield store
        store.close()

    @pytest.fixture
    def filled(self, store: ObjectStore) -> ObjectStore:
        """With one object."""
        store.put(KEY, CONTENT)
        return store

    def test_an_object_comes_back_as_it_was_put(self, filled: ObjectStore) -> None:
        assert fetched(filled, KEY, 0, len(CONTENT)) == CONTENT

    @for_each("start, end", [(0, 1), (0, 100), (99, 100), (1000, 250_000), (299_999, 300_000)])
    def test_a_range_has_its_start_and_not_its_end(self, filled: ObjectStore, start: int, end: int) -> None:
        assert fetched(filled, KEY, start, end) == CONTENT[start:end]

    def test_a_body_is_shorter_when_the_object_ends_first(self, filled: ObjectStore) -> None:
        assert fetched(filled, KEY, 299_990, 400_000) == CONTENT[-10:]
        assert fetched(filled, KEY, 0, 2**40) == CONTENT

    @for_each("start", [300_000, 300_001, 2**40])
    def test_a_range_behind_the_end_is_no_range(self, filled: ObjectStore, start: int) -> None:
        with pytest.raises(InvalidRangeError, match="BBBB"):
            filled.get(KEY, start, start + 10)

    def test_a_body_is_read_in_pieces_of_any_size(self, filled: ObjectStore) -> None:
        stream = filled.get(KEY, 100, 250_100)
        assert stream.size_bytes == 250_000
        found = bytearray(250_000)
        view, at = memoryview(found), 0
        for size_bytes in (1, 0, 7, 8192, 100_000, 1, 141_799):
            stream.readinto(view[at : at + size_bytes])
            at += size_bytes
        stream.close()
        assert at == 250_000
        assert found == CONTENT[100:250_100]

    def test_a_body_may_be_closed_before_its_end_and_twice(self, filled: ObjectStore) -> None:
        for _ in range(20):
            stream = filled.get(KEY, 0, len(CONTENT))
            stream.readinto(memoryview(bytearray(10)))
            stream.close()
            stream.close()
        assert fetched(filled, KEY, 0, len(CONTENT)) == CONTENT

    def test_what_was_never_put_is_not_found_and_the_error_names_it(self, filled: ObjectStore) -> None:
        for call in (lambda: filled.get(f"{KEY}.not", 0, 1), lambda: filled.head("tiered/orders-AAAA/3")):
            with pytest.raises(RemoteResourceNotFoundError, match="orders-AAAA"):
                call()

    def test_a_put_replaces(self, filled: ObjectStore) -> None:
        filled.put(KEY, b"shorter")
        assert fetched(filled, KEY, 0, 100) == b"shorter"

    @for_each("pieces", [[], [b""], [b"a"], [b"", b"ab", b"", b"c"]])
    def test_a_put_takes_pieces(self, store: ObjectStore, pieces: list[bytes]) -> None:
        store.put(KEY, iter(pieces))
        assert store.head(KEY).size_bytes == len(b"".join(pieces))

    def test_a_large_put_of_pieces_is_whole(self, store: ObjectStore) -> None:
        content = random.Random(6).randbytes(sum(self.LARGE_PIECES))
        store.put(KEY, pieces_of(content, self.LARGE_PIECES))
        assert store.head(KEY).size_bytes == len(content)
        assert fetched(store, KEY, 0, len(content)) == content

    def test_a_large_put_of_bytes_is_whole(self, store: ObjectStore) -> None:
        content = random.Random(7).randbytes(sum(self.LARGE_PIECES))
        store.put(KEY, content)
        assert fetched(store, KEY, 0, len(content)) == content

    def test_a_local_file_is_put_whole(self, store: ObjectStore, tmp_path: Path) -> None:
        content = random.Random(8).randbytes(sum(self.LARGE_PIECES))
        for size_bytes in (0, 1000, len(content)):
            path = tmp_path / "segment.log"
            path.write_bytes(content[:size_bytes])
            store.put(KEY, LocalFile(path))
            assert store.head(KEY).size_bytes == size_bytes
        assert fetched(store, KEY, 0, len(content)) == content

    @for_each("pieces_before", [0, 1, 3])
    def test_a_source_that_raises_leaves_nothing_and_is_heard(self, store: ObjectStore, pieces_before: int) -> None:
        class SourceError(OSError):
            """An OSError, so that a store that takes it for its own is found out."""

        def source() -> Iterator[bytes]:
            for size_bytes in self.LARGE_PIECES[:pieces_before]:
                yield bytes(size_bytes)
            raise SourceError("the disk")

        with pytest.raises(SourceError, match="the disk"):
            store.put(KEY, source())
        assert list(store.list("")) == []
        with pytest.raises(RemoteResourceNotFoundError):
            store.head(KEY)

    def test_a_source_that_raises_leaves_what_was_there(self, store: ObjectStore) -> None:
        store.put(KEY, b"before")

        def source() -> Iterator[bytes]:
            yield b"after"
            raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            store.put(KEY, source())
        assert fetched(store, KEY, 0, 100) == b"before"

    def test_deletes_take_what_exists_and_mind_nothing_absent(self, store: ObjectStore) -> None:
        keys = [f"a/{number}/x.log" for number in range(5)]
        for key in keys:
            store.put(key, b"x")
        store.delete_many([keys[0], "a/0/y.log", "absent/at/all", keys[2], keys[2]])
        assert [found.key for found in store.list("")] == [keys[1], keys[3], keys[4]]
        store.delete_many([])
        store.delete_many(keys)
        assert list(store.list("")) == []
        store.put(keys[0], b"again")
        assert fetched(store, keys[0], 0, 9) == b"again"

    def test_a_list_is_in_ascending_order_of_keys(self, store: ObjectStore) -> None:
        keys = ["a", "a-b", "a.b/c", "b/c", "b/c.d", "b0", "ä/ö", "b/d/e/f", "B", "b c+d%2F&<e>"]
        for key in keys:
            store.put(key, key.encode())
        found = list(store.list(""))
        assert [head.key for head in found] == sorted(keys, key=str.encode)
        assert [head.size_bytes for head in found] == [len(head.key.encode()) for head in found]

    @for_each("prefix", ["tiered/", "tiered/b", "tiered/b/", "tiered/b/1", "none", "tiered/a/1.log"])
    def test_a_list_has_the_keys_that_begin_with_the_prefix(self, store: ObjectStore, prefix: str) -> None:
        keys = ["other/x", "tiered/a/1.log", "tiered/a/1.log.indexes", "tiered/b/1", "tiered/b/10", "tiered/bc/1"]
        for key in keys:
            store.put(key, b"")
        assert [head.key for head in store.list(prefix)] == [key for key in keys if key.startswith(prefix)]

    def test_a_head_has_size_and_age(self, store: ObjectStore) -> None:
        before_ms = time.time_ns() // 1_000_000
        store.put(KEY, b"12345")
        head = store.head(KEY)
        assert (head.key, head.size_bytes) == (KEY, 5)
        # Whole seconds in S3, and the clock of another process.
        assert before_ms - 2000 <= head.modified_ms <= time.time_ns() // 1_000_000 + 2000
        assert [found.key for found in store.list("tiered")] == [KEY]

    def test_calls_of_many_threads_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        def put_read_delete(number: int) -> None:
            key = self.threads_key.format(folder=number % 3, number=number)
            content = CONTENT[number : number + 50_000]
            store.put(key, content)
            assert fetched(store, key, 10, 50_000) == content[10:]
            # The last of a folder takes the folder along, under the hands of those who put.
            store.delete_many([key])

        with ThreadPoolExecutor(THREADS) as threads:
            assert list(threads.map(put_read_delete, range(4 * THREADS))) == [None] * 4 * THREADS
        assert list(store.list("")) == []


def fetched(store: ObjectStore, key: str, start: int, end: int) -> bytes:
    """A range, read whole."""
    stream = store.get(key, start, end)
    try:
        found = bytearray(stream.size_bytes)
        stream.readinto(memoryview(found))
        return bytes(found)
    finally:
        stream.close()


def pieces_of(content: bytes, sizes_bytes: tuple[int, ...]) -> Iterator[bytes]:
    """The content in pieces of those sizes."""
    at = 0
    for size_bytes in sizes_bytes:
        yield content[at : at + size_bytes]
        at += size_bytes
