"""From serve's file to an open tier: two identities where there are two, nothing asked before it is needed."""

from pathlib import Path

import pytest

from storage.config.model import HostPort
from storage.errors import StorageConfigError
from table.driver import load_config, open_tier, shipped_tail
from table.planning.own_tier_view import OwnTierView
from table.planning.request import OptionsError
from table.planning.tier_view import TierView
from tests.support.tier_config_files import tier_file


def local_file(folder: Path, lines: str = "") -> Path:
    """A configuration of a tier in a folder."""
    manager = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    lines = f"remote.log.storage.manager.class.name={manager}\nrsm.config.dir={folder / 'tier'}\n{lines}"
    return tier_file(folder, f"upstream.bootstrap.servers=broker:9092\n{lines}", minimal=False)


def test_whose_the_tier_is_is_known_to_what_views_it(tmp_path: Path) -> None:
    # A tier of our own begins elsewhere than the brokers' logs; only whole programs saw it when this was not passed on.
    for lines, kind in (("", TierView), ("mode=standalone\n", OwnTierView)):
        with open_tier(load_config(str(local_file(tmp_path, lines)), {})) as tier:
            assert type(tier.view) is kind


def test_metadata_must_be_in_kafkas_topic(tmp_path: Path) -> None:
    path = local_file(tmp_path, "remote.log.metadata.manager.class.name=tidegate.InMemory\n")
    with pytest.raises(StorageConfigError, match="tables read metadata from Kafka's topic only"):
        load_config(str(path), {})


def test_the_tail_is_read_where_the_option_says_or_else_upstream(tmp_path: Path) -> None:
    config = load_config(str(local_file(tmp_path)), {})
    assert shipped_tail(config, None).bootstrap_servers == (HostPort("broker", 9092),)
    assert shipped_tail(config, "one:1,[::1]:2").bootstrap_servers == (HostPort("one", 1), HostPort("::1", 2))
    with pytest.raises(OptionsError, match=r"kafka\.bootstrap\.servers must be host:port"):
        shipped_tail(config, "nowhere")
