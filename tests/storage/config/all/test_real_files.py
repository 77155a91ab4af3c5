"""Files that real programs wrote."""

from pathlib import Path

import pytest

from tests.support.tier_config_files import load_tier_lines
from tests.support.vectors import vector


@pytest.mark.needs("vectors")
def test_a_real_brokers_file_gives_the_tiers_part(tmp_path: Path) -> None:
    file = vector("aiven-tier", "broker.properties")
    config = load_tier_lines(tmp_path, f"upstream.bootstrap.servers=b:1\nbroker.config={file}\n", minimal=False)
    assert config.remote_storage_manager_class_name == "io.aiven.kafka.tieredstorage.RemoteStorageManager"
    assert config.remote_storage_config["chunk.size"] == "65536"
    assert len(config.remote_storage_config) == 12
