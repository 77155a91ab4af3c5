"""Every store through SOCKS5: the proxy alone knows the store's name, and gets no address."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import RetriableRemoteStorageError
from storage.object_store.object_store import ObjectStore
from storage.object_store.registry import open_object_store
from tests.contract.object_store import fetched
from tests.support.azurite import azurite
from tests.support.fake_gcs import fake_gcs
from tests.support.socks_server import SocksServer, socks_server
from tests.support.versitygw import versitygw

NAME = "store.test"
"""In a top-level domain that nobody ever has (RFC 6761)."""


USER = ("reader", "p@ss:word/")


@pytest.fixture
def gcs(tmp_path: Path) -> Iterator[dict[str, str]]:
    with fake_gcs(tmp_path) as server:
        yield server.config(server.make_bucket())


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[dict[str, str]]:
    with azurite(tmp_path) as server:
        yield server.config(server.make_bucket())


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "objects" / "tier").mkdir(parents=True)
    with versitygw(tmp_path / "objects", tmp_path / "work") as server:
        yield server.config("tier")


STORES = [
    pytest.param("s3", marks=pytest.mark.needs("versitygw")),
    pytest.param("gcs", marks=pytest.mark.needs("fake-gcs-server")),
    pytest.param("azure", marks=pytest.mark.needs("azurite")),
]


def under_another_name(config: Mapping[str, str]) -> dict[str, str]:
    return {key: value.replace("127.0.0.1", NAME) for key, value in config.items()}


def through(proxy: SocksServer, config: Mapping[str, str], user: tuple[str, str] | None) -> ObjectStore:
    keys = {"storage.proxy.host": "127.0.0.1", "storage.proxy.port": str(proxy.port)}
    if user is not None:
        keys |= {"storage.proxy.username": user[0], "storage.proxy.password": user[1]}
    return open_object_store({**under_another_name(config), **keys})


@pytest.mark.parametrize("kind", STORES)
def test_every_verb_goes_through_the_proxy(kind: str, request: pytest.FixtureRequest) -> None:
    config = request.getfixturevalue(kind)
    with socks_server({NAME: "127.0.0.1"}, user=USER) as proxy, closing(through(proxy, config, USER)) as store:
        store.put("a/b", b"content")
        assert fetched(store, "a/b", 1, 7) == b"ontent"
        assert [found.key for found in store.list("a/")] == ["a/b"]
        assert store.head("a/b").size_bytes == 7
        store.delete_many(["a/b", "a/absent"])
        assert list(store.list("")) == []
        assert {name for name, _ in proxy.asked} == {NAME}
        assert proxy.refused_addresses == 0
        with socks_server({NAME: "127.0.0.1"}, user=USER) as other:
            with closing(through(other, config, (USER[0], "wrong"))) as refused:
                for call in (lambda: refused.get("a", 0, 1), lambda: refused.head("a")):
                    with pytest.raises(
                        RetriableRemoteStorageError, match=r"proxy\.host: .*SOCKS5 authentication failed"
                    ) as caught:
                        call()
                    assert "wrong" not in str(caught.value)
            assert not other.asked


@pytest.mark.parametrize("kind", STORES)
def test_without_the_proxy_nobody_knows_the_name(kind: str, request: pytest.FixtureRequest) -> None:
    with closing(open_object_store(under_another_name(request.getfixturevalue(kind)))) as store:
        for call in (lambda: store.get("a", 0, 1), lambda: store.head("a")):
            with pytest.raises(RetriableRemoteStorageError):
                call()
