"""What the plug-in and its own tests wrote, against our readers and writers of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorruptObjectError, RemoteStorageError
from storage.formats.aiven.config import KeyRing
from storage.formats.aiven.encoding import (
    encode_chunk_index,
    encode_chunk_sizes,
    encode_custom_metadata,
    encode_manifest,
)
from storage.formats.aiven.manifest import (
    ChunkIndex,
    FixedChunkIndex,
    JsonObject,
    Manifest,
    SegmentEncryption,
    StoredIndex,
    VariableChunkIndex,
    decode_chunk_index,
    decode_chunk_sizes,
    decode_manifest,
)
from storage.formats.aiven.segment_objects import (
    CustomMetadataFields,
    ObjectSuffix,
    decode_custom_metadata,
    main_path,
    masked_object_key,
    object_key,
)
from storage.model import CustomMetadata, IndexType
from tests.storage.formats.aiven.test_object_keys import PATH, SEGMENT
from tests.support.aiven_manifest import metadata_in
from tests.support.aiven_writer import make_key_pair
from tests.support.for_each import for_each
from tests.support.vectors import vector

PUBLIC_NAME = "encryption.key.pairs.key1.public.key.file"


PRIVATE_NAME = "encryption.key.pairs.key1.private.key.file"


@pytest.mark.needs("vectors")
def test_the_data_keys_that_the_plugin_wrapped_are_unwrapped() -> None:
    keys = vector("aiven", "oracle-plugin-1.0.0", "test-keys")
    key_ring = KeyRing(
        {
            "encryption.key.pair.id": "key1",
            "encryption.key.pairs": "key1",
            PUBLIC_NAME: str(keys / "public.pem"),
            PRIVATE_NAME: str(keys / "private.pem"),
        }
    )
    cases = json.loads(vector("aiven", "oaep-sha3-512-vectors.json").read_text())
    for case in cases.values():
        assert key_ring.unwrap(case["dataKey"]).hex() == case["dek_hex"]


@pytest.mark.needs("vectors")
def test_what_the_plugin_refuses_as_a_data_key_is_corrupt(tmp_path: Path) -> None:
    key_ring = KeyRing(make_key_pair(tmp_path, "key1"))
    literals = json.loads(vector("aiven", "literals.json").read_text())["encrypted_data_key"]
    for text in literals["bad"]:
        with pytest.raises(CorruptObjectError):
            key_ring.unwrap(text)
    good = literals["good"]
    with pytest.raises(RemoteStorageError, match=f"wrapped by key pair '{good['key_id']}', not among"):
        key_ring.unwrap(good["text"])


NAME = "pfx/seg.rsm-manifest"


def manifest_of(members: dict[str, Any]) -> Manifest:
    return decode_manifest(json.dumps(members).encode(), NAME)


def vector_manifests() -> Iterator[Path]:
    manifests = sorted(vector("aiven").rglob("*.rsm-manifest"))
    assert len(manifests) == 2 * 8 + 5
    yield from manifests


@pytest.mark.needs("vectors")
def test_manifests_that_the_plugin_wrote_are_written_again_to_the_byte() -> None:
    for path in vector_manifests():
        data = path.read_bytes()
        members = json.loads(data)
        manifest = decode_manifest(data, path.name)
        txn_index_empty = members["remoteLogSegmentMetadata"].get("txnIdxEmpty")
        assert encode_manifest(manifest, metadata_in(members), txn_index_empty=txn_index_empty) == data


@pytest.mark.needs("vectors")
def test_manifests_of_the_plugins_own_tests_hold() -> None:
    facts = json.loads(vector("aiven", "literals.json").read_text())["manifest_v1"]
    data = facts["without_encryption"].encode()
    members = json.loads(data)
    manifest = decode_manifest(data, NAME)
    assert manifest.chunk_index == FixedChunkIndex(100, 1000, 110, 110)
    assert manifest.segment_indexes[IndexType.TRANSACTION] == StoredIndex(4, 1)
    assert (manifest.compression, manifest.encryption) == (False, None)
    assert members["remoteLogSegmentMetadata"] == json.loads(facts["remote_log_segment_metadata_json"])
    assert encode_manifest(manifest, metadata_in(members)) == data

    indexes = json.loads(facts["without_encryption_without_txn_index_segmentIndexes"])
    without = manifest_of(members | {"segmentIndexes": indexes})
    assert without.segment_indexes[IndexType.TRANSACTION] is None

    encryption = json.loads(facts["with_encryption_after_removing_dataKey_encryption_block"])
    encrypted = manifest_of(members | {"encryption": encryption | {"dataKey": "static-key-id:AAECAw=="}})
    assert encrypted.encryption == SegmentEncryption("static-key-id:AAECAw==", bytes(facts["aad_bytes"]))


def literals(section: str) -> Any:
    return json.loads(vector("aiven", "literals.json").read_text())[section]


def chunk_index_of(members: dict[str, Any]) -> FixedChunkIndex | VariableChunkIndex:
    return decode_chunk_index(JsonObject("seg.rsm-manifest", members, "chunkIndex"))


def layout(index: ChunkIndex) -> list[list[int]]:
    """Number, original position and size, transformed position and size of each chunk, as the plug-in's tests have."""
    return [
        [
            chunk,
            chunk * index.original_chunk_bytes,
            index.original_bytes(chunk),
            index.stored_position(chunk),
            index.stored_bytes(chunk),
        ]
        for chunk in range(index.chunk_count)
    ]


@pytest.mark.needs("vectors")
def test_literals_of_the_plugins_serialization_tests_hold() -> None:
    facts = literals("chunk_index_serialization")
    binary = bytes.fromhex(facts["binary_before_zstd_hex"])
    assert list(decode_chunk_sizes(binary)) == facts["decoded_sizes"]
    assert encode_chunk_sizes(facts["decoded_sizes"]) == binary
    for kind in ("fixed", "variable"):
        members = json.loads(facts[f"{kind}_json"])
        index = chunk_index_of(members)
        assert layout(index) == facts[f"{kind}_chunks_id_opos_osize_tpos_tsize"]
        assert json.dumps(encode_chunk_index(index), separators=(",", ":")) == facts[f"{kind}_json"]
        for field in facts[f"required_fields_{kind}"]:
            with pytest.raises(CorruptObjectError, match=rf"seg\.rsm-manifest: chunkIndex\.{field} is missing"):
                chunk_index_of({name: value for name, value in members.items() if name != field})


@pytest.mark.needs("vectors")
def test_literals_of_the_plugins_codec_tests_hold() -> None:
    facts = literals("chunk_sizes_binary_codec")
    for sizes in facts["roundtrip"]:
        assert list(decode_chunk_sizes(encode_chunk_sizes(sizes))) == sizes
    for sizes, width in facts["values_then_bytes_per_value"]:
        binary = encode_chunk_sizes(sizes)
        assert (binary[8], len(binary)) == (width, 9 + (len(sizes) - 1) * width + 4)
        assert list(decode_chunk_sizes(binary)) == sizes
    for sizes in facts["rejected_negative"]:
        with pytest.raises(ValueError, match="not an int32"):
            encode_chunk_sizes(sizes)


@pytest.mark.needs("vectors")
def test_literals_of_the_plugins_builder_tests_hold() -> None:
    fixed_facts, variable_facts = literals("fixed_chunk_index_builder"), literals("variable_chunk_index_builder")
    fixed = FixedChunkIndex(101, 253, fixed_facts["transformed"][0], fixed_facts["transformed"][-1])
    variable = VariableChunkIndex.of_sizes(101, 253, variable_facts["transformed"])
    assert layout(fixed) == fixed_facts["chunks"]
    assert layout(variable) == variable_facts["chunks"]
    for positions, chunk in fixed_facts["find"].items():
        if chunk is not None:
            first, _, last = positions.partition("..")
            for index in (fixed, variable):
                assert index.chunks(int(first), int(last) + 1) == range(chunk, chunk + 1)


@pytest.mark.needs("vectors")
def test_keys_are_those_of_the_plugins_own_tests() -> None:
    literals = json.loads(vector("aiven", "literals.json").read_text())["object_keys"]
    path = main_path(SEGMENT)
    assert path == PATH
    assert object_key("prefix/", path, ObjectSuffix.LOG) == literals["prefix/ + LOG"]
    assert object_key("prefix/", path, ObjectSuffix.INDEXES) == literals["prefix/ + INDEXES"]
    assert object_key("prefix/", path, ObjectSuffix.MANIFEST) == literals["prefix/ + MANIFEST"]
    assert object_key("", path, ObjectSuffix.LOG) == literals["null prefix + LOG"]
    assert masked_object_key(path, ObjectSuffix.LOG) == literals["masked string form"]
    assert object_key("other/", path, ObjectSuffix.LOG) == literals["custom fields {1: other/}"]
    assert object_key("prefix/", "topic/7/file", ObjectSuffix.LOG) == literals["custom fields {2: topic/7/file}"]


def custom_metadata_of(text: str) -> CustomMetadataFields:
    return decode_custom_metadata(CustomMetadata(bytes.fromhex(text)))


@pytest.mark.needs("vectors")
def test_custom_metadata_of_the_plugins_own_tests_hold() -> None:
    literals = json.loads(vector("aiven", "literals.json").read_text())["custom_metadata"]
    fields = CustomMetadataFields(remote_size_bytes=literals["fields"]["0"], object_key=literals["fields"]["2"])
    assert custom_metadata_of(literals["hex_computed_from_spec"]) == fields
    encoded = encode_custom_metadata(fields)
    assert encoded is not None
    assert (encoded.hex(), len(encoded)) == (literals["hex_computed_from_spec"], literals["length"])


@pytest.mark.needs("vectors")
@for_each("folder", ["oracle-plugin-1.0.0", "oracle-plugin-1.0.0-zstd157"])
def test_custom_metadata_that_the_plugin_wrote_are_written_again_to_the_byte(folder: str) -> None:
    for case in json.loads(vector("aiven", folder, "cases.json").read_text()):
        custom_metadata = bytes.fromhex(case["custom_metadata_hex"])
        fields = decode_custom_metadata(CustomMetadata(custom_metadata))
        assert (encode_custom_metadata(fields) or b"") == custom_metadata
        included = case["custom_fields"].split(",")
        assert (fields.remote_size_bytes is not None) == ("REMOTE_SIZE" in included)
        assert (fields.object_prefix == "pfx/") == ("OBJECT_PREFIX" in included)
        assert (fields.object_key is not None) == ("OBJECT_KEY" in included)
