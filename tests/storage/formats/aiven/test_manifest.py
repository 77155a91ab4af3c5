"""The manifest: the plug-in's JSON in both directions, and what is not one; members of a JSON object, checked and named
when wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError, IcebergSegmentError, RemoteStorageError
from storage.formats.aiven.checked_json import INT32_MAX, JsonObject, parse_json_object
from storage.formats.aiven.chunk_index import FixedChunkIndex, VariableChunkIndex
from storage.formats.aiven.encoding import encode_manifest
from storage.formats.aiven.manifest import Manifest, SegmentEncryption, StoredIndex, decode_manifest
from storage.model import IndexType
from tests.support.aiven_manifest import metadata_in
from tests.support.for_each import for_each

NAME = "pfx/seg.rsm-manifest"
PLACE = {"position": 0, "size": 1}
MEMBERS: dict[str, Any] = {
    "version": "1",
    "chunkIndex": {
        "type": "fixed",
        "originalChunkSize": 100,
        "originalFileSize": 250,
        "transformedChunkSize": 100,
        "finalTransformedChunkSize": 50,
    },
    "segmentIndexes": {
        "offset": {"position": 0, "size": 8},
        "timestamp": {"position": 8, "size": 12},
        "producerSnapshot": {"position": 20, "size": 10},
        "leaderEpoch": {"position": 30, "size": 0},
        "transaction": None,
    },
    "compression": False,
}
INDEXES = {
    IndexType.OFFSET: StoredIndex(0, 8),
    IndexType.TIMESTAMP: StoredIndex(8, 12),
    IndexType.PRODUCER_SNAPSHOT: StoredIndex(20, 10),
    IndexType.LEADER_EPOCH: StoredIndex(30, 0),
    IndexType.TRANSACTION: None,
}


def decoded(members: dict[str, Any]) -> Manifest:
    return decode_manifest(json.dumps(members).encode(), NAME)


METADATA = metadata_in(
    MEMBERS
    | {
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": "lZ6vvmajTWKDBUTV6SQAtQ",
                    "topicPartition": {"topic": "topic1", "partition": 42},
                },
                "id": "adh9f8BMS4anaUnD8KWfWg",
            },
            "startOffset": 0,
            "endOffset": 1000,
            "maxTimestampMs": 1,
            "brokerId": 2,
            "eventTimestampMs": 2,
            "segmentLeaderEpochs": {"0": 0},
        }
    }
)


def test_the_order_of_members_and_strangers_do_not_matter() -> None:
    manifest = Manifest(FixedChunkIndex(100, 250, 100, 50), INDEXES, compression=False)
    assert decoded(MEMBERS) == manifest
    assert decoded(dict(reversed(MEMBERS.items()))) == manifest
    assert decoded(MEMBERS | {"stranger": {"deep": [1]}, "remoteLogSegmentMetadata": 5, "encryption": None}) == manifest
    strange_indexes = MEMBERS["segmentIndexes"] | {"bloom": PLACE, "offset": {"size": 8, "position": 0, "crc": 1}}
    assert decoded(MEMBERS | {"segmentIndexes": strange_indexes}) == manifest


def test_a_manifest_shows_no_key_in_messages() -> None:
    encryption = SegmentEncryption("key1:c2VjcmV0", b"aad")
    assert "c2VjcmV0" not in repr(Manifest(FixedChunkIndex(1, 1, 1, 1), INDEXES, True, encryption))


@given(
    compression=st.booleans(),
    encryption=st.none()
    | st.builds(SegmentEncryption, st.from_regex(r"[a-z]+:[A-Za-z0-9+/]{8}", fullmatch=True), st.binary(max_size=40)),
    sizes=st.lists(st.integers(0, 2**20), min_size=1, max_size=20),
    places=st.lists(st.tuples(st.integers(0, 2**30), st.integers(0, 2**30 - 1)), min_size=5, max_size=5),
    without_transactions=st.booleans(),
)
def test_what_is_written_is_read(
    compression: bool,
    encryption: SegmentEncryption | None,
    sizes: list[int],
    places: list[tuple[int, int]],
    without_transactions: bool,
) -> None:
    indexes: dict[IndexType, StoredIndex | None] = {
        index_type: StoredIndex(*place) for index_type, place in zip(IndexType, places, strict=True)
    }
    if without_transactions:
        indexes[IndexType.TRANSACTION] = None
    chunk_index = VariableChunkIndex.of_sizes(10, 10 * len(sizes), sizes)
    manifest = Manifest(chunk_index, indexes, compression, encryption)
    assert decode_manifest(encode_manifest(manifest, METADATA), NAME) == manifest


@given(st.binary(max_size=100))
def test_any_bytes_are_a_manifest_or_refused(data: bytes) -> None:
    with pytest.raises(RemoteStorageError, match=NAME):
        decode_manifest(data, NAME)


def changed(path: str, value: object) -> dict[str, Any]:
    """MEMBERS with another value at a path; Ellipsis takes the member out."""
    members = json.loads(json.dumps(MEMBERS | {"encryption": {"dataKey": "key1:AAECAw==", "aad": "CgsMDQ=="}}))
    *parents, last = path.split(".")
    place = members
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dict(members)


@for_each(
    "path",
    [
        "version",
        "chunkIndex",
        "chunkIndex.type",
        "chunkIndex.originalFileSize",
        "segmentIndexes",
        "segmentIndexes.offset",
        "segmentIndexes.timestamp",
        "segmentIndexes.producerSnapshot",
        "segmentIndexes.leaderEpoch",
        "segmentIndexes.transaction",
        "segmentIndexes.offset.position",
        "segmentIndexes.offset.size",
        "compression",
        "encryption.dataKey",
        "encryption.aad",
    ],
)
def test_a_required_member_that_is_missing_is_named(path: str) -> None:
    with pytest.raises(CorruptObjectError, match=f"{NAME}: {path} is missing"):
        decoded(changed(path, ...))


@for_each(
    "path, value, message",
    [
        ("version", "2", "version is '2'"),
        ("version", 1, "version is 1, not a string"),
        ("chunkIndex", [], "chunkIndex is an array"),
        ("segmentIndexes", None, "segmentIndexes is None"),
        ("segmentIndexes.offset", None, r"segmentIndexes\.offset is None"),
        ("segmentIndexes.transaction", False, r"segmentIndexes\.transaction is False"),
        ("segmentIndexes.timestamp.position", -1, r"segmentIndexes\.timestamp\.position is -1"),
        ("segmentIndexes.timestamp.size", 2**31, r"segmentIndexes\.timestamp\.size is 2147483648"),
        ("segmentIndexes.timestamp.size", INT32_MAX, r"segmentIndexes\.timestamp ends beyond"),
        ("compression", "true", "compression is 'true'"),
        ("compression", None, "compression is None"),
        ("encryption", True, "encryption is True"),
        ("encryption.dataKey", 5, r"encryption\.dataKey is 5"),
        ("encryption.aad", "!", r"encryption\.aad is not base64"),
        ("encryption.aad", "ä", r"encryption\.aad is not base64"),
    ],
)
def test_a_wrong_member_is_named(path: str, value: object, message: str) -> None:
    with pytest.raises(CorruptObjectError, match=f"{NAME}: {message}"):
        decoded(changed(path, value))


def test_what_iceberg_mode_leaves_is_refused_in_one_sentence() -> None:
    with pytest.raises(IcebergSegmentError, match="Iceberg mode"):
        decode_manifest(b"PFA1" + bytes(100), NAME)
    with pytest.raises(IcebergSegmentError, match=r"chunkIndex is missing: .*Iceberg mode"):
        decoded({"version": "1", "dataFiles": []})


def parsed(text: str) -> JsonObject:
    return parse_json_object(text.encode(), "a/manifest")


@for_each("value", ["-1", "2147483648", "1.0", "1e3", "true", '"1"', "null", "[]", "NaN"])
def test_a_size_is_an_int32_from_zero_on(value: str) -> None:
    with pytest.raises(CorruptObjectError, match=r"a/manifest: part\.size is .*not an integer"):
        parsed(f'{{"part": {{"size": {value}}}}}').object("part").int32("size")
    assert parsed(f'{{"size": {INT32_MAX}}}').int32("size") == INT32_MAX


def test_a_wrong_kind_is_named_with_its_path() -> None:
    part = parsed('{"part": {"member": 5, "list": [1]}}').object("part")
    with pytest.raises(CorruptObjectError, match=r"part\.member is 5, not a boolean"):
        part.boolean("member")
    with pytest.raises(CorruptObjectError, match=r"part\.member is 5, not a string"):
        part.text("member")
    with pytest.raises(CorruptObjectError, match=r"part\.list is an array, not an object"):
        part.object("list")
    with pytest.raises(CorruptObjectError, match=r"part\.other is missing"):
        part.text("other")
    with pytest.raises(CorruptObjectError, match=r"part\.other is missing"):
        part.is_null("other")


@for_each(
    "data", [b"", b"{", b"{}x", b"\xff", '{"a": 1}'.encode("utf-16"), b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000]
)
def test_what_is_not_json_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="a/manifest: not JSON"):
        parse_json_object(data, "a/manifest")


@for_each("text", ["[]", "5", "null", '"x"'])
def test_what_is_no_object_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptObjectError, match="is not a JSON object"):
        parsed(text)
