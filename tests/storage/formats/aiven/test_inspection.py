"""What a segment has in the store and should have: sizes, the manifest against the metadata, listings."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.errors import RemoteStorageError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.object_keys import main_path
from storage.model import CustomMetadata, RemoteLogSegmentMetadata
from storage.object_store.files.store import FileSystemStore
from storage.remote_storage_manager import ObjectContent, SegmentInspection, SegmentObject
from tests.support.aiven_writer import AivenWriterOptions, write_segment
from tests.support.segments import filled_segment, metadata_of, topic_partition

SEGMENT = filled_segment(100, batch_count=30)
PREFIX = "tier/"


class Tier:
    """One segment, uncompressed."""

    def __init__(self, root: Path, *, fields: tuple[str, ...] = ("REMOTE_SIZE",), prefix: str = PREFIX) -> None:
        self.root = root
        self.store = FileSystemStore(root)
        metadata = metadata_of(topic_partition(), SEGMENT)
        options = AivenWriterOptions(key_prefix=prefix, chunk_bytes=1000, custom_fields=fields)
        custom_metadata = write_segment(self.store, metadata, SEGMENT.objects(), options)
        self.metadata = replace(metadata, custom_metadata=custom_metadata)
        self.path = root / f"{prefix}{main_path(metadata)}.rsm-manifest"

    def inspect(
        self, metadata: RemoteLogSegmentMetadata | None = None, config: Mapping[str, str] | None = None
    ) -> SegmentInspection:
        manager = AivenRemoteStorageManager({"key.prefix": PREFIX, **(config or {})}, store=self.store)
        return manager.inspect_segment(metadata or self.metadata)

    def manifest(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.path.read_bytes())
        return loaded

    def write_manifest(self, members: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(members, separators=(",", ":")))


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


def objects(inspection: SegmentInspection) -> dict[ObjectContent, SegmentObject]:
    return {each.content: each for each in inspection.objects}


def test_custom_metadata_tell_the_size_of_the_manifest(tmp_path: Path) -> None:
    sized, unsized = Tier(tmp_path / "one"), Tier(tmp_path / "other", fields=())
    found = objects(sized.inspect())[ObjectContent.MANIFEST]
    assert found.expected_bytes == found.size_bytes == sized.path.stat().st_size
    assert objects(unsized.inspect())[ObjectContent.MANIFEST].expected_bytes is None


def test_where_another_size_is_wrong_the_sum_says_nothing_of_the_manifest(tier: Tier) -> None:
    log = tier.path.with_suffix(".log")
    log.write_bytes(log.read_bytes() + b"x")
    found = objects(tier.inspect())
    assert found[ObjectContent.MANIFEST].expected_bytes is None
    assert found[ObjectContent.LOG].expected_bytes == len(SEGMENT.log)


def test_objects_are_found_where_custom_metadata_place_them(tmp_path: Path) -> None:
    tier = Tier(tmp_path, fields=("OBJECT_PREFIX", "OBJECT_KEY"), prefix="old/")
    assert all(each.name.startswith("old/") for each in tier.inspect().objects)
    assert all(each.size_bytes == each.expected_bytes for each in tier.inspect().objects[:2])


def test_the_copy_of_the_metadata_is_compared(tier: Tier) -> None:
    for change in (
        {"start_offset": 99},
        {"end_offset": 10_000},
        {"max_timestamp_ms": 1},
        {"segment_leader_epochs": {0: 100, 1: 150}},
    ):
        inspection = tier.inspect(replace(tier.metadata, custom_metadata=None, **change))
        if "start_offset" in change:
            assert {each.size_bytes for each in inspection.objects} == {None}, "another key"
        else:
            assert inspection.opened is None
            assert "the metadata has" in str(inspection.manifest_problem)


def test_a_manifest_without_the_copy_has_no_problem(tier: Tier) -> None:
    members = tier.manifest()
    del members["remoteLogSegmentMetadata"]
    tier.write_manifest(members)
    assert tier.inspect().manifest_problem is None


def test_brokers_write_more_into_the_copy_or_less(tier: Tier) -> None:
    members = tier.manifest()
    members["remoteLogSegmentMetadata"].pop("txnIdxEmpty")
    members["remoteLogSegmentMetadata"] |= {"brokerId": 9, "eventTimestampMs": 7, "later": True}
    tier.write_manifest(members)
    assert tier.inspect().manifest_problem is None


def test_a_member_that_the_plug_in_refuses_is_a_problem(tier: Tier) -> None:
    tier.write_manifest({**tier.manifest(), "more": 1})
    assert "'more'" in str(tier.inspect().manifest_problem)


def test_indexes_that_do_not_follow_one_another_are_a_problem(tier: Tier) -> None:
    members = tier.manifest()
    members["segmentIndexes"]["leaderEpoch"]["position"] += 1
    tier.write_manifest(members)
    assert "LEADER_EPOCH index is at" in str(tier.inspect().manifest_problem)


def test_custom_metadata_that_are_not_the_plug_ins_are_a_problem(tier: Tier) -> None:
    inspection = tier.inspect(replace(tier.metadata, custom_metadata=CustomMetadata(b"\xff\xff")))
    assert "custom metadata" in str(inspection.manifest_problem)
    assert inspection.opened is None


def test_what_this_configuration_cannot_read_is_an_error(tier: Tier) -> None:
    members = tier.manifest()
    members["encryption"] = {"dataKey": "key1:AAAA", "aad": "AAAA"}
    tier.write_manifest(members)
    with pytest.raises(RemoteStorageError, match="no key pair is configured"):
        tier.inspect()


def test_under_a_mask_no_name_shows_the_prefix(tier: Tier) -> None:
    masked = {"key.prefix.mask": "true"}
    assert all(each.name.startswith("<prefix>/") for each in tier.inspect(config=masked).objects)
    (tier.root / PREFIX / "notes").write_bytes(b"1")
    manager = AivenRemoteStorageManager({"key.prefix": PREFIX, **masked}, store=tier.store)
    listed = list(manager.list_objects())
    assert len(listed) == 4
    assert all(each.name.startswith("<prefix>/") for each in listed)


def test_a_prefix_without_a_separator_is_part_of_the_first_name(tmp_path: Path) -> None:
    tier = Tier(tmp_path, prefix="tiered")
    manager = AivenRemoteStorageManager({"key.prefix": "tiered"}, store=tier.store)
    assert {each.segment_id for each in manager.list_objects("orders")} == {tier.metadata.segment_id}
