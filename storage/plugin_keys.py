"""Every key of the plug-ins and of the metadata topic's clients: it acts here, or it has no effect, and what to set
instead. Ours are in `KeyTable`s. docs/configuration.md is made of both, and `tests/tidegate/config/test_every_key.py`
sets each.

A plug-in invents keys, and a broker's file holds what only brokers need; so a key that is not here stops nothing. It is
a warning with the nearest key that is: a prefix that is misspelt hides a whole tier.
"""

import re
from collections.abc import Mapping
from typing import Final

KEY_RING_FILE_KEY: Final = "encryption.key.ring.file"

ACTS: Final = ""
"""What a table says of a key that acts; of others it says what to set instead."""

Table = Mapping[str, str]
"""By key without its prefix; `<id>` stands for any name."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_S3 = """storage.s3.bucket.name storage.s3.region storage.s3.endpoint.url storage.s3.path.style.access.enabled
storage.s3.multipart.upload.part.size storage.s3.multipart.upload.threshold storage.s3.storage.class
storage.s3.api.call.timeout storage.s3.api.call.attempt.timeout storage.s3.legacy.md5.plugin.enabled
storage.s3.checksum.mode storage.aws.access.key.id storage.aws.secret.access.key storage.aws.session.token
storage.aws.credentials.file storage.aws.credentials.provider.class storage.aws.certificate.check.enabled
storage.aws.checksum.check.enabled"""
_GCS = """storage.gcs.bucket.name storage.gcs.endpoint.url storage.gcs.credentials.json storage.gcs.credentials.path
storage.gcs.credentials.default storage.gcs.resumable.upload.chunk.size"""
_AZURE = """storage.azure.container.name storage.azure.account.name storage.azure.account.key storage.azure.sas.token
storage.azure.endpoint.url storage.azure.connection.string storage.azure.upload.block.size"""
_PROXY = "storage.proxy.host storage.proxy.port storage.proxy.username storage.proxy.password"
STORE_KEYS: Final = (
    "storage.backend.class",
    "storage.root",
    "storage.overwrite.enabled",
    *_names(f"{_S3} {_GCS} {_AZURE} {_PROXY}"),
)
"""What says how an object store is reached, of whatever kind."""

LOCAL_IDLE: Final = {
    "delete.on.close": "it would wipe a tier that outlives this process",
    "transferer.class": "a Java class for fault injection in Kafka's own tests",
    "broker.id": "the broker adds it; file names do not hold it",
}
"""LocalTieredStorage's keys without effect. Where a broker uses it, its file holds them, whatever reads its folder."""

_MEMORY, _GETS = "`memory.max.bytes`", "`tier.concurrent.gets.max`"
_WAIT, _OWN_METRICS = "`remote.fetch.max.wait.ms`", "metrics are Tidegate's own (docs/metrics.md)"
_ICEBERG = "brokers read what was written in Iceberg mode"

LOCAL: Final[Table] = dict.fromkeys(("dir", "delete.enable"), ACTS) | LOCAL_IDLE
PLAIN: Final[Table] = dict.fromkeys((*STORE_KEYS, "key.prefix", "upload.rate.limit.bytes.per.second"), ACTS) | {
    **dict.fromkeys(("dir", "delete.enable"), "it is LocalTieredStorage's"),
    **LOCAL_IDLE,
}
AIVEN: Final[Table] = {
    **dict.fromkeys(
        _names(
            """chunk.size key.prefix key.prefix.mask compression.enabled compression.heuristic.enabled
        encryption.enabled encryption.key.pair.id encryption.key.pairs
        encryption.key.pairs.<id>.public.key.file encryption.key.pairs.<id>.private.key.file
        encryption.key.ring.file custom.metadata.fields.include upload.rate.limit.bytes.per.second
        segment.format fetch.chunk.cache.class fetch.chunk.cache.size fetch.chunk.cache.retention.ms
        fetch.chunk.cache.prefetch.max.size"""
        ),
        ACTS,
    ),
    **dict.fromkeys(STORE_KEYS, ACTS),
    "fetch.chunk.cache.path": "`cache.path`: two caches in one folder would wipe each other",
    **{f"fetch.{cache}.cache.thread.pool.size": _GETS for cache in ("chunk", "indexes", "manifest")},
    **{f"fetch.{cache}.cache.get.timeout.ms": _WAIT for cache in ("chunk", "indexes", "manifest")},
    **{f"fetch.{cache}.cache.size": _MEMORY for cache in ("indexes", "manifest")},
    **{f"fetch.{cache}.cache.retention.ms": _MEMORY for cache in ("indexes", "manifest")},
    **{f"segment.manifest.cache.{what}": _MEMORY for what in ("size", "retention.ms")},
    **{f"metrics.{what}": _OWN_METRICS for what in ("num.samples", "sample.window.ms", "recording.level")},
    **dict.fromkeys(
        _names(
            """structure.provider.class iceberg.namespace iceberg.catalog.class iceberg.catalog.cache.enabled
        iceberg.catalog.cache.expiration.ms"""
        ),
        _ICEBERG,
    ),
}
STORAGE_TABLES: Final[Mapping[str, Table]] = {
    "org.apache.kafka.server.log.remote.storage.LocalTieredStorage": LOCAL,
    "io.aiven.kafka.tieredstorage.RemoteStorageManager": AIVEN,
    "tidegate.PlainObjects": PLAIN,
}
"""By the class that the broker's file names."""

METADATA: Final[Table] = {
    **{f"remote.log.metadata.topic.{what}": ACTS for what in ("num.partitions", "replication.factor", "retention.ms")},
    "remote.log.metadata.topic.min.isr": ACTS,
    **dict.fromkeys(
        (
            "remote.log.metadata.consume.wait.ms",
            "remote.log.metadata.initialization.retry.max.timeout.ms",
            "remote.log.metadata.initialization.retry.interval.ms",
        ),
        "Tidegate waits as long as it takes, and `/readyz` says for what",
    ),
    "remote.log.metadata.admin.<id>": "`remote.log.metadata.producer.*` makes the topic, too",
    **dict.fromkeys(("broker.id", "cluster.id", "log.dir"), "the broker adds it for itself"),
}
CLIENT: Final[Table] = {
    **dict.fromkeys(
        _names(
            """bootstrap.servers security.protocol sasl.mechanism sasl.jaas.config
        ssl.endpoint.identification.algorithm ssl.truststore.certificates ssl.truststore.location
        ssl.truststore.password ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
        ssl.keystore.password ssl.key.password"""
        ),
        ACTS,
    ),
    **dict.fromkeys(("ssl.truststore.type", "ssl.keystore.type"), "the file's content tells its type"),
    **dict.fromkeys(
        # Kafka 4.3's ConsumerConfig and ProducerConfig; `<id>` for families of many.
        _names(
            """acks allow.auto.create.topics auto.commit.interval.ms auto.offset.reset batch.size buffer.memory
        check.crcs client.dns.lookup client.id client.rack compression.<id> config.providers
        connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.auto.commit
        enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
        fetch.min.bytes group.<id> heartbeat.interval.ms interceptor.classes isolation.level
        key.deserializer key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
        max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size metadata.<id>
        metric.reporters metrics.<id> partition.assignment.strategy partitioner.<id>
        receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
        retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.kerberos.<id>
        sasl.login.<id> sasl.oauthbearer.<id> security.providers send.buffer.bytes session.timeout.ms
        socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
        ssl.enabled.protocols ssl.engine.factory.class ssl.keymanager.algorithm ssl.protocol
        ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm transaction.<id>
        transactional.id value.deserializer value.serializer"""
        ),
        "Tidegate's own connections have fixed times and sizes",
    ),
}


def acting(table: Table) -> tuple[str, ...]:
    """The keys of a table that act."""
    return tuple(name for name, instead in table.items() if instead == ACTS)


def instead_of(name: str, table: Table) -> str | None:
    """Return what to set instead of a key; ACTS: it acts. None: it is no key that is known."""
    if name in table:
        return table[name]
    families = (key for key in table if "<id>" in key)
    found = (key for key in families if re.fullmatch(re.escape(key).replace("<id>", ".+"), name))
    return next((table[key] for key in found), None)
