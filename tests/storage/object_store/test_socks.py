"""Every store through SOCKS5: the proxy alone knows the store's name, and is told no address."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from storage.errors import RetriableRemoteStorageError, StorageConfigError
from storage.object_store.config_keys import SocksProxy, StoreKeys
from storage.object_store.http_get import OpenSockets
from storage.object_store.http_session import StoreSession
from storage.object_store.object_store import ObjectStore
from storage.object_store.registry import open_object_store
from tests.contract.object_store import fetched
from tests.support.azurite import azurite
from tests.support.fake_gcs import fake_gcs
from tests.support.socks_server import SocksServer, socks_server
from tests.support.versitygw import versitygw

NAME = "store.test"
"""Of a top-level domain that nobody ever has (RFC 6761)."""
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


@pytest.mark.parametrize(
    ("url", "is_direct"),
    [
        ("http://metadata.google.internal/computeMetadata/v1/", True),
        ("http://169.254.169.254/metadata/identity/oauth2/token", True),
        ("http://127.0.0.1:40342/metadata/identity/oauth2/token", True),
        ("http://[fe80::1]/token", True),
        ("https://oauth2.googleapis.com/token", False),
        ("https://127.0.0.2:10000/account", False),
    ],
)
def test_who_this_machine_is_no_proxy_is_asked(url: str, is_direct: bool) -> None:
    session = StoreSession()
    session.reach("https://127.0.0.2:10000/account", OpenSockets(), connections_max=1, proxy=SocksProxy("proxy", 1080))
    proxies = session.merge_environment_settings(url, {}, None, None, None)["proxies"]
    assert proxies == ({} if is_direct else dict.fromkeys(("http", "https"), "socks5h://proxy:1080"))


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


def test_keys_of_a_proxy_come_in_pairs() -> None:
    def proxy(**given: str) -> SocksProxy | None:
        return StoreKeys({f"storage.proxy.{key}": value for key, value in given.items()}, "p.").socks_proxy()

    assert proxy() is None
    assert proxy(host="h", port="1080") == SocksProxy("h", 1080)
    found = proxy(host="h", port="1080", username="u s", password="p@ss")
    assert found is not None
    assert urlsplit(found.url).password == "p%40ss"
    assert "p@ss" not in repr(found)
    for given, message in (
        ({"host": "h"}, r"^p\.storage\.proxy\.port is not set, but p\.storage\.proxy\.host is"),
        ({"port": "1"}, r"^p\.storage\.proxy\.host is not set, but"),
        ({"host": "h", "port": "1", "username": "u"}, r"^p\.storage\.proxy\.password is not set, but"),
        ({"username": "u", "password": "w"}, r"^p\.storage\.proxy\.host is not set, but p\.storage\.proxy\.username"),
        ({"host": "h h", "port": "1"}, r"^p\.storage\.proxy\.host must be a host name"),
        ({"host": "h", "port": "0"}, r"^p\.storage\.proxy\.port is '0'"),
    ):
        with pytest.raises(StorageConfigError, match=message):
            proxy(**given)
