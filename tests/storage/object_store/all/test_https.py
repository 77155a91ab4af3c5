"""Every store over TLS: whose certificate is believed, and HTTPS_PROXY and NO_PROXY of the environment."""

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import RetriableRemoteStorageError
from tests.contract.object_store import fetched
from tests.support.certificates import server_certificate
from tests.support.http_stores import OPENERS
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import ScriptedHttp, scripted_http
from tests.support.tunnel_proxy import tunnel_proxy

NAME = "store.test"
"""In a top-level domain that nobody ever has (RFC 6761)."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return server_certificate(tmp_path, NAME)[0]


@pytest.fixture
def https(certificate: Path) -> Iterator[ScriptedHttp]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_name("server.key"))
    with scripted_http(tls) as server:
        server.answer(ranged())
        yield server


@pytest.fixture
def believed(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.usefixtures("believed")
def test_a_certificate_of_ones_own_is_believed_by_the_environment(kind: str, https: ScriptedHttp) -> None:
    with closing(OPENERS[kind](https.endpoint_url, read_timeout_s=30.0)) as store:
        for _ in range(2):
            assert fetched(store, "a", 0, len(BODY)) == BODY
    assert https.connections == 1


@pytest.mark.parametrize("kind", OPENERS)
def test_a_certificate_that_nobody_vouches_for_is_not_believed(kind: str, https: ScriptedHttp) -> None:
    with closing(OPENERS[kind](https.endpoint_url, read_timeout_s=30.0)) as store:
        with pytest.raises(RetriableRemoteStorageError, match="SSL"):
            store.get("a", 0, 1)
        with pytest.raises(RetriableRemoteStorageError):
            store.head("a")
    assert not https.requests


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.usefixtures("believed")
def test_the_environments_proxy_is_a_tunnel_to_the_store(
    kind: str, https: ScriptedHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = https.endpoint_url.rpartition(":")[2]
    with tunnel_proxy({NAME: "127.0.0.1"}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with closing(OPENERS[kind](f"https://{NAME}:{port}", read_timeout_s=30.0)) as store:
            for _ in range(2):
                assert fetched(store, "a", 0, len(BODY)) == BODY
        assert proxy.asked == [f"{NAME}:{port}"]
        monkeypatch.setenv("NO_PROXY", NAME)
        with (
            closing(OPENERS[kind](f"https://{NAME}:{port}", read_timeout_s=30.0)) as store,
            pytest.raises(RetriableRemoteStorageError, match=f"{NAME}:{port}"),
        ):
            store.get("a", 0, 1)
        assert len(proxy.asked) == 1
