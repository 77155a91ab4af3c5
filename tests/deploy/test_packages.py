"""The wheel, the source distribution, and Tidegate as the image has it: the Dockerfile's own steps, run by hand.

`image` does what the build stage of deploy/Dockerfile says, in a temporary folder: COPY copies from the checkout, RUN
is run by a shell whose `python` is an environment of its own, /opt/tidegate is a folder there. What comes out of it can
import nothing of the checkout.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.compose import docker_instructions
from tests.support.needs import ROOT

pytestmark = pytest.mark.needs("network")

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PACKAGES = {"metrics", "pipeline", "protocol", "proxy", "standalone", "storage", "tidegate"}
NOT_OURS = (".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist", "artifacts")


@dataclass(frozen=True, slots=True)
class Image:
    """What the build stage made: /opt/tidegate, the wheel, and the Python that it was built with."""

    installed: Path
    wheel: Path
    python: Path

    def run(self, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
        """`tidegate … arguments` in a folder, with no variable but PATH."""
        command = [self.installed / "bin" / "tidegate", *arguments]
        environ = {"PATH": os.defpath}
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    build, installed, base = folder / "build", folder / "opt-tidegate", folder / "base"
    subprocess.run([sys.executable, "-m", "venv", base], check=True)
    environ = {**os.environ, "PATH": f"{base / 'bin'}:{os.environ.get('PATH', os.defpath)}"}
    environ.pop("PYTHONPATH", None)
    build.mkdir()
    for word, rest in build_stage():
        if word == "COPY":
            copy(rest.split(), build)
        elif word == "RUN":
            command = rest.replace("/opt/tidegate", str(installed))
            done = subprocess.run(
                ["/bin/sh", "-ec", command], cwd=build, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    (wheel,) = (build / "dist").iterdir()
    return Image(installed, wheel, base / "bin" / "python")


@pytest.fixture(scope="module")
def source_distribution(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from a whole checkout, in which there is much that does not belong to it."""
    folder = tmp_path_factory.mktemp("sdist")
    checkout = shutil.copytree(ROOT, folder / "checkout", ignore=shutil.ignore_patterns(*NOT_OURS, "__pycache__"))
    return build_with(image.python, checkout, "sdist", folder / "dist")


def build_stage() -> Iterator[tuple[str, str]]:
    """Instructions of the Dockerfile's first stage."""
    stages = 0
    for word, rest in docker_instructions(DOCKERFILE):
        stages += word == "FROM"
        if stages == 1:
            yield word, rest


def copy(names: list[str], build: Path) -> None:
    """COPY as Docker does it: of a folder its content, of files the files."""
    *sources, target = names
    (build / target).mkdir(parents=True, exist_ok=True)
    for source in sources:
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, build / target, dirs_exist_ok=True, ignore=ignored)
        else:
            shutil.copy(ROOT / source, build / target)


def build_with(python: Path, checkout: Path, kind: str, into: Path) -> Path:
    """The wheel or the sdist of a checkout, by its own back end as every installer calls it."""
    into.mkdir()
    program = "import sys; from setuptools import build_meta as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"
    done = subprocess.run(
        [python, "-c", program, kind, into], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = into.iterdir()
    return built


def modules_of_the_checkout() -> set[str]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_wheel_holds_our_packages_and_nothing_else(image: Image) -> None:
    names = set(zipfile.ZipFile(image.wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    expected = {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
    assert {name.rpartition("/")[2] for name in metadata} == expected
    extra = {f"{package}/py.typed" for package in PACKAGES}
    assert names - metadata == modules_of_the_checkout() | extra


def test_the_image_has_every_stores_client_and_neither_tests_nor_an_installer(image: Image) -> None:
    """It had that of S3 alone, and nothing in it can install another."""
    program = "import azure.identity, azure.storage.blob, boto3, google.cloud.storage, requests, socks"
    python = image.installed / "bin" / "python"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    site = next((image.installed / "lib").glob("python3*")) / "site-packages"
    unwanted = ("tests", "benchmarks", "tools", "pip", "setuptools", "pytest")
    assert not [name for name in unwanted if (site / name).exists()]


def test_the_source_distribution_holds_no_tests_and_makes_the_same_wheel(
    image: Image, source_distribution: Path, tmp_path: Path
) -> None:
    with tarfile.open(source_distribution) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    top = {path.name for path in unpacked.iterdir()}
    files = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    assert top - {path for path in top if path.endswith(".egg-info")} == PACKAGES | files
    wheel = build_with(image.python, unpacked, "wheel", tmp_path / "dist")
    assert wheel.name == image.wheel.name
    assert set(zipfile.ZipFile(wheel).namelist()) == set(zipfile.ZipFile(image.wheel).namelist())


def test_the_installed_command_knows_its_version_and_not_the_checkout(image: Image, tmp_path: Path) -> None:
    done = image.run("--version", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"tidegate \d+\.\d+\.\d+\n", done.stdout)
    program = f"import {', '.join(sorted(PACKAGES))}; print(tidegate.__file__)"
    python = image.installed / "bin" / "python"
    where = subprocess.run([python, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert where.stdout.startswith(f"{image.installed}/lib/")


def test_ways_that_users_knew_still_work_and_say_what_they_are_called_now(image: Image, tmp_path: Path) -> None:
    file = tmp_path / "tidegate.properties"
    file.write_text("admin.listen=127.0.0.1:1\n")
    spark, health = (image.run(*words, folder=tmp_path) for words in (("spark", "--help"), ("health", file)))
    assert (spark.returncode, health.returncode, spark.stderr, health.stderr) == (0, 1, "", "")
    python = image.installed / "bin" / "python"
    for now, old in ((spark, ("pipeline", "--help")), (health, ("proxy.process.health_check", file))):
        before = subprocess.run(
            [python, "-m", *old], cwd=tmp_path, env={"PATH": os.defpath}, capture_output=True, text=True, check=False
        )
        assert (before.returncode, before.stdout) == (now.returncode, now.stdout)
        assert len(before.stderr.splitlines()) == 1
        assert "goes with 0.3; it is: tidegate " in before.stderr
