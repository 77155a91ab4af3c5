"""Sentences that `check` and a running process say alike: what there is, and which keys to look at."""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.client.errors import UpstreamAuthenticationError, UpstreamUnsupportedError
from storage.errors import (
    CorruptObjectError,
    IcebergSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StorageConfigError,
)
from tidegate.acl_lines import with_grant
from tidegate.config.model import Config

_STORE_KEYS = (
    "dir",
    "storage.root",
    "storage.s3.bucket.name",
    "storage.gcs.bucket.name",
    "storage.azure.container.name",
)
_ENDPOINT_KEYS = tuple(f"storage.{name}.endpoint.url" for name in ("s3", "gcs", "azure"))


@dataclass(frozen=True, slots=True)
class Reasons:
    """What is wrong, by the keys of this configuration."""

    config: Config

    def complete(self, sentence: str) -> str:
        """Return the sentence, and behind it what grants the right that it misses."""
        return with_grant(sentence, self.config)

    def no_broker(self, error: Exception) -> str:
        """Return why no broker answers."""
        if isinstance(error, UpstreamUnsupportedError):
            return str(error)
        upstream = self.config.upstream
        servers = ",".join(map(str, upstream.bootstrap_servers))
        keys = f"upstream.bootstrap.servers {servers}, upstream.security.protocol {upstream.security.protocol}"
        if isinstance(error, UpstreamAuthenticationError):
            keys = "upstream.sasl.mechanism, upstream.sasl.username and upstream.sasl.password"
        return f"{error}; check {keys}"

    def segment(self, error: RemoteStorageError) -> str:
        """Return why the object store does not give a segment."""
        text, prefix = str(error), self.config.remote_storage_prefix
        if "check " in text or "set " in text or isinstance(error, StorageConfigError):
            return text
        if isinstance(error, IcebergSegmentError):
            return f"{text}; brokers read it in our place"
        if isinstance(error, RetriableRemoteStorageError):
            named = self._named(_ENDPOINT_KEYS) or self._named(_STORE_KEYS)
            return f"{text}; check {named}, and whether the store runs and the network lets us through"
        if isinstance(error, RemoteResourceNotFoundError):
            return f"{text}; it was deleted, or lies elsewhere: check {self._named((*_STORE_KEYS, 'key.prefix'))}"
        if isinstance(error, CorruptObjectError):
            return f"{text}; compare it with what the broker reads, and restore the object or delete the segment"
        return f"{text}; check the keys that begin with {prefix}"

    def tier(self, error: RemoteStorageError) -> str:
        """Return why the object store does not answer what any store of this tier would."""
        said = self.segment(error)
        return f"{said}; {self.first_look}" if isinstance(error, CorruptObjectError) else said

    @property
    def first_look(self) -> str:
        """Return what to look at where an object is no such object at all."""
        return f"look first whether {self._named((*_ENDPOINT_KEYS, *_STORE_KEYS))} lead to the brokers' store"

    def _named(self, keys: Sequence[str]) -> str:
        """Return those of the plug-in's keys that are given."""
        given = [self.config.remote_storage_prefix + key for key in keys if key in self.config.remote_storage_config]
        return " and ".join(given)


def catalog_full(segments_max: int, partitions: int) -> str:
    """Return that so many partitions do not fit in."""
    return (
        f"there are more segments than catalog.segments.max {segments_max}: brokers read {partitions} partitions; "
        "raise it, and the memory for it"
    )
