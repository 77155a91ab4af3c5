"""`make release` with its image: twice the same bytes, and an archive that a machine without our tools can load."""

import hashlib
from pathlib import Path

import pytest

from tests.containers.conftest import image_options
from tests.support.containers import Containers
from tests.support.released import COMMITTED, STEM, VERSION, git, release

pytestmark = [pytest.mark.needs("containers", "docker-compose"), pytest.mark.integration]

ARCHIVE = f"{STEM}-image.tar"


def test_another_clone_on_another_day_makes_the_same_bytes(
    containers: Containers, repository: Path, released: Path, tmp_path: Path
) -> None:
    """On the same base, with the image."""
    again = tmp_path / "again"
    git(tmp_path, "clone", "--quiet", str(repository), str(again))
    environ = {**containers.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    done = release(again, tmp_path / "dist", environ, options=image_options(containers), mask=0o077)
    assert done.returncode == 0, done.stderr[-4000:]
    for path in released.iterdir():
        made = tmp_path / "dist" / VERSION / path.name
        assert made.read_bytes() == path.read_bytes(), path.name


def test_the_archive_is_summed_and_what_is_loaded_of_it_runs(containers: Containers, released: Path) -> None:
    digest = hashlib.sha256((released / ARCHIVE).read_bytes()).hexdigest()
    assert f"{digest}  {ARCHIVE}\n" in (released / "SHA256SUMS").read_text()
    name = f"localhost/tidegate:{VERSION}"
    built = containers.podman("inspect", "--format", "{{.Id}}", name).strip()
    try:
        assert name in containers.podman("load", "--input", released / ARCHIVE)
        assert containers.podman("inspect", "--format", "{{.Id}}", name).strip() != built
        created = containers.podman("inspect", "--format", "{{json .Created}}", name)
        assert created.strip() == f'"{COMMITTED}"'
        said = containers.podman("run", "--rm", "--network", "none", "--read-only", name, "--version")
        assert said.split() == ["tidegate", VERSION]
    finally:
        # The other tests' image is the one with a health check.
        containers.podman("tag", built, name)
