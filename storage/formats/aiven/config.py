"""What Tidegate takes from the configuration of Aiven's plugin (docs/formats.md#aiven-configuration).

Keys are the plugin's own, without the broker's prefix; messages name them with it. The broker's file holds more than
a reader needs (caches, thread pools, metrics, storage.*): what is not named here is left alone. Values that only a
writer needs are checked when they are there, and may be absent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from storage.errors import StorageConfigError
from storage.formats.aiven.key_pairs import (
    ACTIVE_ID_KEY,
    DEFAULT_PREFIX,
    ICEBERG_FORMAT,
    KAFKA_FORMAT,
    PAIRS_KEY,
    KeyRing,
    KeyRingFile,
    has_key_pairs,
)
from storage.object_store.config_keys import UPLOAD_RATE_KEY, UPLOAD_RATE_MAX, UPLOAD_RATE_MIN
from storage.plugin_keys import KEY_RING_FILE_KEY

CHUNK_BYTES_MAX = 1_073_741_823
"""The plugin's own limit: half of what a Java array holds."""

CUSTOM_METADATA_FIELDS = ("REMOTE_SIZE", "OBJECT_PREFIX", "OBJECT_KEY")
"""What `custom.metadata.fields.include` may list, in the order of their tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingConfig:
    """What only writing takes from the plugin's configuration. None: unset.

    `encryption_enabled`: whether new segments are; `custom_metadata_fields`: of CUSTOM_METADATA_FIELDS, in their order.
    """

    chunk_bytes: int | None = None
    compression_enabled: bool = False
    compression_heuristic: bool = False
    encryption_enabled: bool = False
    custom_metadata_fields: tuple[str, ...] = ()
    upload_bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenConfig:
    """The plugin's configuration. Neither `key_ring` nor `key_ring_file`: no key pairs are configured."""

    key_prefix: str = ""
    key_prefix_mask: bool = False
    key_ring: KeyRing | None = None
    key_ring_file: KeyRingFile | None = None
    writes_iceberg: bool = False
    """New segments are written in Iceberg mode, by the brokers alone; older ones may be as ever."""
    writing: WritingConfig = WritingConfig()

    def keys(self) -> KeyRing | None:
        """The key pairs as they are now."""
        return self.key_ring if self.key_ring_file is None else self.key_ring_file.current()


def aiven_config(config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> AivenConfig:
    """Read the plugin's keys; the broker's prefix is stripped from them already, and `prefix` is for messages.

    Raises:
        StorageConfigError: a value is wrong, or names what Tidegate does not read; the message names the key.
    """
    segment_format = config.get("segment.format", KAFKA_FORMAT).strip().lower()
    if segment_format not in (KAFKA_FORMAT, ICEBERG_FORMAT):
        raise StorageConfigError(f"{prefix}segment.format={segment_format} is neither kafka nor iceberg")
    settings = _Settings(config, prefix)
    compression_enabled = settings.boolean("compression.enabled")
    if settings.boolean("compression.heuristic.enabled") and not compression_enabled:
        raise StorageConfigError(f"{prefix}compression.heuristic.enabled needs {prefix}compression.enabled")
    encryption_enabled = settings.boolean("encryption.enabled")
    path = config.get(KEY_RING_FILE_KEY, "").strip()
    if path and has_key_pairs(config):
        raise StorageConfigError(f"{prefix}{KEY_RING_FILE_KEY} and {prefix}{PAIRS_KEY} are both set: one has the pairs")
    file = KeyRingFile(Path(path), prefix=prefix) if path else None
    # Segments from a time when encryption was on keep their keys.
    has_pairs = has_key_pairs(config) or (encryption_enabled and file is None)
    ring = KeyRing(config, prefix=prefix) if has_pairs else None
    current = ring if file is None else file.current()
    if encryption_enabled and not (current and current.active_key_id):
        raise StorageConfigError(f"{prefix}encryption.enabled needs {prefix}{ACTIVE_ID_KEY}, which is not set")
    return AivenConfig(
        key_prefix=config.get("key.prefix", ""),
        key_prefix_mask=settings.boolean("key.prefix.mask"),
        key_ring=ring,
        key_ring_file=file,
        writes_iceberg=segment_format == ICEBERG_FORMAT,
        writing=WritingConfig(
            chunk_bytes=settings.integer("chunk.size", 1, CHUNK_BYTES_MAX),
            compression_enabled=compression_enabled,
            compression_heuristic=settings.boolean("compression.heuristic.enabled"),
            encryption_enabled=encryption_enabled,
            custom_metadata_fields=settings.custom_metadata_fields(),
            upload_bytes_per_s=settings.integer(UPLOAD_RATE_KEY, UPLOAD_RATE_MIN, UPLOAD_RATE_MAX),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Settings:
    config: Mapping[str, str]
    prefix: str

    def boolean(self, key: str) -> bool:
        text = self.config.get(key, "false").strip().lower()
        if text not in ("true", "false"):
            raise StorageConfigError(f"{self.prefix}{key}={self.config[key]} is neither true nor false")
        return text == "true"

    def integer(self, key: str, minimum: int, maximum: int) -> int | None:
        text = self.config.get(key)
        if text is None:
            return None
        is_number = re.fullmatch(r"\d{1,10}", text.strip(), re.ASCII) is not None
        if not is_number or not minimum <= int(text) <= maximum:
            raise StorageConfigError(f"{self.prefix}{key}={text} is not a number from {minimum} to {maximum}")
        return int(text)

    def custom_metadata_fields(self) -> tuple[str, ...]:
        key = "custom.metadata.fields.include"
        names = [name for name in re.split(r"\s*,\s*", self.config.get(key, "").strip()) if name]
        for name in names:
            if name not in CUSTOM_METADATA_FIELDS:
                raise StorageConfigError(
                    f"{self.prefix}{key} lists {name!r}, which is none of {', '.join(CUSTOM_METADATA_FIELDS)}"
                )
        return tuple(name for name in CUSTOM_METADATA_FIELDS if name in names)
