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
from tools.install_packages import handed_over, pip_configuration, pip_settings

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


def test_make_install_needs_python_alone(tmp_path: Path) -> None:
    """Neither Java nor Maven is asked for anything. What was installed is looked at from elsewhere."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("java", "mvn"):
        (tools / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked; exit 1\n")
        (tools / name).chmod(0o755)
    prefix = tmp_path / "prefix"
    environ = {**os.environ, "PATH": f"{tools}:{os.environ.get('PATH', os.defpath)}"}
    environ.pop("PYTHONPATH", None)
    command = ["make", "--no-print-directory", "install", f"PREFIX={prefix}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "asked").exists()
    assert re.fullmatch(r"tidegate \d+\.\d+\.\d+\n", done.stdout)
    assert (prefix / "share" / "man" / "man1" / "tidegate.1").is_file()
    program = "import tidegate.proxy, confluent_kafka, google.cloud.storage; print(tidegate.__file__)"
    where = subprocess.run(
        [prefix / "bin" / "python", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(f"{prefix}/lib/")


def test_uv_runs_it_out_of_the_wheel(image: Image, tmp_path: Path) -> None:
    """As `uvx --from FILE.whl tidegate`, by the settings that pip has."""
    settings = pip_settings(pip_configuration())
    environ = {**os.environ, **handed_over(settings, os.environ, (99, 0)).environment}
    environ.pop("PYTHONPATH", None)
    if "cert" in settings:
        environ["SSL_CERT_FILE"] = settings["cert"]
    command: list[str | Path] = [
        Path(sys.executable).with_name("uvx"),
        "--quiet",
        "--from",
        image.wheel,
        "tidegate",
        "check",
    ]
    file = tmp_path / "tidegate.properties"
    file.write_text("mode=x\n")
    done = subprocess.run([*command, file], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "tidegate: tidegate.properties:1: mode = x: must be one of replica, standalone" in done.stderr
