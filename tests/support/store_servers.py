"""The stores' servers, each started once for a file of tests."""

from collections.abc import Iterator

import pytest

from tests.support.aiven_tier import StoreServer
from tests.support.azurite import azurite
from tests.support.fake_gcs import fake_gcs
from tests.support.versitygw import versitygw


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with versitygw(tmp_path_factory.mktemp("gateway"), tmp_path_factory.mktemp("work")) as server:
        yield server


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with fake_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with azurite(tmp_path_factory.mktemp("azure")) as server:
        yield server
