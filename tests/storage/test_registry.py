"""Class names of a broker's configuration, to what runs here."""

from pathlib import Path

import pytest

from storage.errors import StorageConfigError
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.registry import MetadataManagerKind, metadata_manager_kind, open_remote_storage_manager
from tests.support.cases import case

KAFKAS_LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


@pytest.mark.parametrize("class_name", [KAFKAS_LOCAL, f" {KAFKAS_LOCAL} "])
def test_kafkas_class_name_opens_our_local_tiered_storage(class_name: str, tmp_path: Path) -> None:
    manager = open_remote_storage_manager(class_name, {"dir": str(tmp_path)})
    assert isinstance(manager, LocalTieredStorage)
    manager.close()


def test_a_wrong_value_of_the_plug_in_is_reported_by_the_plug_in() -> None:
    with pytest.raises(StorageConfigError, match=r"rsm\.config\.dir"):
        open_remote_storage_manager(KAFKAS_LOCAL, {})


def test_the_aiven_plug_ins_class_is_known_and_asks_for_its_back_end() -> None:
    with pytest.raises(StorageConfigError, match=r"rsm\.config\.storage\.backend\.class is not set"):
        open_remote_storage_manager("io.aiven.kafka.tieredstorage.RemoteStorageManager", {})


def test_plain_objects_are_opened_by_our_own_name(tmp_path: Path) -> None:
    backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
    config = {"storage.backend.class": backend, "storage.root": str(tmp_path)}
    manager = open_remote_storage_manager("tidegate.PlainObjects", config)
    assert isinstance(manager, PlainObjects)
    manager.close()


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


def test_an_unset_class_name_is_said_to_be_unset() -> None:
    with pytest.raises(StorageConfigError, match=r"remote\.log\.storage\.manager\.class\.name is not set"):
        open_remote_storage_manager("", {})
    with pytest.raises(StorageConfigError, match=r"remote\.log\.metadata\.manager\.class\.name is not set"):
        metadata_manager_kind(" ")


def test_metadata_managers_are_found_by_kafkas_name_and_by_ours() -> None:
    topic_based = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    assert metadata_manager_kind(topic_based) is MetadataManagerKind.TOPIC_BASED
    assert metadata_manager_kind("tidegate.InMemory") is MetadataManagerKind.IN_MEMORY


def test_an_unknown_metadata_manager_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(StorageConfigError, match=r"the nearest one is tidegate\.InMemory"):
        metadata_manager_kind("tidegate.Memory")
