"""`load_tier_config`: what a reader of the tier needs out of the file that `tidegate serve` reads.

The same FILE, environment and broker.config, with the same precedence, checks and messages. What concerns brokers,
plug-ins and tier reads is checked; serve's own keys (`proxy.*`, `cache.*`, …) are passed over unread, since
`tidegate check` checks them and their files may be on another machine. A misspelt key is an error here too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from storage.config.keys import KeyTable, Reload, key
from storage.config.model import Mode, SaslMechanism, UpstreamConfig
from storage.config.plugin_settings import plugin_warnings
from storage.config.schema_registry import SchemaRegistryConfig, SchemaRegistryKeys, schema_registry_config
from storage.config.security import UpstreamKeys, metadata_clients, upstream_config
from storage.config.sources import BROKER_CONFIG, METADATA_PREFIX, STORAGE_PREFIX, ConfigError, Settings, Values, gather
from storage.config.value_kinds import BOOLEAN, FILE, MIB, TEXT, TIB, integer, one_of, optional, size
from storage.object_store.http.tls import NATIVE_KEY

FETCH_WAIT_MS_LIMIT: Final = 5_000
"""Five seconds cap a tier read (docs/protocol.md#l3)."""

STORAGE_MANAGER_CLASS: Final = "remote.log.storage.manager.class.name"
METADATA_MANAGER_CLASS: Final = "remote.log.metadata.manager.class.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierClientConfig:
    """How to reach brokers and tier. `remote_storage_config` has the plug-in's keys with the impl prefix,
    `remote_storage_prefix`, off."""

    mode: Mode = key(
        "mode",
        one_of(Mode),
        "`replica`: the brokers write the tier; `standalone`: we do.",
        section="General",
        default="replica",
    )
    broker_config: Path | None = key(
        BROKER_CONFIG,
        optional(FILE),
        "The broker's `server.properties`, from which the tier's part is taken. Relative to this file.",
    )
    upstream: UpstreamConfig
    metadata_client: UpstreamConfig
    """Who reads the metadata topic."""
    metadata_producer: UpstreamConfig
    """Who writes it, and makes it."""
    identity_trouble: str | None
    """A sentence if it is not said whose identity these two have."""
    remote_storage_manager_class_name: str
    remote_storage_config: Mapping[str, str] = field(repr=False)
    remote_storage_prefix: str
    remote_log_metadata_manager_class_name: str
    schema_registry: SchemaRegistryConfig
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginKeys:
    """Which plug-ins know the tier, and what their own keys begin with."""

    storage_manager_class_name: str = key(
        STORAGE_MANAGER_CLASS,
        TEXT,
        "Kafka's `org.apache.kafka.server.log.remote.storage.LocalTieredStorage`, Aiven's "
        "`io.aiven.kafka.tieredstorage.RemoteStorageManager`, or `tidegate.PlainObjects`.",
        section="The tier, named as the broker names it",
        of_broker=True,
    )
    storage_manager_prefix: str = key(
        STORAGE_PREFIX, TEXT, "The prefix of the storage plug-in's keys.", default="rsm.config.", of_broker=True
    )
    metadata_manager_class_name: str = key(
        METADATA_MANAGER_CLASS,
        TEXT,
        "`tidegate.InMemory` is for tests: it knows of no segment.",
        default="org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        of_broker=True,
    )
    metadata_manager_prefix: str = key(
        METADATA_PREFIX, TEXT, "The prefix of the metadata plug-in's keys.", default="rlmm.config.", of_broker=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReadsConfig:
    """How the tier is read. `hedge_gets_per_minute_min` −1: never."""

    fetch_wait_ms_max: int = key(
        "remote.fetch.max.wait.ms",
        integer(0, FETCH_WAIT_MS_LIMIT),
        "How long a tier read may take if the client's own `max_wait` is shorter.",
        section="Tier reads",
        default="500",
        reload=Reload.AT_ONCE,
    )
    list_offsets_timeout_ms: int = key(
        "remote.list.offsets.request.timeout.ms",
        integer(1, 3_600_000),
        "How long a look-up by time may take in the tier, if the request names no shorter time.",
        default="30000",
        reload=Reload.NEW_CONNECTIONS,
    )
    linger_ms: int = key(
        "expert.tier.linger.ms",
        integer(0, FETCH_WAIT_MS_LIMIT),
        "How much longer once another partition of the request has records.",
        default="20",
        reload=Reload.AT_ONCE,
    )
    concurrent_gets_max: int = key(
        "tier.concurrent.gets.max", integer(1, 1024), "GETs under way at once.", default="32"
    )
    inflight_bytes_max: int = key(
        "expert.tier.inflight.bytes.max",
        size(16 * MIB, TIB),
        "Bytes of GETs under way and of answers not yet sent, half of it each.",
        default_words="512 MiB, from `memory.max.bytes`",
    )
    hedge_gets_per_minute_min: int = key(
        "tier.hedge.gets.per.minute.min",
        integer(-1, 1_000_000),
        "From this rate on, a GET that begins four times later than usual gets a second. −1: never.",
        default="60",
    )
    tls_native: bool = key(
        NATIVE_KEY,
        BOOLEAN,
        "`false`: Python's `ssl` receives TLS from the store, for more processor time.",
        default="true",
    )


TIER_CLIENT_KEYS: Final = KeyTable(
    TierClientConfig,
    UpstreamKeys,
    PluginKeys,
    TierReadsConfig,
    SchemaRegistryKeys,
    others=(
        "admin.",
        "audit.",
        "authority.",
        "cache.",
        "catalog.",
        "copy.",
        "expert.",
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


LATER: Final = {
    "upstream.sasl.mechanism": "OAUTHBEARER as Tidegate's own identity",
    "remote.log.metadata.common.client.sasl.mechanism": "OAUTHBEARER as Tidegate's own identity",
}
"""What keys promise and this version does not do yet; an entry goes when its feature comes.

Such a key is parsed and checked like any other; only a value that would change what the process does, and silently
would not, is refused.
"""


def load_tier_config(file: Path | Mapping[str, str], environ: Mapping[str, str]) -> TierClientConfig:
    """The configuration of FILE, or of its keys alone, of the broker's file that it names, and the environment.

    Raises ConfigError with every problem found. Reads files (properties, certificates), nothing else: neither a
    broker nor the tier is asked anything here.
    """
    problems: list[str] = []
    settings = gather(file, environ, TIER_CLIENT_KEYS, problems)
    values = Values(TIER_CLIENT_KEYS, settings, problems)
    config = values.group(TierClientConfig, **tier_client_fields(settings, values))
    problems += refused_identities(config)
    if problems:
        raise ConfigError(problems)
    return config


def tier_client_fields(settings: Settings, values: Values) -> dict[str, Any]:
    """The fields of TierClientConfig that are no keys."""
    upstream = upstream_config(values)
    values.warnings += plugin_warnings(settings, values[STORAGE_MANAGER_CLASS])
    clients = metadata_clients(settings, upstream, values)
    # What could not be resolved was reported.
    storage = {name: setting.text for name, setting in settings.storage.items() if setting.text is not None}
    if not values[NATIVE_KEY]:
        storage[NATIVE_KEY] = "false"
    return {
        "upstream": upstream,
        "metadata_client": clients.consumer,
        "metadata_producer": clients.producer,
        "identity_trouble": clients.trouble,
        "remote_storage_manager_class_name": values[STORAGE_MANAGER_CLASS],
        "remote_storage_config": MappingProxyType(storage),
        "remote_storage_prefix": settings.storage_prefix,
        "remote_log_metadata_manager_class_name": values[METADATA_MANAGER_CLASS],
        "schema_registry": schema_registry_config(values),
        "warnings": (*values.warnings, *([clients.trouble] if clients.trouble else [])),
    }


def refusal(name: str) -> str:
    """The sentence about a value that this version would have to ignore."""
    return f"{name}: {LATER[name]} comes in a later version; leave the key unset"


def refused_identities(config: TierClientConfig) -> list[str]:
    """Refusals of Tidegate's own identity: the metadata topic's client may have it from upstream, which is one."""
    for name, client in (
        ("upstream.sasl.mechanism", config.upstream),
        ("remote.log.metadata.common.client.sasl.mechanism", config.metadata_client),
    ):
        if client.security.sasl is not None and client.security.sasl.mechanism is SaslMechanism.OAUTHBEARER:
            return [refusal(name)]
    return []
