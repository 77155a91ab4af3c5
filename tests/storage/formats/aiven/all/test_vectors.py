"""What the plug-in and its own tests wrote, against our readers and writers of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorruptObjectError, RemoteStorageError
from storage.formats.aiven.chunk_index import FixedChunkIndex
from storage.formats.aiven.custom_metadata import decode_custom_metadata
from storage.formats.aiven.encoding import encode_custom_metadata, encode_manifest
from storage.formats.aiven.key_pairs import KeyRing
from storage.formats.aiven.manifest import Manifest, SegmentEncryption, StoredIndex, decode_manifest
from storage.formats.aiven.object_keys import ObjectSuffix, main_path, masked_object_key, object_key
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
