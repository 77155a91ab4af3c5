"""What Tidegate takes from the configuration of Aiven's plugin (docs/formats.md#aiven-configuration).

Keys are the plugin's own, without the broker's prefix; messages name them with it. The broker's file holds more than
a reader needs (caches, thread pools, metrics, storage.*): what is not named here is left alone. Values that only a
writer needs are checked when they are there, and may be absent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import StorageConfigError
from storage.formats.aiven.key_ring import ACTIVE_ID_KEY, DEFAULT_PREFIX, KeyRing, has_key_pairs

CHUNK_BYTES_MAX = 1_073_741_823
"""The plugin's own limit: half of what a Java array holds."""

CUSTOM_METADATA_FIELDS = ("REMOTE_SIZE", "OBJECT_PREFIX", "OBJECT_KEY")
"""What `custom.metadata.fields.include` may list, in the order of their tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenConfig:
    """The plugin's configuration. `key_ring` is None where no key pairs are configured.

    The last five say how segments are written: `chunk_bytes` is None where `chunk.size` is absent.
    """

    key_prefix: str = ""
    key_prefix_mask: bool = False
    key_ring: KeyRing | None = None
    chunk_bytes: int | None = None
    compression_enabled: bool = False
    compression_heuristic_enabled: bool = False
    encryption_enabled: bool = False
    custom_metadata_fields: tuple[str, ...] = ()


def aiven_config(config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> AivenConfig:
    """Read the plugin's keys; the broker's prefix is stripped from them already, and `prefix` is for messages.

    Raises:
        StorageConfigError: a value is wrong, or names what Tidegate does not read; the message names the key.
    """
    _refuse_iceberg(config, prefix)
    settings = _Settings(config, prefix)
    compression_enabled = settings.boolean("compression.enabled")
    heuristic_enabled = settings.boolean("compression.heuristic.enabled")
    if heuristic_enabled and not compression_enabled:
        raise StorageConfigError(f"{prefix}compression.heuristic.enabled needs {prefix}compression.enabled")
    encryption_enabled = settings.boolean("encryption.enabled")
    # Segments from a time when encryption was on keep their keys.
    key_ring = KeyRing(config, prefix=prefix) if encryption_enabled or has_key_pairs(config) else None
    if encryption_enabled and not (key_ring and key_ring.active_key_id):
        raise StorageConfigError(f"{prefix}encryption.enabled needs {prefix}{ACTIVE_ID_KEY}, which is not set")
    return AivenConfig(
        key_prefix=config.get("key.prefix", ""),
        key_prefix_mask=settings.boolean("key.prefix.mask"),
        key_ring=key_ring,
        chunk_bytes=settings.chunk_bytes(),
        compression_enabled=compression_enabled,
        compression_heuristic_enabled=heuristic_enabled,
        encryption_enabled=encryption_enabled,
        custom_metadata_fields=settings.custom_metadata_fields(),
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

    def chunk_bytes(self) -> int | None:
        text = self.config.get("chunk.size")
        if text is None:
            return None
        is_number = re.fullmatch(r"\d{1,10}", text.strip(), re.ASCII) is not None
        if not is_number or not 1 <= int(text) <= CHUNK_BYTES_MAX:
            raise StorageConfigError(f"{self.prefix}chunk.size={text} is not a number from 1 to {CHUNK_BYTES_MAX}")
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


def _refuse_iceberg(config: Mapping[str, str], prefix: str) -> None:
    segment_format = config.get("segment.format", "kafka").strip()
    if segment_format.lower() == "iceberg":
        raise StorageConfigError(
            f"{prefix}segment.format=iceberg is not supported: Tidegate reads Kafka-format segments only"
        )
    if segment_format.lower() != "kafka":
        raise StorageConfigError(f"{prefix}segment.format={segment_format} is neither kafka nor iceberg")
