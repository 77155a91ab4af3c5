"""`load`: FILE and the environment in, a checked Config out, or every problem at once.

The order is: gather what was given (`storage.config.sources`), parse it (`storage.config.values`), build the groups
and check them against each other (`storage.config.build`, `build`), refuse what this version does not do (`later`).
Nothing stops at the first problem.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from proxy.config import aiven_inheritance, build, later
from proxy.config import keys as table
from proxy.config.effective import effective_keys
from proxy.config.model import AdminConfig, Config, EffectiveKey, LogConfig, MetricsConfig
from storage.config import build as shared_build
from storage.config import keys
from storage.config import tier_keys as tier
from storage.config.broker_config import Plugin
from storage.config.errors import ConfigError
from storage.config.later import refusals
from storage.config.sizes import format_size
from storage.config.sources import Setting, Settings, gather
from storage.config.values import Values

_FILE_KEYS: Final = (
    keys.BROKER_CONFIG,
    table.PROXY_TLS_CERTIFICATE_FILE,
    table.PROXY_TLS_KEY_FILE,
    table.PROXY_TLS_CLIENT_CA_FILE,
    keys.UPSTREAM_SSL_CA_LOCATION,
    keys.UPSTREAM_SSL_CERTIFICATE_LOCATION,
    keys.UPSTREAM_SSL_KEY_LOCATION,
    keys.UPSTREAM_SSL_KEYSTORE_LOCATION,
)


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """The configuration of FILE, the broker's file that it names, and the environment.

    Raises ConfigError with every problem found. Reads files (properties, certificates), nothing else: neither a
    broker nor the tier is asked anything here.
    """
    problems: list[str] = []
    settings = gather(path, environ, table.SERVE_KEYS, problems)
    # The plugin's cache sizes are cut to our budget, so that one number has to be known before the rest is parsed.
    memory_bytes_max = Values(table.SERVE_KEYS, settings.table, [], []).of(table.MEMORY_MAX_BYTES)
    aiven_inheritance.inherit(settings, memory_bytes_max)
    values = Values(table.SERVE_KEYS, settings.table, problems, settings.warnings)
    config = _config(path, settings, values)
    problems.extend(refusals(later.LATER, config))
    if problems:
        raise ConfigError(problems)
    return config


def _config(path: Path, settings: Settings, values: Values) -> Config:
    budgets = build.memory_budgets(values)
    upstream, listeners = shared_build.upstream_config(values), build.proxy_config(values, budgets)
    readahead, cache, catalog = (
        build.readahead_config(values, budgets),
        build.cache_config(values, budgets),
        build.catalog_config(values),
    )
    admin = AdminConfig(listen=values.of(table.ADMIN_LISTEN))
    if admin.listen == listeners.listen and admin.listen.port != 0:
        values.wrong(table.ADMIN_LISTEN, f"is {table.PROXY_LISTEN.name} too")
    derived = {name: format_size(size_bytes) for name, size_bytes in budgets.items()}
    derived[tier.READAHEAD_STREAM_MAX_BYTES.name] = format_size(readahead.stream_bytes_max)
    if listeners.tls_sni_pattern is None:
        derived[table.PROXY_ADVERTISED_HOST.name] = listeners.advertised_host
        derived[table.PROXY_BROKER_PORT_START.name] = str(listeners.broker_port_start)
    if catalog.snapshot_path is not None:
        derived[tier.CATALOG_SNAPSHOT_PATH.name] = str(catalog.snapshot_path)
    return Config(
        mode=values.of(keys.MODE),
        upstream=upstream,
        proxy=listeners,
        tier=build.tier_config(values, budgets),
        cache=cache,
        readahead=readahead,
        authority=build.authority_config(values),
        catalog=catalog,
        admin=admin,
        log=LogConfig(level=values.of(table.LOG_LEVEL), format=values.of(table.LOG_FORMAT)),
        metrics=MetricsConfig(
            kip405_names=values.of(table.METRICS_KIP405_NAMES), topics_max=values.of(table.METRICS_TOPICS_MAX)
        ),
        metadata_client=shared_build.metadata_client_config(settings, upstream, values.problems),
        memory_bytes_max=values.of(table.MEMORY_MAX_BYTES),
        remote_storage_manager_class_name=values.of(tier.STORAGE_MANAGER_CLASS),
        remote_storage_config=shared_build.texts(settings.storage),
        remote_log_metadata_manager_class_name=values.of(tier.METADATA_MANAGER_CLASS),
        remote_log_metadata_config=shared_build.texts(settings.metadata),
        effective=_effective(settings, derived),
        files=_files(path, values),
        warnings=tuple(settings.warnings),
    )


def _files(path: Path, values: Values) -> Mapping[str, Path]:
    named = {key.name: values.optional(key) for key in _FILE_KEYS}
    return {"": path, **{name: file for name, file in named.items() if file is not None}}


def _effective(settings: Settings, derived: Mapping[str, str]) -> tuple[EffectiveKey, ...]:
    plugins: dict[str, Setting] = {}
    for plugin in Plugin:
        for name, setting in settings.plugin(plugin).items():
            plugins[settings.prefixes.spelled(plugin, name)] = setting
    return effective_keys(settings.table, plugins, derived)
