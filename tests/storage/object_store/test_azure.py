"""Azure's blobs: the contract over Azurite; what is particular to them over scripted answers."""

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    StorageConfigError,
    ThrottledError,
)
from storage.object_store import azure_client
from storage.object_store.azure import AzureStore
from storage.object_store.azure_config import SasToken, SharedKey
from storage.object_store.object_store import ask_store
from storage.object_store.registry import open_object_store
from tests.contract.object_store import ObjectStoreContract, OpenStore, fetched
from tests.support.azurite import ACCOUNT, KEY, AzureServer, azurite
from tests.support.http_stores import OpenScripted, azure_error
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import ScriptedHttp

FAR = datetime(2090, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with azurite(tmp_path_factory.mktemp("azurite")) as started:
        yield started


@pytest.fixture
def sas_of(server: AzureServer) -> Callable[[str, str], SasToken]:
    """A shared access signature for a container, with permissions by their letters."""

    def make(container: str, letters: str) -> SasToken:
        permission = ContainerSasPermissions.from_string(letters)
        return SasToken(generate_container_sas(ACCOUNT, container, KEY, permission=permission, expiry=FAR))

    return make


@pytest.mark.needs("azurite")
class TestAzureStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, server: AzureServer) -> OpenStore:
        settings = server.settings(server.make_bucket())
        return lambda: AzureStore(settings)


@pytest.mark.needs("azurite")
def test_a_connection_string_opens_the_store(server: AzureServer) -> None:
    store = open_object_store(server.config(server.make_bucket()))
    store.put("a", b"x")
    assert fetched(store, "a", 0, 1) == b"x"
    ask_store(store, "prefix/")
    store.close()


@pytest.mark.needs("azurite")
@pytest.mark.parametrize("key", ["a b+c%2F&=?#ü", "a/~x'(1)*!$,;:@"])
def test_a_signature_may_be_over_any_key(server: AzureServer, key: str) -> None:
    store = AzureStore(server.settings(server.make_bucket()))
    store.put(key, b"abc")
    assert fetched(store, key, 1, 3) == b"bc"
    store.close()


@pytest.mark.needs("azurite")
def test_a_shared_access_signature_reads_and_no_more(
    server: AzureServer, sas_of: Callable[[str, str], SasToken]
) -> None:
    container = server.make_bucket()
    owner = AzureStore(server.settings(container))
    owner.put("a", b"abc")
    reader = AzureStore(server.settings(container, credentials=sas_of(container, "rl")))
    assert fetched(reader, "a", 0, 3) == b"abc"
    assert [found.key for found in reader.list("")] == ["a"]
    with pytest.raises(RemoteAccessDeniedError, match=r"PUT: AuthorizationPermissionMismatch .*SAS with w \(write\)"):
        reader.put("b", b"x")
    lister = AzureStore(server.settings(container, credentials=sas_of(container, "l")))
    with pytest.raises(RemoteAccessDeniedError, match=r"it takes the role Storage Blob Data Reader, or a SAS with r"):
        lister.get("a", 0, 1)
    for store in (owner, reader, lister):
        store.close()


@pytest.mark.needs("azurite")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.1"])
@pytest.mark.parametrize("signs", ["key", "sas"])
def test_a_batch_is_taken_whoever_signs_it_and_wherever_the_account_is(
    server: AzureServer, sas_of: Callable[[str, str], SasToken], host: str, signs: str
) -> None:
    """The SDK takes the first host for an emulator's and names the account in the parts; the second it does not."""
    container = server.make_bucket()
    changes: dict[str, object] = {"endpoint_url": server.endpoint_url.replace("127.0.0.1", host)}
    if signs == "sas":
        changes["credentials"] = sas_of(container, "wdl")
    keys = ["a b+c%2F&=?#ü", "a/~x'(1)*!$,;:@", "x//y"]
    with closing(AzureStore(server.settings(container, **changes))) as store:
        for key in keys:
            store.put(key, b"x")
        refused = store.delete_batch([*keys, "absent"])
        assert [None if each is None else each.status for each in refused] == [None, None, None, 404]
        assert list(store.list("")) == []


@pytest.mark.needs("azurite")
def test_a_wrong_key_and_a_missing_container_are_told(server: AzureServer) -> None:
    wrong = AzureStore(server.settings("none", credentials=SharedKey(ACCOUNT, KEY[::-1].replace("=", "A"))))
    with pytest.raises(RemoteAccessDeniedError, match=r"a wrong key, a SAS that has expired|AuthorizationFailure"):
        wrong.get("a", 0, 1)
    wrong.close()
    absent = AzureStore(server.settings("none"))
    with pytest.raises(RemoteStoreNotFoundError, match=r"ContainerNotFound .*rsm\.config\.storage\.azure\.container"):
        ask_store(absent, "")
    absent.close()


@pytest.fixture
def scripted(open_scripted: OpenScripted) -> OpenScripted:
    return functools.partial(open_scripted, "azure")


@pytest.mark.parametrize("in_body", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (404, "BlobNotFound", RemoteResourceNotFoundError),
        (404, "ContainerNotFound", RemoteStoreNotFoundError),
        (403, "AuthorizationFailure", RemoteAccessDeniedError),
        (403, "AuthenticationFailed", RemoteAccessDeniedError),
        (416, "InvalidRange", InvalidRangeError),
        (503, "ServerBusy", ThrottledError),
        (503, "Unheard", RetriableRemoteStorageError),
        (500, "OperationTimedOut", RetriableRemoteStorageError),
        (500, "InternalError", RetriableRemoteStorageError),
        (409, "BlobArchived", RemoteStorageError),
        (400, "Md5Mismatch", CorruptObjectError),
        (400, "InvalidResourceName", StorageConfigError),
    ],
)
def test_what_the_store_says_decides_the_error(
    http: ScriptedHttp, scripted: OpenScripted, status: int, code: str, error: type[Exception], in_body: bool
) -> None:
    http.answer(azure_error(status, code, in_body=in_body))
    store = scripted()
    for call in (lambda: store.get("a/key", 0, 9), lambda: list(store.list("a/key"))):
        with pytest.raises(RemoteStorageError, match=rf"azure://tier/a/key at 127.*: {code} \(HTTP {status}") as caught:
            call()
        assert type(caught.value) is error
        assert KEY not in str(caught.value)


def test_the_store_says_when_to_ask_again(http: ScriptedHttp, scripted: OpenScripted) -> None:
    http.answer(azure_error(503, "ServerBusy", Retry_After="7"))
    with pytest.raises(ThrottledError) as caught:
        scripted().get("a", 0, 1)
    assert caught.value.retry_after_s == 7


class Chain(NamedTuple):
    """In place of Azure's default chain: tokens by number, each good for as long as it says."""

    given: list[str]

    def get_token(self, *_scopes: str) -> AccessToken:
        self.given.append(f"token-{len(self.given)}")
        return AccessToken(self.given[-1], int(FAR.timestamp()))


def only_gets_with(chain: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK sends no tokens without TLS, which a scripted server does not speak; our GETs do not go through it."""
    monkeypatch.setattr(azure_client, "DefaultAzureCredential", lambda **_: chain)
    monkeypatch.setattr(azure_client, "ContainerClient", lambda *_, **__: None)


def test_a_token_is_asked_for_once_and_anew_when_refused(
    http: ScriptedHttp, scripted: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain([])
    only_gets_with(chain, monkeypatch)
    for answer in (ranged(), ranged(), azure_error(401, "InvalidAuthenticationInfo"), ranged()):
        http.answer(answer)
    store = scripted(credentials=None)
    for _ in range(3):
        assert fetched(store, "a", 0, len(BODY)) == BODY
    sent = [line for head in http.heads for line in head.split("\r\n") if line.startswith("authorization:")]
    assert sent == [f"authorization: Bearer token-{number}" for number in (0, 0, 0, 1)]


def test_without_any_token_the_message_names_the_keys(
    http: ScriptedHttp, scripted: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody:
        def get_token(self, *_scopes: str) -> AccessToken:
            raise ClientAuthenticationError("no source in the chain gave a token")

    only_gets_with(Nobody(), monkeypatch)
    with pytest.raises(RemoteAccessDeniedError, match=r"no token: .*check rsm\.config\.storage\.azure\.account\.key"):
        scripted(credentials=None).get("a", 0, 1)
    assert not http.requests


@pytest.mark.parametrize("call", ["get", "list"])
def test_silence_and_a_reset_are_told_apart(http: ScriptedHttp, scripted: OpenScripted, call: str) -> None:
    store = scripted(read_timeout_s=0.3)
    ask: Callable[[], object] = (lambda: store.get("a", 0, 1)) if call == "get" else (lambda: list(store.list("")))
    http.answer(b"", then="stall")
    with pytest.raises(StalledTransferError):
        ask()
    http.answer(b"", then="reset")
    http.answer(b"", then="reset")
    with pytest.raises(StalledTransferError):
        ask()  # the answer of before serves one request more
    with pytest.raises(RetriableRemoteStorageError) as caught:
        ask()
    assert type(caught.value) is RetriableRemoteStorageError
