"""A configuration on its way to executors: what it names goes with it, nothing is left behind, no secret shows."""

import os
import tempfile
from pathlib import Path

import pytest

from storage.errors import StorageConfigError
from table.reading import executor_storage
from table.reading.executor_storage import SHIPPED_FILE_BYTES_MAX, open_shipped_storage, ship_storage
from tests.support.opened_bytes import ReadOnlyManager
from tests.support.sent import sent

AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
PRIVATE_KEY = "encryption.key.pairs.k.private.key.file"
SECRET = "planted+secret/of+storage"


def test_files_travel_and_none_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_file = tmp_path / "private.pem"
    key_file.write_bytes(b"a private key")
    there = tmp_path / "executor"
    there.mkdir()
    shipped = sent(ship_storage(AIVEN, {PRIVATE_KEY: str(key_file), "other": "1"}))
    key_file.unlink()
    monkeypatch.setattr(tempfile, "tempdir", str(there))

    def open_manager(_class_name: str, config: dict[str, str]) -> ReadOnlyManager:
        file = Path(config[PRIVATE_KEY])
        assert (file.read_bytes(), oct(file.parent.stat().st_mode & 0o777)) == (b"a private key", "0o700")
        return ReadOnlyManager(config["other"])

    monkeypatch.setattr(executor_storage, "open_remote_storage_manager", open_manager)

    assert open_shipped_storage(shipped).identity == "1"
    assert os.listdir(there) == []


def test_a_file_of_aws_credentials_becomes_the_keys_that_it_holds(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(f"aws.access.key.id=AKIA1\naws.secret.access.key={SECRET}\naws.session.token=token\n")
    shipped = ship_storage(AIVEN, {"storage.aws.credentials.file": str(credentials), "storage.s3.region": "r"})
    assert dict(shipped.config) == {
        "storage.aws.access.key.id": "AKIA1",
        "storage.aws.secret.access.key": SECRET,
        "storage.aws.session.token": "token",
        "storage.s3.region": "r",
    }
    assert shipped.files == ()


def test_a_file_of_googles_credentials_becomes_the_key_for_its_text(tmp_path: Path) -> None:
    """Executors looked for the driver's file, or asked without credentials."""
    credentials = tmp_path / "key.json"
    credentials.write_text(f'{{"type": "service_account",\n "private_key": "{SECRET}"}}\n')
    given = {"storage.gcs.credentials.path": str(credentials), "storage.gcs.bucket.name": "tier"}
    shipped = sent(ship_storage(AIVEN, given))
    assert dict(shipped.config) == {
        "storage.gcs.credentials.json": credentials.read_text(),
        "storage.gcs.bucket.name": "tier",
    }
    assert SECRET not in repr(shipped)
    credentials.write_text(f"[{SECRET}]")
    with pytest.raises(
        StorageConfigError, match=r"^storage\.gcs\.credentials\.path: .*key\.json is not a JSON"
    ) as caught:
        ship_storage(AIVEN, given)
    assert SECRET not in str(caught.value)


def test_a_key_ring_file_becomes_the_pairs_that_it_lists_whose_files_travel(tmp_path: Path) -> None:
    private, ring = tmp_path / "private.pem", tmp_path / "ring.properties"
    private.write_bytes(b"a private key")
    pairs = {"encryption.key.pairs": "k", PRIVATE_KEY: str(private)}
    ring.write_text("".join(f"rsm.config.{key}={value}\n" for key, value in pairs.items()) + "rsm.config.other=1\n")
    shipped = ship_storage(AIVEN, {"encryption.key.ring.file": str(ring), "key.prefix": "p"})
    assert dict(shipped.config) == {**pairs, "key.prefix": "p"}
    assert dict(shipped.files) == {PRIVATE_KEY: b"a private key"}
    ring.write_bytes(bytes(SHIPPED_FILE_BYTES_MAX + 1))
    with pytest.raises(StorageConfigError, match=r"encryption\.key\.ring\.file=.*: it is larger than"):
        ship_storage(AIVEN, {"encryption.key.ring.file": str(ring)})


def test_a_file_that_is_not_here_is_the_executors_and_one_not_sent_is_named(tmp_path: Path) -> None:
    config = {"some.key.file": str(tmp_path / "elsewhere"), "empty.file": " "}
    assert ship_storage(AIVEN, config).config == tuple(sorted(config.items()))
    large = tmp_path / "large"
    large.write_bytes(bytes(SHIPPED_FILE_BYTES_MAX + 1))
    with pytest.raises(StorageConfigError, match=r"a\.file: .*large is larger than"):
        ship_storage(AIVEN, {"a.file": str(large)})
    with pytest.raises(StorageConfigError, match=r"a\.file: .*cannot be read"):
        ship_storage(AIVEN, {"a.file": str(tmp_path)})


def test_no_secret_is_in_a_repr(tmp_path: Path) -> None:
    secret_file = tmp_path / "key"
    secret_file.write_text(SECRET)
    shipped = ship_storage(AIVEN, {"storage.aws.secret.access.key": SECRET, "private.key.file": str(secret_file)})
    assert SECRET not in repr(shipped) + str(shipped)
    assert AIVEN in repr(shipped)


def test_a_process_opens_a_configuration_once(tmp_path: Path) -> None:
    one = ship_storage(LOCAL, {"dir": str(tmp_path / "one")})
    managers = [open_shipped_storage(sent(one)) for _ in range(2)]
    assert managers[0] is managers[1]
    assert open_shipped_storage(ship_storage(LOCAL, {"dir": str(tmp_path / "two")})) is not managers[0]


LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
