"""The broker's keys of Azure's blobs, and what is wrong with them."""

import base64

import pytest

from storage.errors import StorageConfigError
from storage.object_store.azure.config import AzureSettings, SasToken, SharedKey, azure_settings
from storage.object_store.registry import open_object_store
from tests.support.for_each import for_each

CONTAINER = {"storage.azure.container.name": "tier"}
KEY = base64.b64encode(b"do-not-show-this").decode()
SAS = "sv=2022-11-02&sr=c&sp=rl&sig=do%2Dnot%2Dshow"


def settings(**given: str) -> AzureSettings:
    return azure_settings(CONTAINER | {f"storage.azure.{key.replace('_', '.')}": value for key, value in given.items()})


@for_each(
    "given, endpoint_url, credentials",
    [
        ({"account_name": "acc"}, "https://acc.blob.core.windows.net", None),
        ({"account_name": "acc", "account_key": KEY}, "https://acc.blob.core.windows.net", SharedKey("acc", KEY)),
        ({"account_name": "acc", "sas_token": f"?{SAS}"}, "https://acc.blob.core.windows.net", SasToken(SAS)),
        (
            {"account_name": "acc", "account_key": KEY, "sas_token": SAS, "endpoint_url": "http://127.0.0.1:1/acc/"},
            "http://127.0.0.1:1/acc",
            SharedKey("acc", KEY),
        ),
        ({"sas_token": SAS, "endpoint_url": "https://x"}, "https://x", SasToken(SAS)),
        (
            {"connection_string": f"DefaultEndpointsProtocol=https;AccountName=acc;AccountKey={KEY};"},
            "https://acc.blob.core.windows.net",
            SharedKey("acc", KEY),
        ),
        (
            {"connection_string": f"accountname=acc;AccountKey={KEY};EndpointSuffix=core.usgovcloudapi.net"},
            "https://acc.blob.core.usgovcloudapi.net",
            SharedKey("acc", KEY),
        ),
        (
            {"connection_string": f"BlobEndpoint=https://acc.example.org/;SharedAccessSignature={SAS}"},
            "https://acc.example.org",
            SasToken(SAS),
        ),
    ],
)
def test_keys_say_where_and_who(given: dict[str, str], endpoint_url: str, credentials: object) -> None:
    found = settings(**given)
    assert (found.endpoint_url, found.credentials, found.container) == (endpoint_url, credentials, "tier")
    assert KEY not in repr(found)
    assert SAS not in repr(found)


def test_a_block_has_the_plug_ins_limits() -> None:
    assert settings(account_name="a").block_bytes == 26_214_400
    assert settings(account_name="a", upload_block_size="102400").block_bytes == 102_400


@for_each(
    "given, message",
    [
        ({}, r"account\.name is not set, nor is"),
        ({"account_key": KEY}, r"account\.name is not set, nor is"),
        ({"account_key": KEY, "sas_token": SAS}, r"account\.name is not set, but .*account\.key is"),
        ({"sas_token": SAS}, r"account\.name is not set, but .*endpoint\.url is not, either"),
        ({"account_name": "a", "account_key": "do-not-show-this"}, r"account\.key holds .* not Base64"),
        ({"account_name": "a", "endpoint_url": "http://x"}, r"endpoint\.url must be https, or .*account\.key"),
        ({"account_name": "a", "endpoint_url": "x"}, r"endpoint\.url must be http://"),
        ({"account_name": "a", "container_name": ""}, r"container\.name is not set"),
        ({"account_name": "a", "upload_block_size": "1000"}, r"block\.size is '1000'"),
        ({"connection_string": f"AccountName=a;AccountKey={KEY}", "account_name": "a"}, "a connection string stands"),
        ({"connection_string": "UseDevelopmentStorage=true"}, "needs BlobEndpoint or AccountName"),
        ({"connection_string": f"AccountKey={KEY};BlobEndpoint=https://x"}, "needs BlobEndpoint or AccountName"),
        ({"connection_string": f"AccountName=a;AccountKey={KEY};BlobEndpoint=x"}, "must be http://"),
        ({"connection_string": "AccountName=a;AccountKey=do-not-show-this"}, "not Base64"),
        ({"account_name": "a", "sas_token": f"{SAS}\nx: y"}, r"sas\.token holds no shared access signature"),
        ({"account_name": "a", "sas_token": "do-not-show-this"}, r"sas\.token holds no shared access signature"),
        ({"connection_string": "BlobEndpoint=https://x;SharedAccessSignature=a b"}, "holds no shared access"),
        ({"account_name": "a", "account_key": KEY, "endpoint_url": "https://störe"}, r"endpoint\.url must be http://"),
    ],
)
def test_a_wrong_value_names_its_key_and_no_secret(given: dict[str, str], message: str) -> None:
    with pytest.raises(StorageConfigError, match=rf"^rsm\.config\.storage\.azure\..*{message}") as caught:
        settings(**given)
    for secret in (KEY, SAS, "do-not-show-this"):
        assert secret not in str(caught.value)


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    backend = {"storage.backend.class": "io.aiven.kafka.tieredstorage.storage.azure.AzureBlobStorage"}
    with pytest.raises(StorageConfigError, match=r"needs the package azure.storage.blob.*tidegate\[azure\]"):
        open_object_store(CONTAINER | backend | {"storage.azure.account.name": "a"})
