"""The keys of a broker's configuration that say how to reach an object store, judged one by one.

A key stands without the broker's prefix (`storage.s3.bucket.name`); messages name it with that, as the user wrote it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from storage.errors import StorageConfigError

DEFAULT_PREFIX = "rsm.config."


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
        if not wellformed or "@" in text or "?" in text or "#" in text:
            # Its value is not repeated: a user name and a password may stand in it.
            raise self.error(key, "must be http://host:port or https://host:port, without a user or a query")
        return text.rstrip("/")
