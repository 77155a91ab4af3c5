"""What is particular to Azure's blobs: tokens of its chain. The rest is test_stores.py's and the contract's."""

import functools
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from storage.errors import InvalidRangeError, RemoteAccessDeniedError
from storage.object_store.azure import client as azure_client
from tests.contract.object_store import fetched
from tests.support.http_stores import OpenScripted, azure_error
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import ScriptedHttp, response

FAR = datetime(2090, 1, 1, tzinfo=UTC)


@pytest.fixture
def scripted(open_scripted: OpenScripted) -> OpenScripted:
    return functools.partial(open_scripted, "azure")


def test_an_empty_range_at_the_objects_end_is_no_range(http: ScriptedHttp, scripted: OpenScripted) -> None:
    """Azurite's answer where others say 416."""
    http.answer(response(206, headers={"Content-Range": "bytes 5-4/5"}))
    with pytest.raises(InvalidRangeError, match="ends at 5"):
        scripted().get("a", 5, 9)


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
