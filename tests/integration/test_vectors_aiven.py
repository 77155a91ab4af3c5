"""What the plug-in itself wrote, read through Tidegate's manager: every log and every index, to the byte.

The objects are those of the real plug-in, on its own and in a real broker; sources and keys lie beside them.
"""

import hashlib
import json
import random
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.errors import RemoteResourceNotFoundError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.model import IndexType, RemoteLogSegmentMetadata
from tests.support.aiven_manifest import metadata_in
from tests.support.vectors import vector

ORACLES = ("oracle-plugin-1.0.0", "oracle-plugin-1.0.0-zstd157")
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
INDEX_SOURCES = {
    IndexType.OFFSET: "offset.index",
    IndexType.TIMESTAMP: "time.index",
    IndexType.PRODUCER_SNAPSHOT: "producer.snapshot",
    IndexType.LEADER_EPOCH: "leader-epoch",
    IndexType.TRANSACTION: "txn.index",
}


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """Objects under `root`, and what they hold; None: the segment has no such index."""

    root: Path
    prefix: str
    metadata: RemoteLogSegmentMetadata
    log: bytes
    indexes: dict[IndexType, bytes | None]

    def manager(self) -> AivenRemoteStorageManager:
        keys = vector("aiven", ORACLES[0], "test-keys")
        return AivenRemoteStorageManager(
            {
                "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage",
                "storage.root": str(self.root),
                "key.prefix": self.prefix,
                "chunk.size": "4096",
                "encryption.enabled": "true",
                "encryption.key.pair.id": "key1",
                "encryption.key.pairs": "key1",
                "encryption.key.pairs.key1.public.key.file": str(keys / "public.pem"),
                "encryption.key.pairs.key1.private.key.file": str(keys / "private.pem"),
            }
        )


def oracle_segment(folder: str, name: str) -> WrittenSegment:
    """A case of the plug-in on its own."""
    source = vector("aiven", folder, "source")
    case = next(case for case in json.loads((source.parent / "cases.json").read_text()) if case["case"] == name)
    manifest = next((source.parent / name).rglob("*.rsm-manifest"))
    indexes: dict[IndexType, bytes | None] = {
        index_type: (source / file).read_bytes() for index_type, file in INDEX_SOURCES.items()
    }
    if not case["txn"]:
        indexes[IndexType.TRANSACTION] = None
    if case["time_index_empty"]:
        indexes[IndexType.TIMESTAMP] = b""
    custom_metadata = bytes.fromhex(case["custom_metadata_hex"])
    return WrittenSegment(
        source.parent / name,
        "pfx/",
        metadata_in(json.loads(manifest.read_text()), custom_metadata or None),
        (source / case["segment"]).read_bytes(),
        indexes,
    )


def assert_read_whole(written: WrittenSegment) -> None:
    manager = written.manager()
    assert manager.fetch_log_segment(written.metadata, 0) == written.log
    opened = manager.open_log_segment(written.metadata)
    for index_type, content in written.indexes.items():
        if content is None:
            with pytest.raises(RemoteResourceNotFoundError):
                opened.fetch_index(index_type)
        else:
            assert opened.fetch_index(index_type) == manager.fetch_index(written.metadata, index_type) == content
    randomness = random.Random(1)
    for _ in range(20):
        start = randomness.randrange(len(written.log))
        end = randomness.randrange(start + 1, len(written.log) + 1)
        middle = randomness.randint(start, end)
        with closing(opened.open_stream(start, end)) as stream:
            assert stream.read(middle - start) == written.log[start:middle]
            assert stream.read(end - middle) == written.log[middle:end]


@pytest.mark.needs("vectors")
@pytest.mark.parametrize("folder", ORACLES)
def test_every_case_of_the_plugin_decodes_to_its_source_bytes(folder: str) -> None:
    cases = json.loads(vector("aiven", folder, "cases.json").read_text())
    assert [case["case"] for case in cases] == list(CASES)
    for name in CASES:
        assert_read_whole(oracle_segment(folder, name))


@pytest.mark.needs("vectors")
def test_a_segment_of_a_real_broker_decodes_to_its_source_bytes(tmp_path: Path) -> None:
    folder = vector("aiven", "kafka-4.3.0-broker")
    expected = json.loads((folder / "expected.json").read_text())
    # The broker's objects are kept without their folders.
    target = tmp_path / "tiered" / (folder / "topic-dir.txt").read_text().strip() / "0"
    shutil.copytree(folder / "remote", target)
    manifest = next(target.glob("00000000000000000000-*.rsm-manifest"))
    written = WrittenSegment(
        tmp_path,
        "tiered/",
        metadata_in(json.loads(manifest.read_text())),
        b"",
        {
            IndexType.OFFSET: bytes.fromhex(expected["indexes"]["offset"]),
            IndexType.TIMESTAMP: bytes.fromhex(expected["indexes"]["timestamp"]),
            IndexType.PRODUCER_SNAPSHOT: bytes.fromhex(expected["indexes"]["producerSnapshot"]),
            IndexType.LEADER_EPOCH: bytes.fromhex(expected["indexes"]["leaderEpoch"]),
            IndexType.TRANSACTION: None,
        },
    )
    log = written.manager().fetch_log_segment(written.metadata, 0)
    assert (len(log), hashlib.sha256(log).hexdigest()) == (expected["segment_size"], expected["segment_sha256"])
    assert_read_whole(WrittenSegment(written.root, written.prefix, written.metadata, log, written.indexes))
