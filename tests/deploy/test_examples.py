"""The example files of deploy/: each is a configuration that `tidegate serve` takes."""

import yaml

from storage.config.registry import open_remote_storage_manager
from tests.support.needs import ROOT
from tidegate.config.load import load
from tidegate.config.model import SERVE_KEYS

DEPLOY = ROOT / "deploy"
EXAMPLES = sorted((DEPLOY / "examples").glob("*.properties"))
ENVIRON = {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret", "AZURE_SAS_TOKEN": "sv=1&sig=x"}
"""Variables that examples refer to."""


def test_examples_of_every_format_and_store_are_taken_without_a_warning_and_open_it() -> None:
    formats, stores = set(), set()
    for path in EXAMPLES:
        config = load(path, ENVIRON)
        assert config.warnings == (), path.name
        open_remote_storage_manager(config.remote_storage_manager_class_name, config.remote_storage_config).close()
        formats.add(config.remote_storage_manager_class_name.rpartition(".")[2])
        stores.add(config.remote_storage_config.get("storage.backend.class", "").rpartition(".")[2])
    assert formats == {"LocalTieredStorage", "PlainObjects", "RemoteStorageManager"}
    assert stores >= {"AzureBlobStorage", "GcsStorage", "S3Storage"}


def test_the_default_drain_is_below_every_grace_period() -> None:
    drain_s = SERVE_KEYS.by_name["proxy.drain.timeout.ms"].default_value / 1000
    unit = (DEPLOY / "systemd" / "tidegate.service").read_text("utf-8")
    stop_s = next(line.partition("=")[2] for line in unit.splitlines() if line.startswith("TimeoutStopSec="))
    assert int(stop_s) > drain_s
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert int(compose["services"]["tidegate"]["stop_grace_period"].removesuffix("s")) > drain_s
