"""Backends by the class names of Aiven's plug-in."""

from pathlib import Path

import pytest

from storage.errors import StorageConfigError
from storage.object_store.files.store import FileSystemStore
from storage.object_store.registry import open_object_store
from storage.object_store.s3.store import S3Store
from tests.support.for_each import for_each
from tests.support.s3_server import S3Server

PACKAGE = "io.aiven.kafka.tieredstorage.storage."
FILE_SYSTEM = f"{PACKAGE}filesystem.FileSystemStorage"
S3 = f"{PACKAGE}s3.S3Storage"


def test_the_file_system_backend_is_a_folder(tmp_path: Path) -> None:
    store = open_object_store({"storage.backend.class": f" {FILE_SYSTEM} ", "storage.root": str(tmp_path)})
    assert isinstance(store, FileSystemStore)
    store.put("a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_the_s3_backend_reads_its_keys(s3_endpoint: S3Server) -> None:
    store = open_object_store(s3_endpoint.config(s3_endpoint.make_bucket()))
    assert isinstance(store, S3Store)
    store.put("a", b"x")
    assert store.head("a").size_bytes == 1
    store.close()


@for_each("root", [None, "", "/not/there"])
def test_a_root_must_be_there(root: str | None) -> None:
    config = {"storage.backend.class": FILE_SYSTEM} | ({} if root is None else {"storage.root": root})
    with pytest.raises(StorageConfigError, match=r"^rsm\.config\.storage\.root"):
        open_object_store(config)


def test_a_wrong_value_is_reported_with_the_users_prefix() -> None:
    with pytest.raises(StorageConfigError, match=r"^my\.prefix\.storage\.s3\.region is not set"):
        open_object_store({"storage.backend.class": S3}, prefix="my.prefix.")


@for_each("name", ["oci.OciStorage"])
def test_backends_of_later_versions_are_refused_by_name(name: str) -> None:
    with pytest.raises(StorageConfigError) as caught:
        open_object_store({"storage.backend.class": PACKAGE + name})
    assert str(caught.value).startswith(f"rsm.config.storage.backend.class={PACKAGE}{name} names ")
    assert "this version does not read" in str(caught.value)


@for_each("name, nearest", [(f"{PACKAGE}s3.S3Storge", S3), ("FileSystemStorage", FILE_SYSTEM)])
def test_an_unknown_name_gets_the_nearest_right_one(name: str, nearest: str) -> None:
    with pytest.raises(StorageConfigError, match=f"the nearest one is {nearest}$"):
        open_object_store({"storage.backend.class": name})


@for_each("name", ["hdfs.HdfsStorage", "oss.OssStorage"])
def test_a_store_that_is_not_known_is_not_taken_for_another(name: str) -> None:
    """Failed before: HDFS and OSS were to be Google's."""
    with pytest.raises(StorageConfigError, match=r"not a class that Tidegate knows; it knows .*s3\.S3Storage"):
        open_object_store({"storage.backend.class": PACKAGE + name})


@for_each("config", [{}, {"storage.backend.class": " "}])
def test_no_name_is_an_error_that_names_the_key(config: dict[str, str]) -> None:
    with pytest.raises(StorageConfigError, match=r"^rsm\.config\.storage\.backend\.class is not set$"):
        open_object_store(config)
