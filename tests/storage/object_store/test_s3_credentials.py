"""Credentials: a file that changes, and secrets that never show."""

import os
from pathlib import Path

import pytest

from storage.errors import StorageConfigError
from storage.object_store.s3_config import CREDENTIALS_FILE_BYTES_MAX, CredentialsFile, StaticCredentials

SECRET = "s3cr3t-value"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials.properties"


@pytest.mark.parametrize("prefix", ["aws.", "rsm.config.storage.aws.", "storage.aws."])
def test_the_plug_ins_names_are_read(path: Path, prefix: str) -> None:
    path.write_text(f"{prefix}access.key.id = id\n{prefix}secret.access.key: {SECRET}\n{prefix}session.token=t\n")
    assert CredentialsFile(path, "k").credentials() == StaticCredentials("id", SECRET, "t")


def test_the_longer_name_wins_and_the_token_may_be_absent(path: Path) -> None:
    path.write_text("aws.access.key.id=a\nrsm.config.storage.aws.access.key.id=b\naws_secret_access_key=c\n")
    assert CredentialsFile(path, "k").credentials() == StaticCredentials("b", "c", None)


def test_a_changed_file_is_read_again(path: Path) -> None:
    path.write_text("aws.access.key.id=a\naws.secret.access.key=x\n")
    file = CredentialsFile(path, "k")
    assert file.credentials().access_key_id == "a"
    path.write_text("aws.access.key.id=b\naws.secret.access.key=x\n")
    os.utime(path, ns=(1, 1))
    assert file.credentials().access_key_id == "b"


def test_a_file_that_is_being_written_leaves_the_last_good_keys(path: Path) -> None:
    path.write_text("aws.access.key.id=a\naws.secret.access.key=x\n")
    file = CredentialsFile(path, "k")
    good = file.credentials()
    path.write_text("aws.access.key.id=bb\n")
    assert file.credentials() == good
    path.unlink()
    assert file.credentials() == good
    path.write_text("aws.access.key.id=new\naws.secret.access.key=x\n")
    assert file.credentials().access_key_id == "new"


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        f"aws.secret.access.key={SECRET}".encode(),
        f"aws.secret.access.key={SECRET}\\u12".encode(),
        b"#" * (CREDENTIALS_FILE_BYTES_MAX + 1),
    ],
)
def test_a_file_that_never_was_good_is_an_error_without_secrets(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageConfigError, match=r"^rsm\.config\.x: ") as caught:
        CredentialsFile(path, "rsm.config.x").credentials()
    assert str(path) in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageConfigError, match="cannot read"):
        CredentialsFile(tmp_path, "k").credentials()


def test_no_secret_is_in_the_text_form(path: Path) -> None:
    path.write_text(f"aws.access.key.id=a\naws.secret.access.key={SECRET}\naws.session.token={SECRET}\n")
    file = CredentialsFile(path, "k")
    assert SECRET not in f"{file.credentials()!r} {file!r} {StaticCredentials('a', SECRET, SECRET)}"
