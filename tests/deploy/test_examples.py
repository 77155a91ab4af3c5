"""The example files of deploy/: each is a configuration that `tidegate serve` takes."""

from pathlib import Path

import pytest
import yaml

from proxy.config.load import load
from proxy.config.model import SERVE_KEYS, Config
from storage.registry import open_remote_storage_manager
from tests.support.needs import ROOT

DEPLOY = ROOT / "deploy"
EXAMPLES = sorted((DEPLOY / "examples").glob("*.properties"))
ENVIRON = {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret", "AZURE_SAS_TOKEN": "sv=1&sig=x"}
"""Variables that examples refer to."""


def test_there_is_an_example_of_every_format() -> None:
    names = {load(path, ENVIRON).remote_storage_manager_class_name.rpartition(".")[2] for path in EXAMPLES}
    assert names == {"LocalTieredStorage", "PlainObjects", "RemoteStorageManager"}


def test_there_is_an_example_of_every_store_in_a_cloud() -> None:
    configs = [load(path, ENVIRON).remote_storage_config for path in EXAMPLES]
    names = {config.get("storage.backend.class", "").rpartition(".")[2] for config in configs}
    assert names >= {"AzureBlobStorage", "GcsStorage", "S3Storage"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_taken_without_a_warning_and_opens_its_store(path: Path) -> None:
    check_opens(load(path, ENVIRON))


def check_opens(config: Config) -> None:
    assert config.warnings == ()
    manager = open_remote_storage_manager(config.remote_storage_manager_class_name, config.remote_storage_config)
    manager.close()


def test_the_default_drain_is_below_every_grace_period() -> None:
    drain_s = SERVE_KEYS.by_name["proxy.drain.timeout.ms"].default_value / 1000
    unit = (DEPLOY / "systemd" / "tidegate.service").read_text("utf-8")
    stop_s = next(line.partition("=")[2] for line in unit.splitlines() if line.startswith("TimeoutStopSec="))
    assert int(stop_s) > drain_s
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert int(compose["services"]["tidegate"]["stop_grace_period"].removesuffix("s")) > drain_s
