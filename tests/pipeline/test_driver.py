"""From serve's file to an open tier: two identities where there are two, nothing asked before it is needed."""

import socket
from pathlib import Path

import pytest

from pipeline import driver
from pipeline.brokers.client import BrokerClient
from pipeline.driver import load_config, open_tier, shipped_storage, shipped_tail
from pipeline.planning.options import OptionsError
from pipeline.reading.executor_storage import open_shipped_storage
from storage.config import ConfigError
from storage.config.model import HostPort
from storage.errors import StorageConfigError
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.model import ZERO_UUID
from tests.support.tier_config_files import tier_file


def local_file(folder: Path, lines: str = "") -> Path:
    """A configuration of a tier in a folder."""
    manager = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    lines = f"remote.log.storage.manager.class.name={manager}\nrsm.config.dir={folder / 'tier'}\n{lines}"
    return tier_file(folder, f"upstream.bootstrap.servers=broker:9092\n{lines}", minimal=False)


def test_opening_a_tier_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("a connection was made"))
    config = load_config(str(local_file(tmp_path)), {})
    with open_tier(config) as tier:
        assert isinstance(tier.client, BrokerClient)
        assert isinstance(open_shipped_storage(shipped_storage(config)), LocalTieredStorage)
        assert tier.catalog.epochs(ZERO_UUID, 0) == ()


def test_clients_are_closed_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[BrokerClient] = []
    monkeypatch.setattr(BrokerClient, "close", lambda client: closed.append(client))
    metadata = "rlmm.config.remote.log.metadata.common.client.bootstrap.servers=other:9093\n"
    for lines, count in (("", 1), (metadata, 2)):
        closed.clear()
        with open_tier(load_config(str(local_file(tmp_path, lines)), {})):
            assert closed == []
        assert len(closed) == count


def test_whose_the_tier_is_is_known_to_what_views_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A tier of our own begins elsewhere than the brokers' logs; only whole programs saw it when this was not passed on.
    owners: list[bool] = []
    monkeypatch.setattr(driver, "TierView", lambda *_parts, owns_tier: owners.append(owns_tier))
    for lines in ("", "mode=standalone\n"):
        with open_tier(load_config(str(local_file(tmp_path, lines)), {})):
            pass
    assert owners == [False, True]


def test_metadata_must_be_in_kafkas_topic(tmp_path: Path) -> None:
    path = local_file(tmp_path, "remote.log.metadata.manager.class.name=tidegate.InMemory\n")
    with pytest.raises(StorageConfigError, match="Spark reads metadata from Kafka's topic only"):
        load_config(str(path), {})


def test_a_wrong_file_gives_every_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(str(tier_file(tmp_path, "", minimal=False)), {})
    assert len(caught.value.problems) > 1


def test_the_tail_is_read_where_the_option_says_or_else_upstream(tmp_path: Path) -> None:
    config = load_config(str(local_file(tmp_path)), {})
    assert shipped_tail(config, None).bootstrap_servers == (HostPort("broker", 9092),)
    assert shipped_tail(config, "one:1,[::1]:2").bootstrap_servers == (HostPort("one", 1), HostPort("::1", 2))
    with pytest.raises(OptionsError, match=r"kafka\.bootstrap\.servers must be host:port"):
        shipped_tail(config, "nowhere")
