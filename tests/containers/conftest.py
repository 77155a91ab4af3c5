"""One store for all tests of images and containers, and the image of the tree's Dockerfile in it."""

from collections.abc import Iterator

import pytest

from tests.support.containers import BASE, Containers, own_containers
from tests.support.needs import ROOT

TIDEGATE = "localhost/tidegate:0.2.0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one process: the store is made once."""
    for item in items:
        if "containers" in item.path.parts:
            item.add_marker(pytest.mark.xdist_group("containers"))


@pytest.fixture(scope="session")
def containers() -> Iterator[Containers]:
    with own_containers() as own:
        own.import_base()
        yield own


@pytest.fixture(scope="session")
def tidegate_image(containers: Containers) -> str:
    containers.build(ROOT / "deploy" / "Dockerfile", TIDEGATE, arguments={"PYTHON_IMAGE": BASE})
    return TIDEGATE
