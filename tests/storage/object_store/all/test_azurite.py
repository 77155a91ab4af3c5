"""Azure's blobs over Azurite, which checks who signs."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

import pytest
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from storage.errors import RemoteAccessDeniedError, RemoteStoreNotFoundError
from storage.object_store.azure.config import SasToken, SharedKey
from storage.object_store.azure.store import AzureStore
from storage.object_store.object_store import ask_store
from storage.object_store.registry import open_object_store
from tests.contract.object_store import fetched
from tests.support.azurite import ACCOUNT, KEY, AzureServer
from tests.support.for_each import for_each

pytestmark = pytest.mark.needs("azurite")
FAR = datetime(2090, 1, 1, tzinfo=UTC)


@pytest.fixture
def sas_of(azure: AzureServer) -> Callable[[str, str], SasToken]:
    """A shared access signature for a container, with permissions by their letters."""

    def make(container: str, letters: str) -> SasToken:
        permission = ContainerSasPermissions.from_string(letters)
        return SasToken(generate_container_sas(ACCOUNT, container, KEY, permission=permission, expiry=FAR))

    return make


def test_a_connection_string_opens_the_store(azure: AzureServer) -> None:
    store = open_object_store(azure.config(azure.make_bucket()))
    store.put("a", b"x")
    assert fetched(store, "a", 0, 1) == b"x"
    ask_store(store, "prefix/")
    store.close()


@pytest.mark.parametrize("key", ["a b+c%2F&=?#ü", "a/~x'(1)*!$,;:@"])
def test_a_signature_may_be_over_any_key(azure: AzureServer, key: str) -> None:
    store = AzureStore(azure.settings(azure.make_bucket()))
    store.put(key, b"abc")
    assert fetched(store, key, 1, 3) == b"bc"
    store.close()


def test_a_shared_access_signature_reads_and_no_more(
    azure: AzureServer, sas_of: Callable[[str, str], SasToken]
) -> None:
    container = azure.make_bucket()
    owner = AzureStore(azure.settings(container))
    owner.put("a", b"abc")
    reader = AzureStore(azure.settings(container, credentials=sas_of(container, "rl")))
    assert fetched(reader, "a", 0, 3) == b"abc"
    assert [found.key for found in reader.list("")] == ["a"]
    with pytest.raises(RemoteAccessDeniedError, match=r"PUT: AuthorizationPermissionMismatch .*SAS with w \(write\)"):
        reader.put("b", b"x")
    lister = AzureStore(azure.settings(container, credentials=sas_of(container, "l")))
    with pytest.raises(RemoteAccessDeniedError, match=r"it takes the role Storage Blob Data Reader, or a SAS with r"):
        lister.get("a", 0, 1)
    for store in (owner, reader, lister):
        store.close()


@for_each("host", ["127.0.0.1", "127.1"])
@for_each("signs", ["key", "sas"])
def test_a_batch_is_taken_whoever_signs_it_and_wherever_the_account_is(
    azure: AzureServer, sas_of: Callable[[str, str], SasToken], host: str, signs: str
) -> None:
    """The SDK takes the first host for an emulator's and names the account in the parts; the second it does not."""
    container = azure.make_bucket()
    changes: dict[str, object] = {"endpoint_url": azure.endpoint_url.replace("127.0.0.1", host)}
    if signs == "sas":
        changes["credentials"] = sas_of(container, "wdl")
    keys = ["a b+c%2F&=?#ü", "a/~x'(1)*!$,;:@", "x//y"]
    with closing(AzureStore(azure.settings(container, **changes))) as store:
        for key in keys:
            store.put(key, b"x")
        refused = store.delete_batch([*keys, "absent"])
        assert [None if each is None else each.status for each in refused] == [None, None, None, 404]
        assert list(store.list("")) == []


def test_a_wrong_key_and_a_missing_container_are_told(azure: AzureServer) -> None:
    wrong = AzureStore(azure.settings("none", credentials=SharedKey(ACCOUNT, KEY[::-1].replace("=", "A"))))
    with pytest.raises(RemoteAccessDeniedError, match=r"a wrong key, a SAS that has expired|AuthorizationFailure"):
        wrong.get("a", 0, 1)
    wrong.close()
    absent = AzureStore(azure.settings("none"))
    with pytest.raises(RemoteStoreNotFoundError, match=r"ContainerNotFound .*rsm\.config\.storage\.azure\.container"):
        ask_store(absent, "")
    absent.close()
