"""Tidegate as the image has it: the Dockerfile's own steps, run by hand.

`image` does what the build stage of deploy/Dockerfile says, in a temporary folder: COPY copies from the checkout, RUN
is run by a shell whose `python` is an environment of its own, /opt/tidegate is a folder there. What comes out of it can
import nothing of the checkout.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.compose import docker_instructions
from tests.support.needs import ROOT

pytestmark = pytest.mark.needs("network")

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


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


def test_the_image_has_every_stores_client_and_neither_tests_nor_an_installer(image: Image) -> None:
    """It had that of S3 alone, and nothing in it can install another."""
    program = "import azure.identity, azure.storage.blob, boto3, confluent_kafka, google.cloud.storage, requests, socks"
    python = image.installed / "bin" / "python"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    site = next((image.installed / "lib").glob("python3*")) / "site-packages"
    unwanted = ("tests", "benchmarks", "tools", "pip", "setuptools", "pytest")
    assert not [name for name in unwanted if (site / name).exists()]


def test_the_installed_command_knows_its_version_and_not_the_checkout(image: Image, tmp_path: Path) -> None:
    done = image.run("--version", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"tidegate \d+\.\d+\.\d+\n", done.stdout)
    program = "import tidegate.proxy, tidegate.storage; print(tidegate.__file__)"
    python = image.installed / "bin" / "python"
    where = subprocess.run([python, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert where.stdout.startswith(f"{image.installed}/lib/")
