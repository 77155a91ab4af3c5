"""Every format into a store, by every transformation, with and without a transaction index; read by a decoder that
shares no code with the writer. Subclass WrittenSegmentsContract and give it `where`."""

import random
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.plain_objects import PlainObjects
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import uuid_to_text
from storage.object_store.registry import open_object_store
from tests.support.for_each import for_each
from tests.support.segments import (
    SyntheticSegment,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    metadata_of,
    segment_files,
)
from tests.support.writing_tiers import (
    PARTITION,
    PREFIX,
    aiven_config,
    copied,
    found_segment,
    object_key,
    private_keys,
    whole,
)

ABORTED = AbortedTransaction(producer_id=7, first_offset=200, last_offset=250, last_stable_offset=251)
SEGMENTS = {
    "with a transaction index": build_segment(
        [*(data_batch(200 + 5 * number, record_count=5) for number in range(10)), control_batch(250, producer_id=7)],
        aborted=[ABORTED],
    ),
    "without a transaction index": filled_segment(100, batch_count=30),
}
PACED = {"upload.rate.limit.bytes.per.second": "1000000000"}
LARGE_BYTES = 12_000_000
"""Three parts of the smallest size that S3 takes, or chunks and blocks."""


class WrittenSegmentsContract:
    """A subclass's fixture `where` is the keys of an empty store."""

    @pytest.fixture
    def store_config(self, where: Mapping[str, str]) -> Mapping[str, str]:
        return {
            **where,
            "storage.s3.multipart.upload.part.size": str(5 * 1024 * 1024),
            "storage.s3.multipart.upload.threshold": str(5 * 1024 * 1024),
            "storage.gcs.resumable.upload.chunk.size": str(4 * 1024 * 1024),
            "storage.azure.upload.block.size": str(4 * 1024 * 1024),
        }

    @for_each("segment", SEGMENTS.values())
    @for_each("encryption", [False, True])
    @for_each("compression", [False, True])
    def test_what_was_copied_is_decoded_and_gone_after_a_delete(
        self,
        store_config: Mapping[str, str],
        tmp_path: Path,
        segment: SyntheticSegment,
        compression: bool,
        encryption: bool,
    ) -> None:
        transformed = aiven_config(tmp_path, compression=compression, encryption=encryption)
        keys = private_keys(tmp_path, "key1") if encryption else {}
        with (
            closing(AivenRemoteStorageManager({**store_config, **transformed})) as manager,
            closing(open_object_store(store_config)) as store,
        ):
            metadata = copied(manager, tmp_path / "local", segment)
            found = found_segment(store, metadata, keys)
            assert found is not None
            assert found.files == segment.objects()
            assert len(set(found.ivs)) == len(found.ivs), "an IV is never used again"
            assert (len(found.ivs) > 0) == encryption
            heads = list(store.list(""))
            assert {head.key for head in heads} == {
                object_key(metadata, suffix) for suffix in ("log", "indexes", "rsm-manifest")
            }
            assert metadata.custom_metadata == custom_metadata_of(sum(head.size_bytes for head in heads))
            assert manager.inspect_segment(metadata).manifest_problem is None
            manager.delete_log_segment_data(metadata)
            manager.delete_log_segment_data(metadata)
            assert list(store.list("")) == []

    @for_each("segment", SEGMENTS.values())
    @for_each("paced", [{}, PACED])
    def test_plain_objects_are_the_files_themselves(
        self, store_config: Mapping[str, str], tmp_path: Path, segment: SyntheticSegment, paced: Mapping[str, str]
    ) -> None:
        with (
            closing(PlainObjects({**store_config, "key.prefix": PREFIX, **paced})) as manager,
            closing(open_object_store(store_config)) as store,
        ):
            metadata = metadata_of(PARTITION, segment)
            manager.copy_log_segment_data(metadata, segment_files(tmp_path / "local", segment))
            folder = f"{PREFIX}{PARTITION.topic}-{PARTITION.partition}-{uuid_to_text(PARTITION.topic_id)}"
            name = f"{folder}/{metadata.start_offset:020d}-{uuid_to_text(metadata.segment_id.id)}"
            expected = {f"{name}.{suffix}": content for suffix, content in segment.objects().items()}
            assert {head.key: whole(store, head.key) for head in store.list("")} == expected
            manager.delete_log_segment_data(metadata)
            assert list(store.list("")) == []

    @for_each("way", ["as it is", "encrypted", "paced"])
    def test_a_log_of_several_parts_comes_back_whole(
        self, store_config: Mapping[str, str], tmp_path: Path, way: str
    ) -> None:
        log = random.Random(3).randbytes(LARGE_BYTES)
        transformed = aiven_config(tmp_path, encryption=way == "encrypted", chunk_bytes=1_000_000)
        paced = PACED if way == "paced" else {}
        small = filled_segment(100)
        data = segment_files(tmp_path / "local", small)
        data.log_segment.write_bytes(log)
        metadata = replace(metadata_of(PARTITION, small), segment_size_bytes=len(log))
        with (
            closing(AivenRemoteStorageManager({**store_config, **transformed, **paced})) as manager,
            closing(open_object_store(store_config)) as store,
        ):
            manager.copy_log_segment_data(metadata, data)
            found = found_segment(store, metadata, private_keys(tmp_path, "key1") if way == "encrypted" else {})
            assert found is not None
            assert found.files["log"] == log


def custom_metadata_of(remote_size_bytes: int) -> bytes:
    """REMOTE_SIZE and OBJECT_PREFIX, by docs/formats.md#aiven-custom-metadata."""
    number, size = remote_size_bytes * 2, bytearray()
    while number >= 0x80:
        size.append(number & 0x7F | 0x80)
        number >>= 7
    size.append(number)
    prefix = PREFIX.encode()
    return bytes((2, 0, len(size), *size, 1, len(prefix) + 1, len(prefix) + 1, *prefix))
