"""Class names of a broker's configuration, to what runs here."""

from dataclasses import replace
from pathlib import Path

import pytest

from storage.config.registry import (
    MetadataManagerKind,
    metadata_manager_kind,
    open_remote_storage_manager,
    stored_bytes,
)
from storage.errors import StorageConfigError
from storage.formats.aiven.custom_metadata import CustomMetadataFields
from storage.formats.aiven.encoding import encode_custom_metadata
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.model import CustomMetadata
from tests.support.cases import case
from tests.support.metadata_records import started

KAFKAS_LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


def test_a_class_name_opens_what_runs_here(tmp_path: Path) -> None:
    backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
    plain = {"storage.backend.class": backend, "storage.root": str(tmp_path)}
    for class_name, config, kind in (
        (KAFKAS_LOCAL, {"dir": str(tmp_path)}, LocalTieredStorage),
        (f" {KAFKAS_LOCAL} ", {"dir": str(tmp_path)}, LocalTieredStorage),
        ("tidegate.PlainObjects", plain, PlainObjects),
    ):
        manager = open_remote_storage_manager(class_name, config)
        assert isinstance(manager, kind), class_name
        manager.close()


def test_what_is_not_set_is_named() -> None:
    aiven = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
    for class_name, told in (
        (KAFKAS_LOCAL, r"rsm\.config\.dir"),
        (aiven, r"rsm\.config\.storage\.backend\.class is not set"),
        ("", r"remote\.log\.storage\.manager\.class\.name is not set"),
    ):
        with pytest.raises(StorageConfigError, match=told):
            open_remote_storage_manager(class_name, {})
    with pytest.raises(StorageConfigError, match=r"remote\.log\.metadata\.manager\.class\.name is not set"):
        metadata_manager_kind(" ")


def test_an_unknown_storage_manager_is_answered_with_the_nearest_known_one() -> None:
    for class_name, nearest in [
        ("org.apache.kafka.server.log.remote.storage.LocalTieredStorge", KAFKAS_LOCAL),
        ("io.aiven.kafka.tieredstorage.RemoteStorage", "io.aiven.kafka.tieredstorage.RemoteStorageManager"),
        ("tidegate.plainobjects", "tidegate.PlainObjects"),
    ]:
        with case(class_name, nearest), pytest.raises(StorageConfigError) as caught:
            open_remote_storage_manager(class_name, {})
        assert str(caught.value).endswith(f"the nearest one is {nearest}")
        assert "remote.log.storage.manager.class.name" in str(caught.value)


def test_what_a_segment_takes_in_the_store_is_known_where_the_metadata_say_so() -> None:
    aiven, noted = "io.aiven.kafka.tieredstorage.RemoteStorageManager", CustomMetadataFields(remote_size_bytes=700)
    for class_name, custom, known in (
        (aiven, encode_custom_metadata(noted), 700),
        (aiven, encode_custom_metadata(CustomMetadataFields(object_prefix="tier/")), None),
        (aiven, CustomMetadata(b"broken"), None),
        (aiven, None, None),
        (KAFKAS_LOCAL, encode_custom_metadata(noted), None),
    ):
        with case(class_name, custom):
            assert stored_bytes(class_name, replace(started("s", 0, 9), custom_metadata=custom)) == known


def test_metadata_managers_are_found_by_kafkas_name_and_by_ours() -> None:
    topic_based = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    assert metadata_manager_kind(topic_based) is MetadataManagerKind.TOPIC_BASED
    assert metadata_manager_kind("tidegate.InMemory") is MetadataManagerKind.IN_MEMORY
    with pytest.raises(StorageConfigError, match=r"the nearest one is tidegate\.InMemory"):
        metadata_manager_kind("tidegate.Memory")
