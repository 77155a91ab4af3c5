"""The broker's keys of Google Cloud Storage, and what is wrong with them."""

from pathlib import Path

import pytest

from storage.errors import StorageConfigError
from storage.object_store.gcs.config import AnonymousCredentials, GcsSettings, JsonCredentials, gcs_settings
from storage.object_store.registry import open_object_store
from tests.support.for_each import for_each

BUCKET = {"storage.gcs.bucket.name": "tier"}
SECRET = "do-not-show-this"
KEY_JSON = f'{{"type": "service_account", "private_key": "{SECRET}"}}'


def settings(**given: str) -> GcsSettings:
    return gcs_settings(BUCKET | {f"storage.gcs.{key.replace('_', '.')}": value for key, value in given.items()})


def test_every_key_is_read() -> None:
    found = settings(
        endpoint_url="http://127.0.0.1:4443/", credentials_json=KEY_JSON, resumable_upload_chunk_size="524288"
    )
    assert (found.endpoint_url, found.chunk_bytes) == ("http://127.0.0.1:4443", 524_288)
    assert found.credentials == JsonCredentials("rsm.config.storage.gcs.credentials.json", text=KEY_JSON)
    assert SECRET not in repr(found)


@for_each(
    "given, credentials",
    [
        ({"credentials_default": "true"}, None),
        ({"credentials_default": "false"}, AnonymousCredentials()),
        (
            {"credentials_path": "/k.json", "credentials_default": "false"},
            JsonCredentials("rsm.config.storage.gcs.credentials.path", path=Path("/k.json")),
        ),
    ],
)
def test_one_key_names_the_credentials(given: dict[str, str], credentials: object) -> None:
    assert settings(**given).credentials == credentials


@for_each(
    "given, message",
    [
        ({"credentials_json": KEY_JSON, "credentials_path": "/k"}, "path and rsm.* are both set"),
        ({"credentials_json": KEY_JSON, "credentials_default": "true"}, "default and rsm.* are both set"),
        ({"credentials_path": "/k", "credentials_default": "true"}, "default and rsm.* are both set"),
        ({"credentials_default": "yes"}, "not true or false"),
        ({"credentials_json": f"[{SECRET}"}, "json is not a JSON object"),
        ({"credentials_json": f'["{SECRET}"]'}, "json is not a JSON object"),
        ({"endpoint_url": "storage.example.org"}, "must be http"),
        ({"endpoint_url": f"https://user:{SECRET}@x"}, "must be http"),
        ({"resumable_upload_chunk_size": "262143"}, "whole number from 262144"),
        ({"resumable_upload_chunk_size": "393216"}, r"not a multiple of 262144 \(256 KiB\)"),
        ({"bucket_name": " "}, "bucket.name is not set"),
    ],
)
def test_a_wrong_value_names_its_key_and_no_secret(given: dict[str, str], message: str) -> None:
    with pytest.raises(StorageConfigError, match=rf"^rsm\.config\.storage\.gcs\..*{message}") as caught:
        settings(**given)
    assert SECRET not in str(caught.value)


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    backend = {"storage.backend.class": "io.aiven.kafka.tieredstorage.storage.gcs.GcsStorage"}
    with pytest.raises(StorageConfigError, match=r"needs the package google.cloud.storage.*tidegate\[gcs\]"):
        open_object_store(BUCKET | backend)
