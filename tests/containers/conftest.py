"""One store for all tests of images and containers, and the image of the tree's Dockerfile in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.compose import ComposeService, load_compose
from tests.support.composed_containers import build_image
from tests.support.containers import Containers, own_containers

OVERRIDE = Path(__file__).with_name("docker-compose.override.yml")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one process: the store is made once."""
    for item in items:
        if item.path.is_relative_to(OVERRIDE.parent):
            item.add_marker(pytest.mark.xdist_group("containers"))


@pytest.fixture(scope="session")
def containers() -> Iterator[Containers]:
    with own_containers() as own:
        own.import_base()
        yield own


@pytest.fixture(scope="session")
def services() -> Mapping[str, ComposeService]:
    """Those of docker-compose.yml, with what differs here."""
    return load_compose(overrides=[OVERRIDE])


@pytest.fixture(scope="session")
def tidegate_image(containers: Containers, services: Mapping[str, ComposeService]) -> str:
    return build_image(containers, services["tidegate"])
