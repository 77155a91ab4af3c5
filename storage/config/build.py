"""From typed values to the parts of a configuration that all readers of the tier share."""

from collections.abc import Mapping
from types import MappingProxyType

from storage.config import keys as table
from storage.config.broker_config import (
    CLIENT_PREFIXES,
    COMMON_CLIENT_PREFIX,
    CONSUMER_PREFIX,
    PRODUCER_PREFIX,
    Plugin,
)
from storage.config.java_security import JavaSecurity
from storage.config.kinds import HOST_PORTS
from storage.config.model import MetadataClientConfig, UpstreamConfig
from storage.config.security import upstream_security
from storage.config.sources import Setting, Settings
from storage.config.values import Values


def upstream_config(values: Values) -> UpstreamConfig:
    return UpstreamConfig(
        bootstrap_servers=values.of(table.UPSTREAM_BOOTSTRAP_SERVERS), security=upstream_security(values)
    )


def metadata_client_config(settings: Settings, upstream: UpstreamConfig, problems: list[str]) -> MetadataClientConfig:
    """The consumer's properties over the common ones, and what they leave open from upstream."""
    by_prefix: dict[str, dict[str, tuple[str, Setting]]] = {prefix: {} for prefix in CLIENT_PREFIXES}
    for name, setting in settings.metadata.items():
        for prefix in CLIENT_PREFIXES:
            if name.startswith(prefix):
                whole_key = settings.prefixes.spelled(Plugin.METADATA, name)
                by_prefix[prefix][name.removeprefix(prefix)] = (whole_key, setting)
    consumer = by_prefix[COMMON_CLIENT_PREFIX] | by_prefix[CONSUMER_PREFIX]
    bootstrap_servers = upstream.bootstrap_servers
    key, setting_given = consumer.get("bootstrap.servers", ("", None))
    if setting_given is not None and setting_given.text is not None:
        try:
            bootstrap_servers = HOST_PORTS.parse(setting_given.text)
        except ValueError as error:
            problems.append(f"{setting_given.origin}: {key} = {setting_given.text}: {error}")
    return MetadataClientConfig(
        bootstrap_servers=bootstrap_servers,
        security=JavaSecurity(consumer, upstream.security, problems).security(),
        common_client=texts({name: setting for name, (_, setting) in by_prefix[COMMON_CLIENT_PREFIX].items()}),
        consumer=texts({name: setting for name, (_, setting) in by_prefix[CONSUMER_PREFIX].items()}),
        producer=texts({name: setting for name, (_, setting) in by_prefix[PRODUCER_PREFIX].items()}),
    )


def texts(settings: Mapping[str, Setting]) -> Mapping[str, str]:
    """Names and resolved values, read-only; what could not be resolved was reported and is left out."""
    return MappingProxyType({name: s.text for name, s in settings.items() if s.text is not None})
