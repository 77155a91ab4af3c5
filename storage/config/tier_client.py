"""`load_tier_config`: what a reader of the tier needs out of the file that `tidegate serve` reads.

The same FILE, environment and broker.config, with the same precedence, checks and messages. What concerns brokers,
plug-ins and tier reads is checked; serve's own keys (`proxy.*`, `cache.*`, …) are passed over unread, since
`tidegate check` checks them and their files may be on another machine. A misspelt key is an error here too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage.config import tier_keys as tier
from storage.config.build import metadata_client_config, texts, upstream_config
from storage.config.errors import ConfigError
from storage.config.key_table import KeyTable
from storage.config.keys import BROKER_CONFIG, MODE, UPSTREAM_GROUP
from storage.config.kinds import KeyGroup
from storage.config.later import IDENTITIES_LATER, refusals
from storage.config.model import MetadataClientConfig, UpstreamConfig
from storage.config.sources import gather
from storage.config.values import Values

TIER_CLIENT_KEYS: Final = KeyTable(
    (KeyGroup("General", (MODE, BROKER_CONFIG)), UPSTREAM_GROUP, tier.PLUGIN_GROUP, tier.TIER_READS_GROUP),
    others=(
        "admin.",
        "authority.",
        "cache.",
        "catalog.",
        "fallback.",
        "frontier.",
        "log.",
        "memory.",
        "metrics.",
        "proxy.",
        "readahead.",
        "relay.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierClientConfig:
    """How to reach brokers and tier. The two plug-in mappings hold their keys with the impl prefix off."""

    upstream: UpstreamConfig
    metadata_client: MetadataClientConfig
    remote_storage_manager_class_name: str
    remote_storage_config: Mapping[str, str] = field(repr=False)
    remote_log_metadata_manager_class_name: str
    remote_log_metadata_config: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...]


def load_tier_config(path: Path, environ: Mapping[str, str]) -> TierClientConfig:
    """The configuration of FILE, the broker's file that it names, and the environment (`TIDEGATE_*`).

    Raises ConfigError with every problem found. Reads files (properties, certificates), nothing else: neither a
    broker nor the tier is asked anything here.
    """
    problems: list[str] = []
    settings = gather(path, environ, TIER_CLIENT_KEYS, problems)
    values = Values(TIER_CLIENT_KEYS, settings.table, problems, settings.warnings)
    upstream = upstream_config(values)
    config = TierClientConfig(
        upstream=upstream,
        metadata_client=metadata_client_config(settings, upstream, problems),
        remote_storage_manager_class_name=values.of(tier.STORAGE_MANAGER_CLASS),
        remote_storage_config=texts(settings.storage),
        remote_log_metadata_manager_class_name=values.of(tier.METADATA_MANAGER_CLASS),
        remote_log_metadata_config=texts(settings.metadata),
        warnings=tuple(settings.warnings),
    )
    problems.extend(refusals(IDENTITIES_LATER, config))
    if problems:
        raise ConfigError(problems)
    return config
