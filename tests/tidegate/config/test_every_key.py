"""No key lies: each of every table is set, and acts, moves with a warning, is refused by name, or is said to have no
effect."""

import re
import shutil
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from storage.config import ConfigError
from storage.config.keys import keys_of
from storage.config.security import PLAIN_MODULE
from storage.config.sources import BROKER_CONFIG, METADATA_PREFIX, STORAGE_PREFIX
from storage.errors import RemoteStorageError, StorageConfigError
from storage.formats.aiven.config import aiven_config
from storage.object_store.azure.config import azure_settings
from storage.object_store.gcs.config import gcs_settings
from storage.object_store.registry import open_object_store
from storage.object_store.s3.config import s3_settings
from storage.plugin_keys import AIVEN, CLIENT, LOCAL, METADATA, PLAIN, STORAGE_TABLES, Table, acting
from tests.support.aiven_writer import make_key_pair
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines, problems_of
from tests.support.for_each import for_each
from tests.support.needs import ROOT
from tidegate.config.model import SERVE_KEYS

AIVEN_CLASS = next(name for name, table in STORAGE_TABLES.items() if table is AIVEN)
COMMON = "remote.log.metadata.common.client."
NONSENSE = "?!"
BY_GATHER = (BROKER_CONFIG, STORAGE_PREFIX, METADATA_PREFIX)
"""Keys that say where to find others."""
BACKEND = "io.aiven.kafka.tieredstorage.storage."
SOURCES = [
    path.read_text("utf-8")
    for folder in ("proxy", "pipeline", "standalone", "storage", "table", "tidegate")
    for path in (ROOT / folder).rglob("*.py")
]


def test_each_key_of_ours_is_judged_and_read_somewhere(tmp_path: Path) -> None:
    takes_anything, unnamed = [], list[str]()
    for key in SERVE_KEYS.keys:
        try:
            load_lines(tmp_path, f"{key.name}={NONSENSE}\n")
        except ConfigError as error:
            unnamed += [] if any(key.name in problem for problem in error.problems) else [key.name]
        else:
            takes_anything.append(key)
    assert unnamed == []
    for key in takes_anything:
        assert key.kind.parse(NONSENSE) in (NONSENSE, Path(NONSENSE)), f"{key.name} is not judged"
    for group in SERVE_KEYS.groups:
        for name, key in keys_of(group).items():
            used = re.compile(rf"\.{name}\b")
            is_read = any(used.search(source) for source in SOURCES)
            name_text = f'"{key.name.removeprefix("schema.registry.")}"'
            by_name = sum(source.count(name_text) for source in SOURCES) > 1  # once where it is declared
            assert is_read or by_name or key.name in BY_GATHER, f"nothing reads {key.name}"


def test_each_key_that_moved_acts_under_its_old_name_with_one_warning(tmp_path: Path) -> None:
    moved = [key for key in SERVE_KEYS.keys if key.old_name]
    assert len(moved) == 15
    for key in moved:
        config = load_lines(tmp_path, f"{key.old_name}={key.default or '64 MiB'}\n")
        (warning,) = config.warnings
        assert f"{key.old_name} is {key.name} now" in warning
        [shown] = [each for each in config.effective if each.name == key.name]
        assert (shown.value, shown.origin) == (key.default or "64 MiB", "tidegate.properties:3")


def test_what_comes_later_is_refused_by_name(tmp_path: Path) -> None:
    lines = "upstream.security.protocol=SASL_SSL\nupstream.sasl.username=a\nupstream.sasl.password=b\n"
    (problem,) = problems_of(tmp_path, f"{lines}upstream.sasl.mechanism=OAUTHBEARER\n")
    assert problem.startswith("upstream.sasl.mechanism: ")


BASES: dict[str, dict[str, str]] = {
    "s3": {"storage.s3.bucket.name": "b", "storage.s3.region": "r", "storage.backend.class": f"{BACKEND}s3.S3Storage"},
    "gcs": {"storage.gcs.bucket.name": "b"},
    "azure": {"storage.azure.container.name": "c", "storage.azure.account.name": "a"},
}
"""The smallest configuration of each store."""

SAMPLES = {
    "storage.aws.certificate.check.enabled": "false",
    "storage.s3.checksum.mode": "when_supported",
    "storage.s3.endpoint.url": "http://store:1",
    "storage.gcs.endpoint.url": "http://store:1",
    "storage.azure.endpoint.url": "http://store:1",
    "storage.overwrite.enabled": "false",
    "storage.gcs.credentials.default": "false",
}
"""Values that differ from the default where `true` does not, or is refused without the key's name."""


def outcome(config: dict[str, str], folder: Path) -> object:
    """Return what is made of a configuration of Aiven's plug-in: each part, or why it cannot be."""
    found: list[object] = []
    parts: list[Any] = [aiven_config, s3_settings, gcs_settings, azure_settings]
    for part in parts:
        try:
            found.append(part(config))
        except StorageConfigError as error:
            found.append(str(error))
    files = {"storage.root": str(folder), "storage.backend.class": f"{BACKEND}filesystem.FileSystemStorage"}
    try:
        store = open_object_store(files | config)
        found.append(store.identity)
        for _ in range(2):
            store.put("a/file", b"")
    except RemoteStorageError as error:
        found.append(str(error))
    return found


def test_each_key_of_a_storage_plugin_that_is_said_to_act_does(tmp_path: Path) -> None:
    base = {name: value for part in BASES.values() for name, value in part.items()}
    del base["storage.backend.class"]
    through_load = {name for name in acting(AIVEN) if name.startswith("fetch.chunk.cache.")}
    for name in set(acting(AIVEN)) - through_load:
        given, key = dict(base), name.replace("<id>", "k1")
        if name.startswith("encryption.key.pair"):
            given |= make_key_pair(tmp_path, "k1")
            given.pop(key)
        with_it = given | {key: SAMPLES.get(name, "true")}
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        without = outcome(given, tmp_path)
        assert outcome(with_it, tmp_path) != without, f"{name} does nothing"
    assert acting(LOCAL) == ("dir", "delete.enable"), "test_kafka_named_objects.py has them"
    assert set(acting(PLAIN)) < set(acting(AIVEN))


def test_the_sizes_of_the_plugins_cache_become_ours(tmp_path: Path) -> None:
    lines = f"remote.log.storage.manager.class.name={AIVEN_CLASS}\nupstream.bootstrap.servers=b:1\ncache.path=c\n"
    prefix, package = "rsm.config.fetch.chunk.cache.", "io.aiven.kafka.tieredstorage.fetch.cache.DiskChunkCache"
    lines += f"{prefix}class={package}\n{prefix}size=123456789\n{prefix}retention.ms=4321\n"
    config = load_lines(tmp_path, f"{lines}{prefix}prefetch.max.size=200000000\n", minimal=False)
    assert (config.cache.disk_bytes, config.cache.retention_ms) == (123456789, 4321)
    assert config.readahead.stream_bytes_max == 200000000
    assert not config.warnings


def test_each_key_of_the_metadata_plugin_that_is_said_to_act_does(tmp_path: Path) -> None:
    base = load_lines(tmp_path, "mode=standalone\n").metadata_topic
    for name in acting(METADATA):
        assert load_lines(tmp_path, f"mode=standalone\nrlmm.config.{name}=7\n").metadata_topic != base, name


def client_files(folder: Path) -> dict[str, str]:
    """Stores in the folder, and PEM text on one line."""
    certificate_file, key_file = server_certificate(folder)
    certificate, key = load_pem_x509_certificate(certificate_file.read_bytes()), key_file.read_bytes()
    private, lock = load_pem_private_key(key, None), BestAvailableEncryption(b"p")
    assert isinstance(private, EllipticCurvePrivateKey)
    (folder / "own.p12").write_bytes(pkcs12.serialize_key_and_certificates(b"a", private, certificate, None, lock))
    (folder / "trust.p12").write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [certificate], lock))
    locked = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)
    (folder / "locked.pem").write_bytes(locked + certificate_file.read_bytes())
    return {"chain": certificate_file.read_text().replace("\n", " "), "key": key.decode().replace("\n", " ")}


def test_each_key_of_the_metadata_clients_that_is_said_to_act_does(tmp_path: Path) -> None:
    pem = client_files(tmp_path)
    upstream = (
        "upstream.security.protocol=SASL_SSL\nupstream.sasl.mechanism=SCRAM-SHA-256\nupstream.sasl.username=a\n"
        "upstream.sasl.password=b\nmetadata.identity=broker\n"
    )
    jaas = {"sasl.jaas.config": f"{PLAIN_MODULE} required username=b password=c;"}
    beside = {
        "sasl.mechanism": jaas,
        "sasl.jaas.config": {"sasl.mechanism": "PLAIN"},
        "ssl.truststore.password": {"ssl.truststore.location": "trust.p12"},
        "ssl.keystore.password": {"ssl.keystore.location": "own.p12"},
        "ssl.key.password": {"ssl.keystore.location": "locked.pem"},
        "ssl.keystore.key": {"ssl.keystore.certificate.chain": pem["chain"]},
    }
    samples = jaas | {
        "bootstrap.servers": "meta:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.truststore.certificates": pem["chain"],
        "ssl.truststore.location": "server.pem",
        "ssl.truststore.password": "p",
        "ssl.keystore.certificate.chain": pem["chain"],
        "ssl.keystore.key": pem["key"],
        "ssl.keystore.location": "own.p12",
        "ssl.keystore.password": "p",
        "ssl.key.password": "p",
    }

    def made_of(properties: dict[str, str]) -> object:
        lines = upstream + "".join(f"{COMMON}{name}={value}\n" for name, value in properties.items())
        try:
            config = load_lines(tmp_path, lines)
        except ConfigError as error:
            return error.problems
        return config.metadata_client

    for name in acting(CLIENT):
        around = beside.get(name, {})
        assert made_of(around | {name: samples[name]}) != made_of(around), f"{name} does nothing"


@for_each("class_name, table", [*STORAGE_TABLES.items()])
def test_each_key_without_effect_is_named_with_what_to_set_instead(
    tmp_path: Path, class_name: str, table: Table
) -> None:
    given = {f"rsm.config.{name}": instead for name, instead in table.items() if instead}
    given |= {f"rlmm.config.{name.replace('<id>', 'x')}": instead for name, instead in METADATA.items() if instead}
    given |= {f"rlmm.config.{COMMON}{name.replace('<id>', 'x')}": each for name, each in CLIENT.items() if each}
    text = "".join(f"{name}=1\n" for name in given)
    top = f"remote.log.storage.manager.class.name={class_name}\nupstream.bootstrap.servers=b:1\n"
    (warning,) = load_lines(tmp_path, top + text, minimal=False).warnings
    for name, instead in given.items():
        assert f"{name} ({instead})" in warning
    (tmp_path / "server.properties").write_text(text)
    config = load_lines(tmp_path, f"{top}broker.config=server.properties\n", minimal=False)
    assert config.warnings == (), "a broker's file has what only brokers need"
    notes = {each.name: each.note for each in config.effective if each.note}
    assert notes == {name: f"no effect: {instead}" for name, instead in given.items()}


def test_a_misspelt_key_of_a_plugin_is_a_warning_with_the_nearest(tmp_path: Path) -> None:
    # Failed before: no prefix, and everything was "not found".
    (tmp_path / "server.properties").write_text(
        "rsm.config.key.prefx=tier/\nrlmm.config.remote.log.metadata.topic.num.partition=7\n"
        f"{COMMON}boostrap.servers=b:1\nrsm.config.something.else=1\n"
    )
    lines = f"remote.log.storage.manager.class.name={AIVEN_CLASS}\nupstream.bootstrap.servers=b:1\n"
    config = load_lines(tmp_path, f"{lines}broker.config=server.properties\n", minimal=False)
    unknown = "is no key that is known, and has no effect"
    assert sorted(config.warnings) == [
        f"broker.config server.properties:1: rsm.config.key.prefx {unknown}; the nearest is rsm.config.key.prefix",
        f"broker.config server.properties:2: rlmm.config.remote.log.metadata.topic.num.partition {unknown}; "
        "the nearest is rlmm.config.remote.log.metadata.topic.num.partitions",
        f"broker.config server.properties:3: rlmm.config.{COMMON}boostrap.servers {unknown}; "
        f"the nearest is rlmm.config.{COMMON}bootstrap.servers",
        f"broker.config server.properties:4: rsm.config.something.else {unknown}",
    ]
