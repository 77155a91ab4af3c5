"""The keys of a broker's configuration that say how to reach an object store, judged one by one.

A key stands without the broker's prefix (`storage.s3.bucket.name`); messages name it with that, as the user wrote it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from storage.errors import StorageConfigError
from storage.host_names import parse_host

DEFAULT_PREFIX = "rsm.config."

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
"""For each wait for bytes, where no key says otherwise."""
CONNECTIONS_MAX = 3 * 1024
"""Connections that are kept open for the next GET. As many are opened as threads need at once, and what is not kept is
opened again for each GET; so this is the most that threads may need, and costs nothing before they do: with the largest
`tier.concurrent.gets.max`, so many GETs of logs, a hedge for each, and as many GETs of manifests and indexes."""

PROXY_HOST_KEY = "storage.proxy.host"
PROXY_PORT_KEY = "storage.proxy.port"
PROXY_USERNAME_KEY = "storage.proxy.username"
PROXY_PASSWORD_KEY = "storage.proxy.password"
"""Keys of every store in a cloud; SOCKS5 alone, as in Aiven's plug-in."""


UPLOAD_RATE_KEY = "upload.rate.limit.bytes.per.second"
UPLOAD_RATE_MIN, UPLOAD_RATE_MAX = 1024 * 1024, 1_000_000_000
"""For every format that is written to a store; the plug-in's own limits, bytes a second."""


@dataclass(frozen=True, slots=True)
class SocksProxy:
    """A SOCKS5 server (RFC 1928), which also resolves the store's name."""

    host: str
    port: int
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """As PySocks' users take it. It holds the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        names = [quote(text or "", safe="") for text in (self.username, self.password)]
        user = "" if self.username is None else f"{':'.join(names)}@"
        return f"socks5h://{user}{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How any store in a cloud is reached. Times in seconds; `prefix` is that of the user's keys, for messages."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S
    connections_max: int = CONNECTIONS_MAX
    proxy: SocksProxy | None = None
    prefix: str = DEFAULT_PREFIX


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """Values by key: blank is unset, as in the plug-in's defaults."""

    config: Mapping[str, str]
    prefix: str

    def error(self, key: str, words: str) -> StorageConfigError:
        return StorageConfigError(f"{self.prefix}{key} {words}")

    def text(self, key: str) -> str | None:
        return self.config.get(key, "").strip() or None

    def required_text(self, key: str) -> str:
        text = self.text(key)
        if text is None:
            raise self.error(key, "is not set")
        return text

    def boolean(self, key: str) -> bool | None:
        text = self.text(key)
        if text is None:
            return None
        if text.lower() not in ("true", "false"):
            raise self.error(key, f"is {text!r}, not true or false")
        return text.lower() == "true"

    def integer(self, key: str, minimum: int, maximum: int) -> int | None:
        text = self.text(key)
        if text is None:
            return None
        if re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII) is None or not minimum <= int(text) <= maximum:
            raise self.error(key, f"is {text!r}, not a whole number from {minimum} to {maximum}")
        return int(text)

    def socks_proxy(self) -> SocksProxy | None:
        """The proxy that the store is reached through, if there is one."""
        host, port = self.text(PROXY_HOST_KEY), self.integer(PROXY_PORT_KEY, 1, 65535)
        username, password = self.text(PROXY_USERNAME_KEY), self.text(PROXY_PASSWORD_KEY)
        for one, its, other, others in (
            (PROXY_HOST_KEY, host, PROXY_PORT_KEY, port),
            (PROXY_USERNAME_KEY, username, PROXY_PASSWORD_KEY, password),
        ):
            if (its is None) != (others is None):
                missing, present = (one, other) if its is None else (other, one)
                raise self.error(missing, f"is not set, but {self.prefix}{present} is")
        if host is None or port is None:
            if username is not None:
                raise self.error(PROXY_HOST_KEY, f"is not set, but {self.prefix}{PROXY_USERNAME_KEY} is")
            return None
        try:
            return SocksProxy(parse_host(host), port, username, password)
        except ValueError as error:
            raise self.error(PROXY_HOST_KEY, str(error)) from None

    def endpoint_url(self, key: str) -> str | None:
        """The endpoint that a key holds, without a slash at its end."""
        text = self.text(key)
        if text is None:
            return None
        try:
            parts = urlsplit(text)
            wellformed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            wellformed = False
        if not wellformed or not text.isascii() or "@" in text or "?" in text or "#" in text:
            # Its value is not repeated: a user name and a password may stand in it.
            raise self.error(key, "must be http://host:port or https://host:port, without a user or a query")
        return text.rstrip("/")
