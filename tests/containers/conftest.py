"""One store for all tests of images and containers, and in it the image that `make release` made of this tree."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.compose import ComposeService, load_compose
from tests.support.containers import BASE, Containers, own_containers
from tests.support.released import VERSION, release, tagged_repository

OVERRIDE = Path(__file__).with_name("docker-compose.override.yml")


@pytest.fixture(scope="session")
def containers() -> Iterator[Containers]:
    with own_containers() as own:
        own.import_base()
        yield own


@pytest.fixture(scope="session")
def services() -> Mapping[str, ComposeService]:
    """Those of docker-compose.yml, with what differs here."""
    return load_compose(OVERRIDE)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tagged_repository(tmp_path_factory.mktemp("tagged") / "repository")


@pytest.fixture(scope="session")
def released(containers: Containers, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all that is published; buildah's store keeps the image."""
    into = tmp_path_factory.mktemp("released")
    done = release(repository, into, containers.environ, options=image_options(containers))
    assert done.returncode == 0, done.stderr[-4000:]
    return into / VERSION


@pytest.fixture(scope="session")
def tidegate_image(released: Path, services: Mapping[str, ComposeService]) -> str:
    return str(services["tidegate"].definition["image"])


def image_options(containers: Containers) -> list[str]:
    """Return the options of `make release` where public images are not to be had."""
    words = [*containers.build_options(), f"--build-arg=PYTHON_IMAGE={BASE}"]
    return [f"--image-option={word}" for word in words]
