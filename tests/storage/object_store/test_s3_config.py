"""Aiven's S3 keys, and the errors that name them; credentials (a file that changes, secrets that never show), and the
client that is made of them."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from storage.errors import StorageConfigError
from storage.object_store.credentials_file import CREDENTIALS_FILE_BYTES_MAX, CredentialsFile
from storage.object_store.http.get import OpenSockets
from storage.object_store.s3.config import (
    AnonymousCredentials,
    ChecksumMode,
    S3Settings,
    StaticCredentials,
    credentials_file,
    s3_settings,
)
from tests.support.for_each import for_each
from tests.support.scripted_http import scripted_http

BASE = {"storage.s3.bucket.name": "tier", "storage.s3.region": "eu-west-1"}
SECRET = "s3cr3t-value"
PROVIDERS = "software.amazon.awssdk.auth.credentials."


def test_every_key_has_its_effect() -> None:
    settings = s3_settings(
        {
            **BASE,
            "storage.s3.endpoint.url": "http://minio.example:9000/",
            "storage.s3.path.style.access.enabled": "TRUE",
            "storage.s3.multipart.upload.part.size": "5242880",
            "storage.s3.multipart.upload.threshold": "104857600",
            "storage.s3.storage.class": "standard_ia",
            "storage.s3.api.call.attempt.timeout": "2500",
            "storage.s3.checksum.mode": "WHEN_SUPPORTED",
            "storage.s3.legacy.md5.plugin.enabled": "true",
            "storage.aws.access.key.id": "id",
            "storage.aws.secret.access.key": SECRET,
            "storage.aws.session.token": "token",
            "storage.aws.certificate.check.enabled": "false",
        },
        prefix="other.",
    )
    assert settings == S3Settings(
        bucket="tier",
        region="eu-west-1",
        endpoint_url="http://minio.example:9000",
        path_style=True,
        part_bytes=5 * 1024 * 1024,
        single_put_bytes_max=100 * 1024 * 1024,
        storage_class="STANDARD_IA",
        credentials=StaticCredentials("id", SECRET, "token"),
        certificate_check=False,
        request_checksums=ChecksumMode.WHEN_SUPPORTED,
        response_checksums=ChecksumMode.WHEN_SUPPORTED,
        legacy_md5=True,
        connect_timeout_s=2.5,
        read_timeout_s=2.5,
        prefix="other.",
    )
    assert SECRET not in repr(settings)


def test_the_plug_ins_checksum_check_is_of_answers_alone() -> None:
    settings = s3_settings({**BASE, "storage.aws.checksum.check.enabled": "true"})
    assert settings.response_checksums is ChecksumMode.WHEN_SUPPORTED
    assert settings.request_checksums is ChecksumMode.WHEN_REQUIRED


@for_each(
    "call_ms, attempt_ms, expected",
    [
        ("", "", (5.0, 10.0)),
        ("", "30000", (5.0, 30.0)),
        ("20000", "", (5.0, 10.0)),
        ("15000", "", (5.0, 10.0)),
        ("3000", "", (3.0, 3.0)),
        ("3000", "1000", (1.0, 1.0)),
        ("9223372036854775807", "9223372036854775807", (5.0, 3600.0)),
    ],
)
def test_timeouts_bound_waits(call_ms: str, attempt_ms: str, expected: tuple[float, float]) -> None:
    keys = {"storage.s3.api.call.timeout": call_ms, "storage.s3.api.call.attempt.timeout": attempt_ms}
    settings = s3_settings({**BASE, **keys})
    assert (settings.connect_timeout_s, settings.read_timeout_s) == expected


@for_each("key", list(BASE))
def test_a_missing_key_is_named_as_the_user_would_write_it(key: str) -> None:
    with pytest.raises(StorageConfigError, match=rf"^rsm\.config\.{key} is not set"):
        s3_settings({name: value for name, value in BASE.items() if name != key})
    with pytest.raises(StorageConfigError, match=rf"^{key} is not set"):
        s3_settings({**BASE, key: " "}, prefix="")


@for_each(
    "key, value",
    [
        ("storage.s3.endpoint.url", "minio:9000"),
        ("storage.s3.endpoint.url", "ftp://minio"),
        ("storage.s3.endpoint.url", "http://"),
        ("storage.s3.endpoint.url", "http://minio:99999"),
        ("storage.s3.endpoint.url", f"http://user:{SECRET}@minio"),
        ("storage.s3.endpoint.url", f"http://minio/?token={SECRET}"),
        ("storage.s3.endpoint.url", "http://[::1"),
        ("storage.s3.endpoint.url", "http://my_minio:9000"),
        ("storage.s3.path.style.access.enabled", "yes"),
        ("storage.s3.multipart.upload.part.size", "5242879"),
        ("storage.s3.multipart.upload.part.size", "2147483648"),
        ("storage.s3.multipart.upload.part.size", "5 MiB"),
        ("storage.s3.multipart.upload.part.size", "9" * 5000),
        ("storage.s3.storage.class", "STANDARD IA"),
        ("storage.s3.api.call.timeout", "0"),
        ("storage.s3.api.call.attempt.timeout", "-5"),
        ("storage.s3.checksum.mode", "always"),
        ("storage.s3.legacy.md5.plugin.enabled", "1"),
        ("storage.aws.certificate.check.enabled", "no"),
        ("storage.aws.checksum.check.enabled", "on"),
        ("storage.aws.session.token", SECRET),
        ("storage.aws.credentials.provider.class", "com.example.Mine"),
        ("storage.aws.credentials.provider.class", f"{PROVIDERS}SystemPropertyCredentialsProvider"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(key: str, value: str) -> None:
    with pytest.raises(StorageConfigError) as caught:
        s3_settings({**BASE, key: value})
    assert str(caught.value).startswith(f"rsm.config.{key} ")
    assert SECRET not in str(caught.value)


@for_each("present", ["access.key.id", "secret.access.key"])
def test_half_a_key_is_an_error_without_the_other_half(present: str) -> None:
    with pytest.raises(StorageConfigError, match=rf"rsm\.config\.storage\.aws\.{present} is") as caught:
        s3_settings({**BASE, f"storage.aws.{present}": SECRET})
    assert SECRET not in str(caught.value)


def test_a_file_of_credentials_is_named_and_not_read_yet() -> None:
    credentials = s3_settings({**BASE, "storage.aws.credentials.file": "/not/there"}).credentials
    assert isinstance(credentials, CredentialsFile)
    assert credentials.path == Path("/not/there")
    assert credentials.key == "rsm.config.storage.aws.credentials.file"


@for_each(
    "name",
    ["DefaultCredentialsProvider", "InstanceProfileCredentialsProvider", "WebIdentityTokenFileCredentialsProvider"],
)
def test_providers_of_the_java_sdk_are_the_sdks_chain(name: str) -> None:
    key = "storage.aws.credentials.provider.class"
    assert s3_settings({**BASE, key: PROVIDERS + name}).credentials is None


def test_the_anonymous_provider_signs_nothing() -> None:
    key = "storage.aws.credentials.provider.class"
    settings = s3_settings({**BASE, key: f"{PROVIDERS}AnonymousCredentialsProvider"})
    assert settings.credentials == AnonymousCredentials()


def test_the_static_provider_needs_keys() -> None:
    config = {**BASE, "storage.aws.credentials.provider.class": f"{PROVIDERS}StaticCredentialsProvider"}
    with pytest.raises(StorageConfigError, match=r"^rsm\.config\.storage\.aws\.access\.key\.id is not set"):
        s3_settings(config)
    keys = {"storage.aws.access.key.id": "id", "storage.aws.secret.access.key": SECRET}
    assert s3_settings({**config, **keys}).credentials == StaticCredentials("id", SECRET)


def test_two_ways_to_name_credentials_are_one_too_many() -> None:
    keys = {"storage.aws.access.key.id": "id", "storage.aws.secret.access.key": SECRET}
    file = {"storage.aws.credentials.file": "/f"}
    provider = {"storage.aws.credentials.provider.class": f"{PROVIDERS}DefaultCredentialsProvider"}
    for both in (keys | file, keys | provider, file | provider):
        with pytest.raises(StorageConfigError, match="are both set") as caught:
            s3_settings({**BASE, **both})
        assert SECRET not in str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials.properties"


@for_each("prefix", ["aws.", "rsm.config.storage.aws.", "storage.aws."])
def test_the_plug_ins_names_are_read(path: Path, prefix: str) -> None:
    path.write_text(f"{prefix}access.key.id = id\n{prefix}secret.access.key: {SECRET}\n{prefix}session.token=t\n")
    assert credentials_file(path, "k").content() == StaticCredentials("id", SECRET, "t")


def test_the_longer_name_wins_and_the_token_may_be_absent(path: Path) -> None:
    path.write_text("aws.access.key.id=a\nrsm.config.storage.aws.access.key.id=b\naws_secret_access_key=c\n")
    assert credentials_file(path, "k").content() == StaticCredentials("b", "c", None)


def test_a_file_that_is_being_written_leaves_the_last_good_keys(path: Path) -> None:
    path.write_text("aws.access.key.id=a\naws.secret.access.key=x\n")
    file = credentials_file(path, "k")
    good = file.content()
    path.write_text("aws.access.key.id=bb\n")
    assert file.content() == good
    path.unlink()
    assert file.content() == good
    path.write_text("aws.access.key.id=new\naws.secret.access.key=x\n")
    assert file.content().access_key_id == "new"


@for_each(
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
        credentials_file(path, "rsm.config.x").content()
    assert str(path) in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)


def test_no_secret_is_in_the_text_form(path: Path) -> None:
    path.write_text(f"aws.access.key.id=a\naws.secret.access.key={SECRET}\naws.session.token={SECRET}\n")
    file = credentials_file(path, "k")
    assert SECRET not in f"{file.content()!r} {file!r} {StaticCredentials('a', SECRET, SECRET)}"


def test_a_connection_that_opens_while_the_store_is_closed_ends_too() -> None:
    with scripted_http() as http:
        sockets, address = OpenSockets(), urlsplit(http.endpoint_url)
        sockets.shut_down()
        with socket.create_connection((str(address.hostname), int(address.port or 0))) as opened:
            sockets.add(opened)
            assert opened.recv(1) == b""
