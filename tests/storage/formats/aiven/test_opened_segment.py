"""An opened segment: ranges in every mode, what is copied, and what is refused."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from storage.errors import (
    CorruptObjectError,
    IndexLostError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from storage.formats.aiven.chunk_index import FixedChunkIndex, VariableChunkIndex
from storage.formats.aiven.cipher import OVERHEAD_BYTES, ChunkCipher
from storage.formats.aiven.encoding import ChunkEncryption, compress
from storage.formats.aiven.manifest import Manifest, StoredIndex
from storage.formats.aiven.object_keys import ObjectSuffix
from storage.formats.aiven.opened_segment import CHUNK_BYTES_MAX, INDEX_BYTES_MAX, AivenSegment
from storage.formats.aiven.segment_objects import ObjectPlace, SegmentObjects
from storage.model import IndexType
from storage.object_store.files.store import FileSystemStore
from tests.support.for_each import for_each
from tests.support.scripted_object_store import ScriptedObjectStore

LOG = b"".join(f"{number:08d}".encode() for number in range(1250))
CHUNK_BYTES = 1024
MODES = ("plain", "zstd", "encrypted", "zstd and encrypted")
CODED_MODES = MODES[1:]
ENCRYPTION = ChunkEncryption(bytes(range(32)), b"aad")
PLACE = ObjectPlace("tier/", "orders/7")
NO_INDEXES: Mapping[IndexType, StoredIndex | None] = dict.fromkeys(IndexType)


@dataclass(frozen=True, slots=True)
class World:
    """A log of one mode in a store, and the segment that reads it."""

    store: ScriptedObjectStore
    segment: AivenSegment
    sizes: list[int]


def cipher_of(mode: str) -> ChunkCipher | None:
    return ChunkCipher(ENCRYPTION.data_key, ENCRYPTION.aad) if "encrypted" in mode else None


def write_log(root: Path, mode: str, log: bytes = LOG, chunk_bytes: int = CHUNK_BYTES) -> World:
    store = ScriptedObjectStore(FileSystemStore(root))
    chunks = [log[position : position + chunk_bytes] for position in range(0, len(log), chunk_bytes)]
    if "zstd" in mode:
        chunks = [compress(chunk) for chunk in chunks]
    if "encrypted" in mode:
        chunks = [ENCRYPTION.encrypt(chunk) for chunk in chunks]
    store.put(PLACE.key(ObjectSuffix.LOG), chunks)
    sizes = [len(chunk) for chunk in chunks]
    return World(store, segment_of(store, mode, sizes, len(log), chunk_bytes), sizes)


def segment_of(
    store: ScriptedObjectStore, mode: str, sizes: list[int], file_bytes: int, chunk_bytes: int = CHUNK_BYTES
) -> AivenSegment:
    index: FixedChunkIndex | VariableChunkIndex
    if "zstd" in mode:
        index = VariableChunkIndex.of_sizes(chunk_bytes, file_bytes, sizes)
    else:
        index = FixedChunkIndex(chunk_bytes, file_bytes, sizes[0], sizes[-1])
    manifest = Manifest(index, NO_INDEXES, compression="zstd" in mode)
    return AivenSegment(SegmentObjects(store, [PLACE]), manifest, cipher_of(mode))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, World]:
    """By mode. Written once, since a property reads them many times; nobody changes them."""
    return {mode: write_log(tmp_path_factory.mktemp("worlds"), mode) for mode in MODES}


@pytest.fixture
def store(tmp_path: Path) -> ScriptedObjectStore:
    return ScriptedObjectStore(FileSystemStore(tmp_path))


@pytest.mark.parametrize("mode", MODES)
@given(cuts=st.lists(st.integers(0, len(LOG)), min_size=2, max_size=8))
def test_any_range_in_any_pieces_is_a_slice_of_the_log(worlds: Mapping[str, World], mode: str, cuts: list[int]) -> None:
    cuts.sort()
    assume(cuts[0] < cuts[-1])
    with closing(worlds[mode].segment.open_stream(cuts[0], cuts[-1])) as stream:
        for start, end in pairwise(cuts):
            piece = stream.read(end - start)
            assert isinstance(piece, bytes | bytearray)
            assert piece == LOG[start:end]
        assert stream.read(0) == b""


@for_each("mode", CODED_MODES)
def test_a_stream_is_one_get_of_the_whole_chunks(tmp_path: Path, mode: str) -> None:
    world = write_log(tmp_path, mode)
    world.segment.open_stream(CHUNK_BYTES + 5, 3 * CHUNK_BYTES + 1).close()
    start, end = sum(world.sizes[:1]), sum(world.sizes[:4])
    assert world.store.gets() == [("tier/orders/7.log", start, end)]
    assert world.segment.stored_bytes(CHUNK_BYTES + 5, 3 * CHUNK_BYTES + 1) == end - start
    assert world.segment.chunk_bytes == CHUNK_BYTES
    assert world.store.streams_open == 0


def test_a_plain_log_is_read_from_any_byte_to_any_other(tmp_path: Path) -> None:
    world = write_log(tmp_path, "plain")
    world.segment.open_stream(CHUNK_BYTES + 5, 3 * CHUNK_BYTES + 1).close()
    assert world.store.gets() == [("tier/orders/7.log", CHUNK_BYTES + 5, 3 * CHUNK_BYTES + 1)]
    assert world.segment.stored_bytes(CHUNK_BYTES + 5, 3 * CHUNK_BYTES + 1) == 2 * CHUNK_BYTES - 4
    assert world.segment.chunk_bytes == 1


@for_each("mode", MODES)
def test_a_body_that_breaks_is_retriable_and_the_next_stream_whole(tmp_path: Path, mode: str) -> None:
    world = write_log(tmp_path, mode)
    world.store.reset(after_bytes=sum(world.sizes) // 2)
    with closing(world.segment.open_stream(0, len(LOG))) as stream, pytest.raises(RetriableRemoteStorageError):
        stream.read(len(LOG))
    with closing(world.segment.open_stream(0, len(LOG))) as stream:
        assert stream.read(len(LOG)) == LOG


@for_each("mode", MODES)
def test_a_log_shorter_than_its_index_says_is_corrupt(tmp_path: Path, mode: str) -> None:
    world = write_log(tmp_path, mode)
    stored = (tmp_path / "tier/orders/7.log").read_bytes()
    for size in (0, 1, len(stored) - 1):
        world.store.put("tier/orders/7.log", stored[:size])
        with pytest.raises(CorruptObjectError, match=r"7\.log: bytes .* wanted, and the object ends"):
            world.segment.open_stream(0, len(LOG))
    assert world.store.streams_open == 0


@for_each("mode", ["encrypted", "zstd and encrypted"])
def test_a_flipped_bit_is_found_in_the_chunk_that_has_it(tmp_path: Path, mode: str) -> None:
    world = write_log(tmp_path, mode)
    position = sum(world.sizes[:4]) + 20
    world.store.flip_bit("*.log", position=position, times=1)
    with closing(world.segment.open_stream(0, len(LOG))) as stream:
        assert stream.read(4 * CHUNK_BYTES) == LOG[: 4 * CHUNK_BYTES]
        with pytest.raises(CorruptObjectError, match=rf"tier/orders/7\.log: chunk 4 at {position - 20}\b"):
            stream.read(CHUNK_BYTES)


@for_each("mode", ["zstd", "zstd and encrypted"])
def test_a_chunk_inflates_to_its_own_size_and_no_further(tmp_path: Path, mode: str) -> None:
    world = write_log(tmp_path, mode, bytes(1_000_000), 1_000_000)
    for file_bytes in (999_999, 1_000_001):
        segment = segment_of(world.store, mode, world.sizes, file_bytes, chunk_bytes=2_000_000)
        with closing(segment.open_stream(0, 10)) as stream, pytest.raises(CorruptObjectError, match="chunk 0 at 0"):
            stream.read(10)


@for_each("mode", ["plain", "encrypted"])
def test_uncompressed_chunks_must_have_their_plaintexts_size(tmp_path: Path, mode: str) -> None:
    world = write_log(tmp_path, mode)
    overhead_bytes = OVERHEAD_BYTES if mode == "encrypted" else 0
    for first, last, chunk in ((1, 0, 0), (-1, 0, 0), (0, 1, 9), (0, -1, 9)):
        sizes = [world.sizes[0] + first, world.sizes[-1] + last]
        expected_bytes = (CHUNK_BYTES if chunk == 0 else len(LOG) % CHUNK_BYTES) + overhead_bytes
        message = rf"rsm-manifest: chunkIndex gives chunk {chunk} \d+ bytes in the store; .* {expected_bytes}$"
        with pytest.raises(CorruptObjectError, match=message):
            segment_of(world.store, mode, sizes, len(LOG))


def test_uncompressed_chunks_may_have_a_variable_index(tmp_path: Path) -> None:
    world = write_log(tmp_path, "plain")
    objects = SegmentObjects(world.store, [PLACE])
    segment = AivenSegment(
        objects,
        Manifest(VariableChunkIndex.of_sizes(CHUNK_BYTES, len(LOG), world.sizes), NO_INDEXES, compression=False),
        None,
    )
    with closing(segment.open_stream(5, 5000)) as stream:
        assert stream.read(4995) == LOG[5:5000]
    moved = [*world.sizes[:4], world.sizes[4] - 1, world.sizes[5] + 1, *world.sizes[6:]]
    manifest = Manifest(VariableChunkIndex.of_sizes(CHUNK_BYTES, len(LOG), moved), NO_INDEXES, compression=False)
    with pytest.raises(CorruptObjectError, match="gives chunk 4 1023 bytes"):
        AivenSegment(objects, manifest, None)


def test_a_chunk_of_no_bytes_is_corrupt(tmp_path: Path) -> None:
    world = write_log(tmp_path, "zstd")
    segment = segment_of(world.store, "zstd", [0, *world.sizes[1:]], len(LOG))
    with pytest.raises(CorruptObjectError, match="chunks 0 to 0 have no bytes"):
        segment.open_stream(0, 10)
    with closing(segment.open_stream(0, len(LOG))) as stream, pytest.raises(CorruptObjectError, match="chunk 0 at 0"):
        stream.read(10)


def test_chunks_too_large_to_decode_are_refused_and_plain_ones_are_not(store: ScriptedObjectStore) -> None:
    large = CHUNK_BYTES_MAX + 1
    message = f"chunks of up to {large} bytes, and at most {CHUNK_BYTES_MAX} can be decoded"
    for sizes, file_bytes in (([10], large), ([large], 100)):
        with pytest.raises(RemoteStorageError, match=message):
            segment_of(store, "zstd", sizes, file_bytes, 2**30 - 1)
    assert segment_of(store, "zstd", [10], CHUNK_BYTES_MAX, 2**30 - 1).chunk_bytes == 2**30 - 1
    assert segment_of(store, "plain", [large], large, 2**30 - 1).chunk_bytes == 1


def test_indexes_are_found_decrypted_or_absent(store: ScriptedObjectStore) -> None:
    for mode in ("plain", "encrypted"):
        cipher = cipher_of(mode)
        contents = [b"offsets", b"times" * 3]
        stored = [ENCRYPTION.encrypt(content) if cipher else content for content in contents]
        store.put(PLACE.key(ObjectSuffix.INDEXES), b"".join(stored))
        indexes = {
            IndexType.OFFSET: StoredIndex(0, len(stored[0])),
            IndexType.TIMESTAMP: StoredIndex(len(stored[0]), len(stored[1])),
            IndexType.PRODUCER_SNAPSHOT: StoredIndex(len(stored[0]) + len(stored[1]), 0),
            IndexType.LEADER_EPOCH: StoredIndex(0, 10_000),
            IndexType.TRANSACTION: None,
        }
        # Chunks of the log are compressed here, and indexes never are.
        manifest = Manifest(VariableChunkIndex.of_sizes(10, 5, [9]), indexes, compression=True)
        segment = AivenSegment(SegmentObjects(store, [PLACE]), manifest, cipher)
        asked = [index_type for index_type in IndexType if segment.fetches_index(index_type)]
        assert asked == [IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.LEADER_EPOCH]
        assert segment.fetch_index(IndexType.OFFSET) == b"offsets"
        assert segment.fetch_index(IndexType.TIMESTAMP) == b"times" * 3
        store.calls.clear()
        assert segment.fetch_index(IndexType.PRODUCER_SNAPSHOT) == b""
        with pytest.raises(RemoteResourceNotFoundError, match=r"orders/7\.indexes: .* no TRANSACTION index"):
            segment.fetch_index(IndexType.TRANSACTION)
        assert store.calls == []
        with pytest.raises(CorruptObjectError, match=r"orders/7\.indexes: bytes 0 to 9999 wanted"):
            segment.fetch_index(IndexType.LEADER_EPOCH)
        if cipher:
            store.flip_bit("*.indexes", position=3)
            with pytest.raises(CorruptObjectError, match=r"orders/7\.indexes: OFFSET index: AES-GCM"):
                segment.fetch_index(IndexType.OFFSET)
            store.heal()
    assert store.streams_open == 0


def test_an_index_that_the_manifest_names_is_lost_if_its_object_is_not_there(tmp_path: Path) -> None:
    """It was told like an index that the segment never had, and the transaction index was taken for empty."""
    indexes = {**NO_INDEXES, IndexType.TRANSACTION: StoredIndex(100, 34), IndexType.OFFSET: StoredIndex(0, 0)}
    manifest = Manifest(VariableChunkIndex.of_sizes(10, 5, [9]), indexes, compression=True)
    objects = SegmentObjects(ScriptedObjectStore(FileSystemStore(tmp_path)), [PLACE])
    segment = AivenSegment(objects, manifest, None)
    with pytest.raises(IndexLostError, match=r"orders/7\.indexes: .* TRANSACTION index of 34 bytes"):
        segment.fetch_index(IndexType.TRANSACTION)
    assert segment.fetch_index(IndexType.OFFSET) == b""


def test_an_index_has_a_limit(store: ScriptedObjectStore) -> None:
    indexes = {**NO_INDEXES, IndexType.OFFSET: StoredIndex(0, INDEX_BYTES_MAX + 1)}
    manifest = Manifest(FixedChunkIndex(10, 10, 10, 10), indexes, compression=False)
    segment = AivenSegment(SegmentObjects(store, [PLACE]), manifest, None)
    with pytest.raises(CorruptObjectError, match="OFFSET index of 134217729 bytes"):
        segment.fetch_index(IndexType.OFFSET)
    assert store.calls == []
