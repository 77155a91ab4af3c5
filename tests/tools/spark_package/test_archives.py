import base64
import hashlib
import os
import zipfile
from pathlib import Path

from tools.spark_package.archives import with_wheel_metadata, write_zip


def test_the_same_members_are_the_same_bytes_whatever_their_order_and_the_time(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {"a.py": b"1", "b/c.py": b"2"})
    write_zip(tmp_path / "b.zip", {"b/c.py": b"2", "a.py": b"1"})
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.zip", "b.zip"]


def test_a_wheel_has_its_metadata_and_a_record_of_every_member() -> None:
    fields = [("Requires-Dist", "zstandard>=0.23")]
    wheel = with_wheel_metadata({"p/a.py": b"1"}, name="a_b", version="1.2", fields=fields, license_text=b"free")
    metadata = wheel["a_b-1.2.dist-info/METADATA"].decode().splitlines()
    assert metadata == ["Metadata-Version: 2.4", "Name: a-b", "Version: 1.2", "Requires-Dist: zstandard>=0.23"]
    record = [line.split(",") for line in wheel["a_b-1.2.dist-info/RECORD"].decode().splitlines()]
    assert {name for name, _, _ in record} == {*wheel}
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"1").digest()).rstrip(b"=").decode()
    assert ["p/a.py", f"sha256={digest}", "1"] in record


def test_an_archive_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write_zip(path, {"a": b"1"})
    broken: dict[str, bytes] = {"a": b"2", "b": None}  # type: ignore[dict-item]  # what fails in the midst
    try:
        write_zip(path, broken)
    except TypeError:
        assert zipfile.ZipFile(path).read("a") == b"1"
    assert os.listdir(tmp_path) == ["a.zip"]
