"""Which addresses a SOCKS5 proxy is asked for, and its keys. Stores through one: all/test_socks.py."""

from urllib.parse import urlsplit

import pytest

from storage.errors import StorageConfigError
from storage.object_store.config_keys import SocksProxy, StoreKeys
from storage.object_store.http.get import OpenSockets
from storage.object_store.http.session import StoreSession
from tests.support.for_each import for_each


@for_each(
    "url, is_direct",
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
