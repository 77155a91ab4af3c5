"""`load`: FILE and the environment in, a checked Config out, or every problem at once.

The order is: gather what was given (`storage.config.sources`), take over the plug-in's cache sizes, parse, derive what
was left open, make the groups and check them against each other, refuse what this version does not do.
Nothing stops at the first problem.

Aiven's chunk cache keys (`rsm.config.fetch.chunk.cache.*`) give our cache's values unless ours are set. An operator who
sized the plugin's cache has said what a reader of this tier needs. Sizes of −1 and 0 mean "unlimited" and "none" there
and are not taken; nor is the path: the plugin wipes its folder at every start, so sharing it would cost us ours. What
comes out of memory is taken up to our own budget only, because that heap was the broker's. Its prefetch size never
lowers our read-ahead: it is meant for one broker's own reads, and 16 MiB of it would cut a reader to an eighth.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Final

from proxy.settings import NODE_ID_VARIABLE, ClientAuth, ProxyConfig, ServerTls
from standalone.copier.config import METADATA_TOPIC_KEYS, CopyConfig, MetadataTopicConfig
from standalone.copier.seams import KEEP
from storage.config.keys import Key
from storage.config.model import Mode
from storage.config.plugin_settings import plugin_keys
from storage.config.security import attempt, trusted
from storage.config.sources import ConfigError, Setting, Settings, Values, gather
from storage.config.ssl_contexts import file_identity
from storage.config.tier_client import STORAGE_MANAGER_CLASS, refused_identities, tier_client_fields
from storage.config.value_kinds import MIB, format_size
from storage.plugin_keys import ACTS, instead_of
from tidegate.config.model import (
    BUDGET_SHARES,
    SERVE_KEYS,
    WORKER_MEMORY_BYTES_MIN,
    AdminConfig,
    AuditConfig,
    AuthorityConfig,
    CacheConfig,
    CatalogConfig,
    Config,
    EffectiveKey,
    LogConfig,
    MetricsConfig,
    ReadAheadConfig,
    TierConfig,
    memory_share,
)

UNSET: Final = "(unset)"
"""Shown for a key without value and default."""

# Over 30 ms and 60 MB/s a connection, ten GETs of 12 MiB at once; half of it would hold one partition to 280 MB/s.
READAHEAD_STREAM_BYTES_DEFAULT: Final = 128 * MIB

AIVEN_PLUGIN_CLASS: Final = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
AIVEN_CACHE_PREFIX: Final = "fetch.chunk.cache."

TIER_FOLDER_KEYS: Final = ("dir", "storage.root")
"""LocalTieredStorage's key, and that of a folder as a store. Their modules import more than a file's loading needs."""
CACHE_FOLDER: Final = "blocks"
"""What of `cache.path` is the cache's; snapshot and staging may lie beside it."""
BROKER_FOLDER_MARK: Final = "meta.properties"
"""In each folder of a broker's `log.dirs`."""


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """The configuration of FILE, the broker's file that it names, and the environment.

    Raises ConfigError with every problem found. Reads files (properties, certificates), nothing else: neither a
    broker nor the tier is asked anything here.
    """
    problems: list[str] = []
    settings = gather(path, environ, SERVE_KEYS, problems)
    _inherit_from_aiven(settings)
    values = Values(SERVE_KEYS, settings, problems)
    _derive_budgets(values)
    _derive_listeners(values)
    _derive_paths(values)
    shared = tier_client_fields(settings, values)
    proxy = values.group(ProxyConfig, tls=_server_tls(values))
    cache, readahead, admin = values.group(CacheConfig), values.group(ReadAheadConfig), values.group(AdminConfig)
    _check_listeners(proxy, admin, values)
    _check_server_names(proxy, values)
    _check_proxy_headers(proxy, values)
    _check_cache(cache, readahead, values)
    _check_workers(proxy, cache, values)
    config = values.group(
        Config,
        **shared | {"warnings": tuple(dict.fromkeys((*shared["warnings"], *values.warnings)))},
        proxy=proxy,
        tier=values.group(TierConfig),
        cache=cache,
        readahead=readahead,
        authority=values.group(AuthorityConfig),
        catalog=values.group(CatalogConfig),
        admin=admin,
        audit=values.group(AuditConfig),
        copy=values.group(CopyConfig),
        metadata_topic=_metadata_topic(settings, problems),
        log=values.group(LogConfig),
        metrics=values.group(MetricsConfig),
        effective=_effective(settings, values.derived),
        files={"": path}
        | {key.name: values[key.name] for key in SERVE_KEYS.keys if key.kind.is_file and values[key.name]},
    )
    _check_copy(config, values)
    problems += refused_identities(config)
    if problems:
        raise ConfigError(problems)
    return config


def _inherit_from_aiven(settings: Settings) -> None:
    """Add the plugin's values to the table's settings where those are unset and the plugin is Aiven's."""
    manager = settings.table.get(STORAGE_MANAGER_CLASS)
    if manager is None or manager.text is None or manager.text.strip() != AIVEN_PLUGIN_CLASS:
        return
    # The sizes are cut to our budget, so that these numbers have to be known before the rest is parsed.
    values = Values(SERVE_KEYS, settings, [])
    _derive_budgets(values)
    cache_class = _aiven_text(settings, "class")
    if cache_class.endswith("MemoryChunkCache"):
        _take_size(settings, "size", "cache.memory.bytes", maximum=values["cache.memory.bytes"])
    elif cache_class:
        _take_size(settings, "size", "cache.disk.bytes")
    retention_ms = _aiven_number(settings, "retention.ms")
    if retention_ms:
        _take(settings, "retention.ms", "cache.retention.ms", str(retention_ms))
    _take_size(
        settings,
        "prefetch.max.size",
        "readahead.stream.max.bytes",
        minimum=values["readahead.stream.max.bytes"],
        maximum=values["expert.readahead.total.max.bytes"],
    )


def _take_size(settings: Settings, name: str, key: str, *, minimum: int = 1, maximum: int | None = None) -> None:
    size_bytes = _aiven_number(settings, name)
    if size_bytes >= minimum:
        _take(settings, name, key, format_size(size_bytes if maximum is None else min(size_bytes, maximum)))


def _take(settings: Settings, name: str, key: str, text: str) -> None:
    if key in settings.table:
        return
    theirs = settings.storage[AIVEN_CACHE_PREFIX + name]
    origin = f"{theirs.origin} {settings.storage_prefix}{AIVEN_CACHE_PREFIX}{name}"
    settings.table[key] = replace(theirs, text=text, raw=text, origin=origin)


def _aiven_number(settings: Settings, name: str) -> int:
    """0 where none is given, or one that means none or any."""
    text = _aiven_text(settings, name)
    return int(text) if re.fullmatch(r"\d{1,18}", text) else 0


def _aiven_text(settings: Settings, name: str) -> str:
    setting = settings.storage.get(AIVEN_CACHE_PREFIX + name)
    return "" if setting is None or setting.text is None else setting.text.strip()


def _derive_budgets(values: Values) -> None:
    """Give each budget that is not set its share of `memory.max.bytes`, which all together cannot exceed."""
    memory_bytes_max: int = values["memory.max.bytes"]
    for name, share in BUDGET_SHARES.items():
        budget_bytes = memory_share(memory_bytes_max, share)
        values.derive(name, budget_bytes, format_size(budget_bytes))
    total_bytes = sum(values[name] for name in BUDGET_SHARES)
    if total_bytes > memory_bytes_max:
        names = " + ".join(BUDGET_SHARES)
        values.wrong(
            "memory.max.bytes", f"less than {names} = {format_size(total_bytes)}: raise it or lower one of them"
        )
    stream_bytes_max = min(READAHEAD_STREAM_BYTES_DEFAULT, values["expert.readahead.total.max.bytes"])
    values.derive("readahead.stream.max.bytes", stream_bytes_max, format_size(stream_bytes_max))


def _derive_listeners(values: Values) -> None:
    values.derive("proxy.broker.ports", MappingProxyType({}))
    listen = values.group(ProxyConfig).listen
    if values.is_set("proxy.tls.sni.pattern"):
        # Clients get neither the listen host nor a port of a broker's own.
        values.derive("proxy.advertised.host", listen.host)
        values.derive("proxy.broker.port.start", 0)
        return
    values.derive("proxy.advertised.host", listen.host, listen.host)
    # A bootstrap listener on any free port has no "next" one: brokers get any free port too.
    port_start = 0 if listen.port == 0 else listen.port + 1
    values.derive("proxy.broker.port.start", port_start, str(port_start))


def _derive_paths(values: Values) -> None:
    cache_path: Path | None = values["cache.path"]
    if cache_path is not None:
        values.derive("catalog.snapshot.path", cache_path / "catalog", str(cache_path / "catalog"))
        values.derive("copy.staging.path", cache_path / "staging", str(cache_path / "staging"))


def _check_listeners(proxy: ProxyConfig, admin: AdminConfig, values: Values) -> None:
    names_advertised = values.is_set("proxy.advertised.host") or values.is_set("proxy.tls.sni.pattern")
    if not names_advertised and _is_wildcard(proxy.listen.host):
        values.wrong("proxy.listen", "clients cannot connect to a wildcard address: set proxy.advertised.host")
    if proxy.broker_port_start > 65535:
        values.wrong("proxy.listen", "no port is left after it: set proxy.broker.port.start")
    if proxy.listen.port in proxy.broker_ports.values():
        values.wrong("proxy.broker.ports", f"port {proxy.listen.port} is the bootstrap listener's")
    if admin.listen == proxy.listen and admin.listen.port != 0:
        values.wrong("admin.listen", "is proxy.listen too")


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False  # a host name


def _check_server_names(proxy: ProxyConfig, values: Values) -> None:
    """Check `proxy.tls.sni.pattern`, which clients get in place of hosts and ports."""
    if not values.is_set("proxy.tls.sni.pattern"):
        return
    if not values.is_set("proxy.tls.certificate.file"):
        values.wrong("proxy.tls.sni.pattern", "needs proxy.tls.certificate.file")
    for name in ("proxy.broker.port.start", "proxy.broker.ports"):
        if values.is_set(name):
            values.wrong(name, "cannot be set together with proxy.tls.sni.pattern, which has one port for all brokers")
    if NODE_ID_VARIABLE in proxy.advertised_host:
        values.wrong(
            "proxy.advertised.host",
            f"cannot hold {NODE_ID_VARIABLE} together with proxy.tls.sni.pattern, which is what clients get",
        )
    elif values.is_set("proxy.advertised.host"):
        values.warnings.append("proxy.advertised.host has no effect: clients get proxy.tls.sni.pattern")
    if values.is_set("proxy.broker.id.min"):
        values.warnings.append("proxy.broker.id.min has no effect: proxy.tls.sni.pattern has one port for all brokers")


def _check_proxy_headers(proxy: ProxyConfig, values: Values) -> None:
    if proxy.protocol and not values.is_set("proxy.protocol.trusted"):
        values.wrong(
            "proxy.protocol", "any client could claim any address: set proxy.protocol.trusted to the balancers' ones"
        )
    if proxy.protocol_trusted is not None and not proxy.protocol:
        values.wrong("proxy.protocol.trusted", "needs proxy.protocol = true")


def _check_cache(cache: CacheConfig, readahead: ReadAheadConfig, values: Values) -> None:
    if readahead.stream_bytes_max > readahead.total_bytes_max:
        limit = f"expert.readahead.total.max.bytes = {format_size(readahead.total_bytes_max)}"
        values.wrong("readahead.stream.max.bytes", f"at most {limit}")
    if cache.encrypt_key_file is not None and not cache.encrypt:
        values.wrong("cache.encrypt.key.file", "needs cache.encrypt = true")
    if cache.encrypt and cache.path is None:
        values.wrong("cache.encrypt", "needs cache.path")
    if cache.block_bytes > cache.memory_bytes:
        values.wrong("expert.cache.block.bytes", f"at most cache.memory.bytes = {format_size(cache.memory_bytes)}")


def _check_workers(proxy: ProxyConfig, cache: CacheConfig, values: Values) -> None:
    needed_bytes = proxy.workers * WORKER_MEMORY_BYTES_MIN
    if values["memory.max.bytes"] < needed_bytes:
        values.wrong("proxy.workers", f"so many need memory.max.bytes = {format_size(needed_bytes)} or more")
    if proxy.workers > 1 and cache.memory_bytes < (blocks_bytes := proxy.workers * cache.block_bytes):
        needed = (
            f"cache.memory.bytes = {format_size(blocks_bytes)} or more, a block of expert.cache.block.bytes for each"
        )
        values.wrong("proxy.workers", f"so many need {needed}")


def _check_copy(config: Config, values: Values) -> None:
    if config.copy.is_enabled:
        for reason in _copy_lacks(config):
            values.wrong("copy.enabled", reason)


def copy_problems(config: Config) -> list[str]:
    """Why `tidegate copy` cannot run with this configuration, a sentence for each key; `copy.enabled` is not asked."""
    return [f"{config.files['']}: tidegate copy {reason}" for reason in _copy_lacks(config)]


def _copy_lacks(config: Config) -> list[str]:
    found = []
    if config.mode is not Mode.STANDALONE:
        found.append("needs mode = standalone: with replica the brokers write the tier")
    if config.copy.topics is None:
        found.append("needs copy.topics")
    if importlib.util.find_spec("confluent_kafka") is None:
        found.append("needs the package confluent-kafka, which is not installed: pip install 'tidegate[copy]'")
    if config.metadata_topic.retention_ms != KEEP:
        found.append(
            f"needs remote.log.metadata.topic.retention.ms = {KEEP} (it is {config.metadata_topic.retention_ms}): "
            "segments whose metadata expires cannot be found any more"
        )
    if config.copy.staging_path is None:
        found.append("needs copy.staging.path, or cache.path")
    else:
        found += _staging_collisions(config, config.copy.staging_path)
    return found


def _staging_collisions(config: Config, staging_path: Path) -> Iterator[str]:
    """Yield what overlaps with the folder for segments under way, where a start removes what is left."""
    own, storage, prefix = staging_path.resolve(), config.remote_storage_config, config.remote_storage_prefix
    others = [(f"{prefix}{name}", Path(text)) for name in TIER_FOLDER_KEYS if (text := storage.get(name, "").strip())]
    if config.cache.path is not None:
        others.append(("the cache's blocks", config.cache.path / CACHE_FOLDER))
    marked = (each for each in (own, *own.parents) if (each / BROKER_FOLDER_MARK).exists())
    others += [("a broker's log folder", each) for each in marked]
    for what, other in others:
        if own.is_relative_to(other.resolve()) or other.resolve().is_relative_to(own):
            yield f"needs another copy.staging.path than {staging_path}: it and {what} ({other}) hold one another"


def _metadata_topic(settings: Settings, problems: list[str]) -> MetadataTopicConfig:
    """The metadata plug-in's keys that say how its topic is made; a broker has the same ones and defaults."""
    given: dict[str, int] = {}
    for name, (field, lowest, highest) in METADATA_TOPIC_KEYS.items():
        setting = settings.metadata.get(name)
        if setting is None or setting.text is None:
            continue
        text = setting.text.strip()
        if re.fullmatch(r"-?\d{1,19}", text) is not None and lowest <= int(text) <= highest:
            given[field] = int(text)
        else:
            key = settings.metadata_prefix + name
            problems.append(f"{setting.origin}: {key} = {text}: must be a whole number from {lowest} to {highest}")
    return replace(MetadataTopicConfig(), **given)


def _server_tls(values: Values) -> ServerTls | None:
    """TLS towards clients from `proxy.tls.*`; None when no certificate is set."""
    given = values.group(ProxyConfig)
    certificate = given.tls_certificate_file
    if certificate is None:
        for name in ("proxy.tls.key.file", "proxy.tls.client.ca.file", "proxy.tls.client.auth"):
            if values.is_set(name) and not values.is_set("proxy.tls.certificate.file"):
                values.wrong(name, "needs proxy.tls.certificate.file")
        return None
    if given.tls_client_auth is not ClientAuth.NONE and given.tls_client_ca_file is None:
        values.wrong("proxy.tls.client.auth", "needs proxy.tls.client.ca.file")
    own = attempt(
        lambda: file_identity(certificate, given.tls_key_file, given.tls_key_password),
        lambda reason: values.wrong("proxy.tls.certificate.file", reason),
    )
    client_ca_pem = trusted(values, "proxy.tls.client.ca.file")
    if own is None:
        return None
    return ServerTls(
        certificate_chain_pem=own[0],
        private_key_pem=own[1],
        client_ca_certificates_pem=client_ca_pem,
        client_auth=given.tls_client_auth,
    )


def _effective(settings: Settings, derived: Mapping[str, str]) -> tuple[EffectiveKey, ...]:
    """The table's keys in its order, then the plug-ins' (by whole name), each with its origin."""
    shown: list[EffectiveKey] = []
    for key in SERVE_KEYS.keys:
        setting = settings.table.get(key.name)
        if setting is not None:
            shown.append(_given(key.name, setting, key))
        elif key.name in derived:
            shown.append(EffectiveKey(name=key.name, value=derived[key.name], origin="derived", text=derived[key.name]))
        else:
            value = key.default or UNSET
            shown.append(EffectiveKey(name=key.name, value=value, origin="default", text=value))
    manager = settings.table.get(STORAGE_MANAGER_CLASS)
    notes = {
        whole: f"no effect: {instead or 'no key that is known'}"
        for whole, _, name, table in plugin_keys(settings, manager.text if manager else None)
        if (instead := instead_of(name, table)) != ACTS
    }
    shown += [
        replace(_given(name, setting, None), note=notes.get(name, ""))
        for name, setting in sorted(settings.plugins().items())
    ]
    return tuple(shown)


def _given(name: str, setting: Setting, key: Key | None) -> EffectiveKey:
    text = setting.raw if setting.text is None else setting.text
    return EffectiveKey(name=name, value=setting.masked(name, key), origin=setting.origin, text=text)
