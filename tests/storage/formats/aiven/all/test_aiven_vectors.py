"""The writer against what the real plug-in wrote of the same sources: manifests by field, objects byte for byte."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.formats.aiven.object_keys import ObjectSuffix, main_path, object_key
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.files.store import FileSystemStore
from storage.object_store.object_store import ObjectStore
from tests.storage.formats.aiven.test_aiven_objects import METADATA, read_back, stored
from tests.support.aiven_decoder import decode_segment
from tests.support.aiven_manifest import metadata_in
from tests.support.aiven_writer import AivenWriterOptions, write_segment
from tests.support.for_each import for_each
from tests.support.vectors import vector

CASES = (
    "plain-c4096",
    "plain-notxn-c1m",
    "zstd-c4096",
    "zstd-onechunk",
    "enc-c4096",
    "zstd-enc-c4096",
    "heur-gzip-c4096",
    "heur-plain-c4096",
)
RUNS = ("oracle-plugin-1.0.0", "oracle-plugin-1.0.0-zstd157")
SAME_ZSTD = RUNS[1]
PREFIX = "pfx/"


def case_of(run: str, name: str) -> Mapping[str, Any]:
    cases = json.loads(vector("aiven", run, "cases.json").read_text())
    assert {case["case"] for case in cases} == set(CASES)
    found: Mapping[str, Any] = next(case for case in cases if case["case"] == name)
    return found


def sources_of(run: str, case: Mapping[str, Any]) -> dict[str, bytes]:
    source = vector("aiven", run, "source")
    files = {
        "log": case["segment"],
        "index": "offset.index",
        "timeindex": "empty" if case["time_index_empty"] else "time.index",
        "snapshot": "producer.snapshot",
        "leader_epoch_checkpoint": "leader-epoch",
        "txnindex": "txn.index" if case["txn"] else None,
    }
    return {suffix: (source / name).read_bytes() for suffix, name in files.items() if name is not None}


def vector_keys() -> Mapping[str, str]:
    """Return the keys of both runs."""
    keys = vector("aiven", RUNS[0], "test-keys")
    return {
        "encryption.enabled": "true",
        "encryption.key.pair.id": "key1",
        "encryption.key.pairs": "key1",
        "encryption.key.pairs.key1.public.key.file": str(keys / "public.pem"),
        "encryption.key.pairs.key1.private.key.file": str(keys / "private.pem"),
    }


def options_of(case: Mapping[str, Any]) -> AivenWriterOptions:
    """As the plugin was configured."""
    return AivenWriterOptions(
        key_prefix=PREFIX,
        chunk_bytes=case["chunk_size"],
        compression=case["compression_enabled"],
        heuristic=case["heuristic"],
        key_pair=vector_keys() if case["encryption"] else None,
        custom_fields=tuple(name for name in case["custom_fields"].split(",") if name),
        txn_index_empty_written=False,
    )


@pytest.mark.needs("vectors")
@for_each("run", RUNS)
@for_each("name", CASES)
def test_the_writer_writes_what_the_plugin_wrote(tmp_path: Path, run: str, name: str) -> None:
    """Byte for byte, where nothing is drawn by lot and zstd is the same; else each field that says nothing of that."""
    case = case_of(run, name)
    ours, plugins = FileSystemStore(tmp_path), FileSystemStore(vector("aiven", run, name))
    options = options_of(case)
    custom_metadata = write_segment(ours, METADATA, sources_of(run, case), options)
    sources = sources_of(run, case)
    metadata = replace(METADATA, segment_size_bytes=len(sources["log"]))
    assert read_back(ours, metadata, PREFIX, vector_keys()) == sources
    is_same_zstd = not options.compression or case["segment"] == "gzip.log" or run == SAME_ZSTD
    assert fields_of(ours, METADATA, PREFIX, with_sizes=is_same_zstd) == fields_of(
        plugins, METADATA, PREFIX, with_sizes=is_same_zstd
    )
    if not is_same_zstd:
        return  # another release of zstd compresses otherwise: compatibility is that it can be read
    assert (custom_metadata or b"").hex() == case["custom_metadata_hex"]
    if options.key_pair is None:
        for suffix in ObjectSuffix:
            assert stored(ours, METADATA, PREFIX, suffix) == stored(plugins, METADATA, PREFIX, suffix)


def fields_of(store: ObjectStore, metadata: RemoteLogSegmentMetadata, prefix: str, *, with_sizes: bool) -> list[object]:
    """Every member of a manifest, at any depth, in order; but what is drawn by lot, whose form alone counts, and the
    chunks' sizes where zstd decides them."""

    def walk(path: str, value: object) -> Iterator[object]:
        if isinstance(value, dict):
            for name, member in value.items():
                yield from walk(f"{path}.{name}", member)
        elif path == ".encryption.dataKey":
            key_id, _, wrapped = str(value).partition(":")
            yield path, key_id, len(base64.b64decode(wrapped, validate=True))
        elif path == ".encryption.aad":
            yield path, len(base64.b64decode(str(value), validate=True))
        else:
            yield path, type(value), None if path == ".chunkIndex.transformedChunks" and not with_sizes else value

    return list(walk("", json.loads(stored(store, metadata, prefix, ObjectSuffix.MANIFEST))))


@pytest.mark.needs("vectors")
def test_the_writer_writes_the_manifest_of_a_kafka_4_3_broker(tmp_path: Path) -> None:
    """Its sources are what its own objects hold, decoded by what shares no code with the writer."""
    folder = vector("aiven", "kafka-4.3.0-broker")
    (manifest,) = (folder / "remote").glob("00000000000000000000-*.rsm-manifest")
    log, indexes, content = (
        manifest.with_suffix(suffix).read_bytes() for suffix in (".log", ".indexes", ".rsm-manifest")
    )
    document = json.loads(content)
    private_key = vector("aiven", RUNS[0], "test-keys") / "private.pem"
    sources = decode_segment(log, indexes, content, {"key1": private_key.read_bytes()}).files
    expected = json.loads((folder / "expected.json").read_text())
    assert hashlib.sha256(sources["log"]).hexdigest() == expected["segment_sha256"]
    metadata = replace(metadata_in(document), txn_index_empty=document["remoteLogSegmentMetadata"]["txnIdxEmpty"])
    theirs, ours = FileSystemStore(tmp_path / "theirs"), FileSystemStore(tmp_path / "ours")
    theirs.put(object_key("tiered/", main_path(metadata), ObjectSuffix.MANIFEST), content)
    options = AivenWriterOptions(key_prefix="tiered/", compression=True, key_pair=vector_keys())
    write_segment(ours, metadata, sources, options)
    found, wanted = (fields_of(store, metadata, "tiered/", with_sizes=False) for store in (ours, theirs))
    assert found == wanted
    assert found[-1] == (".remoteLogSegmentMetadata.txnIdxEmpty", bool, True)
